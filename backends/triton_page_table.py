"""Backend `triton-page-table`: paged decoding of T rows, keys split over programs and merged.

Torch twin: `page-table`, whose pages are of one key. Here the prefix comes in pages of the cache's
own size, from the table of the row's request; only a row's path is a list of single slots.
"""

from __future__ import annotations

from torch import Tensor

from treeproof.backends.adapters.triton_mode import import_triton
from treeproof.backends.kernels.declared import REQUIRES, capabilities
from treeproof.backends.reference.store import store_kv
from treeproof.contract.capabilities import Numerics
from treeproof.contract.inputs import Accepted, Attended, Candidates, Committed, VerifyInput
from treeproof.contract.registry import register
from treeproof.contract.sampling import Sampling

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
        "kv_indptr",
        "kv_indices",
        "kv_start",
        "retrieve_index",
        "retrieve_next_token",
        "retrieve_next_sibling",
        "sinks",
    },
    capabilities=capabilities(nan_safe=True),
    numerics=Numerics(partial="float32", merges=_SPLITS - 1),
    requires=REQUIRES,
    kernels={"paged_attention", "merge_parts"},
)
class TritonPageTable:
    """Tree attention as paged decoding of T sequences."""

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
        """Pages and then the list of each row, in parts of at least `_A_SPLIT` keys."""
        store_kv(x, k, v, k_cache, v_cache)
        lists = self._attend.Lists.of(x, paged=True)
        layer = self._attend.Layer(x, q, k_cache, v_cache)
        splits = max(1, min(_SPLITS, self._attend.most_keys(x) // _A_SPLIT))
        parts, part_lse = self._attend.paged(layer, lists, splits=splits, partial=True)
        out, lse = self._attend.merge(parts, part_lse, q.dtype, x.sinks)
        return Attended(out=out, lse=lse, declared=vars(lists))

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
