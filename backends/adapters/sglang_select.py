"""Backend `sglang-select`: SGLang's `organize_draft_results`, which selects the rows to verify.

It takes the candidates of highest cumulative score by `torch.topk` and lays them in pool order. Of
equal scores `torch.topk` may take any, so that a candidate can be selected without its parent: left
as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from treeproof.backends.adapters import sglang_loader
from treeproof.backends.adapters.beside_attention import beside_attention
from treeproof.backends.adapters.sglang_tree import GLUE, WITHOUT
from treeproof.contract.inputs import DraftPool, Selected
from treeproof.contract.registry import register


@register(
    "sglang-select",
    capabilities=beside_attention(),
    requires=sglang_loader.REQUIRES,
)
class SglangSelect:
    """Selection out of the lists that a drafting phase leaves, an entry a step."""

    def __init__(self) -> None:
        glue = sglang_loader.load(GLUE, "xpu", WITHOUT)
        self._organize: Any = glue.organize_draft_results

    def select(self, pool: DraftPool, num_rows: int) -> Selected:
        k, steps = pool.topk, pool.spec_steps
        levels = [k] + [k * k] * (steps - 1)
        scores = [s.view(len(s), -1, k) for s in _split(pool.scores, levels)]
        tokens = _split(pool.tokens, levels)
        parents = _split(pool.parents, [k + 1] + [k] * (steps - 1))
        parent_list, selected, drafted = self._organize(scores, tokens, parents, num_rows)
        return Selected(parent_list=parent_list, selected_index=selected, draft_token=drafted)


def _split(cells: Tensor, widths: Sequence[int]) -> list[Tensor]:
    return [piece.contiguous() for piece in torch.split(cells, list(widths), dim=1)]
