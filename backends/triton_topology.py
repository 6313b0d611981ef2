"""Backend `triton-topology`: a Triton kernel in which every row walks up its parent links.

Torch twin: `topology`, which comes down from the root by children and siblings.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from treeproof.backends.adapters.triton_mode import import_triton
from treeproof.backends.kernels.declared import REQUIRES, capabilities
from treeproof.backends.reference.store import store_kv
from treeproof.contract.capabilities import Numerics
from treeproof.contract.inputs import Accepted, Attended, Candidates, Committed, VerifyInput
from treeproof.contract.registry import register
from treeproof.contract.sampling import Sampling


@register(
    "triton-topology",
    consumes={
        "draft_token",
        "seq_lens",
        "qo_indptr",
        "out_cache_loc",
        "request_slots",
        "req_to_token",
        "retrieve_parent_token",
        "retrieve_index",
        "retrieve_next_token",
        "retrieve_next_sibling",
        "sinks",
    },
    capabilities=capabilities(nan_safe=True),
    numerics=Numerics(),
    requires=REQUIRES,
    kernels={"linked_attention"},
)
class TritonTopology:
    """Tree attention along parent links."""

    def __init__(self) -> None:
        import_triton()
        from treeproof.backends.kernels import attend, stages

        self._attend, self._stages = attend, stages

    def build(self, c: Candidates) -> VerifyInput:
        """The links; of the mask nothing is used here."""
        return replace(self._stages.build(c), custom_mask=None, mask_indptr=None, mask_mode=None)

    def attend(
        self, x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor
    ) -> Attended:
        """Prefix by token table, then from each row up to the root."""
        store_kv(x, k, v, k_cache, v_cache)
        out, lse = self._attend.linked(self._attend.Layer(x, q, k_cache, v_cache))
        declared = {"retrieve_parent_token": x.retrieve_parent_token}
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
