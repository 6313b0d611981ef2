"""Backend `triton-cascade`: one pass over the pages that all rows share, one over each row's own list.

Torch twin: `cascade`. The two partial results are merged by their log-sum-exp in float32. Under a
window only whole pages that every row still sees are shared.
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


@register(
    "triton-cascade",
    consumes={
        "draft_token",
        "seq_lens",
        "qo_indptr",
        "out_cache_loc",
        "request_slots",
        "req_to_token",
        "page_table",
        "cache_seqlens",
        "kv_indptr",
        "kv_indices",
        "kv_start",
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
class TritonCascade:
    """Tree attention as shared prefix attention merged with attention over each row's own list."""

    def __init__(self) -> None:
        import_triton()
        from treeproof.backends.kernels import attend, stages

        self._attend, self._stages = attend, stages

    def build(self, c: Candidates) -> VerifyInput:
        """Whole pages of the prefix that every row sees; a list a row of what it sees besides."""
        x, page = self._stages.build(c), c.kv.page_size
        request = self._stages.owners(x.qo_indptr)
        first = torch.zeros_like(x.positions)
        if c.shape.window is not None:
            first = (x.positions - c.shape.window + 1).clamp(min=0)
        # A request's last first key, rounded up to a page: from there on every row sees the prefix.
        latest = c.seq_lens.new_zeros(len(c.seq_lens)).scatter_reduce_(0, request, first, "amax")
        start = torch.minimum(c.seq_lens, (latest + page - 1) // page * page)
        lines = self._stages.lines(c, x, first, start)
        pages = -(-int((c.seq_lens - start).max()) // page)
        column = start[:, None] + page * torch.arange(pages, device=start.device)
        # Shorter requests run past the table.
        column = column.clamp(max=c.req_to_token.shape[1] - 1)
        return replace(
            x, custom_mask=None, mask_indptr=None, mask_mode=None,
            kv_indptr=lines.indptr, kv_indices=lines.indices, kv_start=torch.zeros_like(first),
            page_table=c.req_to_token[c.request_slots[:, None], column] // page,
            cache_seqlens=c.seq_lens - start,
        )  # fmt: skip

    def attend(
        self, x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor
    ) -> Attended:
        """Shared pages, lists, merge; the sink joins in the merge."""
        store_kv(x, k, v, k_cache, v_cache)
        names = ("page_table", "cache_seqlens", "kv_indptr", "kv_indices", "kv_start")
        declared = {name: getattr(x, name) for name in names}
        if any(table is None for table in declared.values()):
            raise ValueError(f"{', '.join(names)} are needed, and one was not built")
        layer = self._attend.Layer(x, q, k_cache, v_cache)
        request = self._stages.owners(x.qo_indptr)
        table = declared["page_table"].contiguous()
        shared, shared_lse = self._attend.paged(
            layer, table, request * table.shape[1], torch.zeros_like(request),
            declared["cache_seqlens"][request], page=x.kv.page_size, partial=True,
        )  # fmt: skip
        own, own_lse = self._attend.paged(
            layer, declared["kv_indices"], declared["kv_indptr"], declared["kv_start"],
            declared["kv_indptr"].diff(), partial=True,
        )  # fmt: skip
        out, lse = self._attend.merge(
            torch.cat([shared, own]), torch.cat([shared_lse, own_lse]), q.dtype, x.sinks
        )
        return Attended(out=out, lse=lse, declared=declared)

    def merge(
        self, out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What puts the two passes together, as a stage of its own."""
        parts, part_lse = torch.stack([out_a, out_b]), torch.stack([lse_a, lse_b])
        return self._attend.merge(parts, part_lse, out_a.dtype, None)

    def accept(self, x: VerifyInput, target_predict: Tensor) -> Accepted:
        """Greedy walk down the links."""
        return self._stages.accept(x, target_predict)

    def commit(
        self, x: VerifyInput, accepted: Accepted, k_cache: Tensor, v_cache: Tensor
    ) -> Committed:
        """Accepted row j to logical column P + j."""
        return self._stages.commit(x, accepted, k_cache, v_cache)
