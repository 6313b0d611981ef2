"""Backend `triton-cascade`: one pass over the pages that all rows share, one over each row's own list.

Torch twin: `cascade`. The two partial results are merged by their log-sum-exp in float32. Under a
window only whole pages that every row still sees are shared.
"""

from __future__ import annotations

import torch
from torch import Tensor

from treeproof.backends.adapters.triton_mode import import_triton
from treeproof.backends.kernels.declared import REQUIRES, capabilities
from treeproof.backends.reference.store import store_kv
from treeproof.contract.capabilities import Numerics
from treeproof.contract.inputs import Accepted, Attended, Candidates, Committed, VerifyInput
from treeproof.contract.registry import register
from treeproof.contract.sampling import Sampling


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
    numerics=Numerics(partial="float32", merges=1),
    requires=REQUIRES,
    kernels={"shared_attention", "paged_attention", "merge_parts"},
)
class TritonCascade:
    """Tree attention as shared prefix attention merged with attention over each row's own list."""

    def __init__(self) -> None:
        import_triton()
        from treeproof.backends.kernels import attend, listing, stages

        self._attend, self._listing, self._stages = attend, listing, stages

    def build(self, c: Candidates) -> VerifyInput:
        """Whole pages of the prefix that every row sees; a list a row of what it sees besides."""
        return self._listing.pages_and_lists(c)

    def plan(self, x: VerifyInput) -> VerifyInput:
        """Nothing but a look at what a launch would not see."""
        self._attend.require_lists(x)
        return x

    def attend(
        self, x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor
    ) -> Attended:
        """Shared pages, lists, merge; the sink joins in the merge."""
        store_kv(x, k, v, k_cache, v_cache)
        layer = self._attend.Layer(x, q, k_cache, v_cache)
        shared, shared_lse = self._attend.shared(layer)
        lists = self._attend.Lists.of(x, paged=False)
        own, own_lse = self._attend.paged(layer, lists, partial=True)
        out, lse = self._attend.merge(
            torch.cat([shared[None], own]), torch.cat([shared_lse[None], own_lse]), q.dtype, x.sinks
        )
        names = ("page_table", "cache_seqlens", "kv_indptr", "kv_indices", "kv_start")
        return Attended(out=out, lse=lse, declared={name: getattr(x, name) for name in names})

    def merge(
        self, out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What puts the two passes together, as a stage of its own."""
        parts, part_lse = torch.stack([out_a, out_b]), torch.stack([lse_a, lse_b])
        return self._attend.merge(parts, part_lse, out_a.dtype, None)

    def accept(self, x: VerifyInput, target_predict: Tensor) -> Accepted:
        """Greedy walk down the links."""
        return self._stages.accept(x, target_predict)

    def sample(self, x: VerifyInput, given: Sampling) -> Accepted:
        """Sampled walk down the links."""
        return self._stages.sample(x, given)

    def commit(
        self, x: VerifyInput, accepted: Accepted, k_cache: Tensor, v_cache: Tensor
    ) -> Committed:
        """Accepted row j to logical column P + j."""
        return self._stages.commit(x, accepted, k_cache, v_cache)
