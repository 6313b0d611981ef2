"""The contract column, of what `process` and `finish` return: types, shapes, dtypes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from treeproof.contract.stopping import Finished
from treeproof.properties.contract import INTS, require_tensor
from treeproof.properties.violation import Violation, contract_failure


def valid_processed(result: Any, logits: Tensor) -> Tensor:
    """Processed logits, shaped as those handed in."""
    shape = tuple(logits.shape)
    return require_tensor(result, "logits", "process", shape, (torch.float32,)).detach()


def valid_finished(result: Any, requests: int, width: int) -> Finished:
    if not isinstance(result, Finished):
        message = f"finish returned {type(result).__name__}, expected Finished"
        raise Violation(contract_failure("wrong-type", "finish", message))
    require_tensor(result.tokens, "tokens", "finish", (requests, width), INTS)
    require_tensor(result.served, "served", "finish", (requests,), INTS)
    require_tensor(result.reason, "reason", "finish", (requests,), INTS)
    return result
