"""Backend `triton-direct-mask`: one Triton kernel over prefix and tree, under the mask as it lies.

Torch twin: `direct-mask`, which takes depths from the mask; here the window is cut by `positions`.
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
    "triton-direct-mask",
    consumes={
        "draft_token",
        "positions",
        "seq_lens",
        "qo_indptr",
        "out_cache_loc",
        "request_slots",
        "req_to_token",
        "custom_mask",
        "mask_indptr",
        "retrieve_index",
        "retrieve_next_token",
        "retrieve_next_sibling",
        "sinks",
    },
    # A tile that some row sees is multiplied whole, and 0 * NaN is NaN.
    capabilities=capabilities(nan_safe=False),
    numerics=Numerics(),
    requires=REQUIRES,
    kernels={"masked_attention"},
)
class TritonDirectMask:
    """Tree attention as one masked softmax a request."""

    def __init__(self) -> None:
        import_triton()
        from treeproof.backends.kernels import attend, stages

        self._attend, self._stages = attend, stages

    def build(self, c: Candidates) -> VerifyInput:
        """The mask in the layout asked for, and the links."""
        return self._stages.build(c)

    def plan(self, x: VerifyInput) -> VerifyInput:
        """Nothing but a look at what a launch would not see."""
        self._attend.require_mask(x)
        return x

    def attend(
        self, x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor
    ) -> Attended:
        """Masked softmax over prefix and tree columns of each request."""
        store_kv(x, k, v, k_cache, v_cache)
        out, lse = self._attend.masked(self._attend.Layer(x, q, k_cache, v_cache))
        declared = {"custom_mask": x.custom_mask, "mask_indptr": x.mask_indptr}
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
