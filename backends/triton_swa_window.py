"""Backend `triton-swa-window`: one list a row by logical index, read from where its window begins.

Torch twin: `swa-window`.
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


@register(
    "triton-swa-window",
    consumes={
        "draft_token",
        "seq_lens",
        "qo_indptr",
        "out_cache_loc",
        "request_slots",
        "req_to_token",
        "kv_indptr",
        "kv_indices",
        "kv_start",
        "retrieve_index",
        "retrieve_next_token",
        "retrieve_next_sibling",
        "sinks",
    },
    capabilities=capabilities(nan_safe=True),
    numerics=Numerics(),
    requires=REQUIRES,
    kernels={"paged_attention"},
)
class TritonSwaWindow:
    """Tree attention as attention over T lists, each with a window of its own."""

    def __init__(self) -> None:
        import_triton()
        from treeproof.backends.kernels import attend, listing, stages

        self._attend, self._listing, self._stages = attend, listing, stages

    def build(self, c: Candidates) -> VerifyInput:
        """Lists of all keys, and where in them each row's window begins."""
        return self._listing.lists(c)

    def plan(self, x: VerifyInput) -> VerifyInput:
        """Nothing but a look at what a launch would not see."""
        self._attend.require_lists(x)
        return x

    def attend(
        self, x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor
    ) -> Attended:
        """Each row over its list from `kv_start` on, in one piece."""
        store_kv(x, k, v, k_cache, v_cache)
        layer = self._attend.Layer(x, q, k_cache, v_cache)
        out, lse = self._attend.paged(layer, self._attend.Lists.of(x, paged=False))
        declared = {"kv_indptr": x.kv_indptr, "kv_indices": x.kv_indices, "kv_start": x.kv_start}
        return Attended(out=out, lse=lse, declared=declared)

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
