"""Backend `triton-page-table`: paged decoding of T rows, keys split over programs and merged.

Torch twin: `page-table`. A line is a row's prefix and path, pages of one key, as no page but the
prefix's would hold one branch alone.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from treeproof.backends.adapters.triton_mode import import_triton
from treeproof.backends.kernels.declared import NUMERICS, REQUIRES, capabilities
from treeproof.backends.reference.store import store_kv
from treeproof.contract.inputs import Accepted, Attended, Candidates, Committed, VerifyInput
from treeproof.contract.registry import register

_A_SPLIT = 128
"""Keys that are worth a program of their own, at least."""
_SPLITS = 8


@register(
    "triton-page-table",
    consumes={
        "draft_token",
        "seq_lens",
        "qo_indptr",
        "out_cache_loc",
        "request_slots",
        "req_to_token",
        "page_table",
        "cache_seqlens",
        "retrieve_index",
        "retrieve_next_token",
        "retrieve_next_sibling",
        "sinks",
    },
    capabilities=capabilities(nan_safe=True),
    numerics=NUMERICS,
    requires=REQUIRES,
    kernels={"paged_attention", "merge_parts"},
)
class TritonPageTable:
    """Tree attention as paged decoding of T sequences."""

    def __init__(self) -> None:
        import_triton()
        from treeproof.backends.kernels import attend, stages

        self._attend, self._stages = attend, stages

    def build(self, c: Candidates) -> VerifyInput:
        """A line a row: slots of logical indices 0 to P + depth."""
        x = self._stages.build(c)
        lines = self._stages.lines(c, x, torch.zeros_like(x.positions), c.seq_lens)
        lengths = lines.indptr.diff()
        table = lengths.new_full((len(lengths), int(lengths.max())), c.kv.page_table_pad)
        table[torch.arange(table.shape[1], device=table.device) < lengths[:, None]] = lines.indices
        return replace(
            x, custom_mask=None, mask_indptr=None, mask_mode=None,
            page_table=table, cache_seqlens=lengths,
        )  # fmt: skip

    def attend(
        self, x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor
    ) -> Attended:
        """The last min(length, window) keys of each line, in pieces of at least `_A_SPLIT` keys."""
        store_kv(x, k, v, k_cache, v_cache)
        if x.page_table is None or x.cache_seqlens is None:
            raise ValueError("page_table and cache_seqlens are needed, and were not built")
        table, lengths = x.page_table.contiguous(), x.cache_seqlens
        first = torch.zeros_like(lengths)
        if x.shape.window is not None:
            first = (lengths - x.shape.window).clamp(min=0)
        row = torch.arange(len(lengths), device=lengths.device)
        layer = self._attend.Layer(x, q, k_cache, v_cache)
        longest = int((lengths - first).max())
        parts, part_lse = self._attend.paged(
            layer, table, row * table.shape[1], first, lengths,
            splits=max(1, min(_SPLITS, longest // _A_SPLIT)), partial=True,
        )  # fmt: skip
        out, lse = self._attend.merge(parts, part_lse, q.dtype, x.sinks)
        declared = {"page_table": x.page_table, "cache_seqlens": lengths}
        return Attended(out=out, lse=lse, declared=declared)

    def accept(self, x: VerifyInput, target_predict: Tensor) -> Accepted:
        """Greedy walk down the links."""
        return self._stages.accept(x, target_predict)

    def commit(
        self, x: VerifyInput, accepted: Accepted, k_cache: Tensor, v_cache: Tensor
    ) -> Committed:
        """Accepted row j to logical column P + j."""
        return self._stages.commit(x, accepted, k_cache, v_cache)
