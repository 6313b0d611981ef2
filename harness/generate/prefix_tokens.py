"""Tokens of the prefixes, for engines that are given tokens instead of keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treeproof.contract.case import VerifyCase
from treeproof.generate.data import hash_tensor

if TYPE_CHECKING:
    from torch import Tensor

_WORD = 601  # address word of the draw

_ANY = 1 << 31


def prefix_tokens(case: VerifyCase, vocab_size: int | None) -> tuple[Tensor, ...]:
    """(P_b,) int64 of each request, below `vocab_size`; a shared prefix is request 0's everywhere."""
    import torch

    limit = vocab_size or _ANY
    found: list[Tensor] = []
    for b, request in enumerate(case.requests):
        tokens = torch.tensor(request.prefix_tokens, dtype=torch.int64)
        if not request.prefix_tokens:
            index = torch.arange(request.prefix_len)
            tokens = hash_tensor(case.seed, _WORD, b, index) % _ANY
        if b:
            tokens = torch.cat(
                (found[0][: case.layout.shared_prefix], tokens[case.layout.shared_prefix :])
            )
        found.append(tokens % limit)
    return tuple(found)
