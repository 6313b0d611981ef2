"""Backend `sglang-chain`: SGLang's rejection sampling of a chain, `chain_speculative_sampling_triton`.

What its engine runs with topk 1 where drafts are sampled. Of its two ways of accepting it is the classic
one, token by token. Its sampling along trees, and all that it renormalises before, are CUDA kernels.
"""

from __future__ import annotations

from typing import Any

import torch

from treeproof.backends.adapters import sglang_loader
from treeproof.backends.adapters.beside_attention import beside_attention
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.registry import register
from treeproof.contract.sampling import CHAIN, Sampling

MODULE = "sglang.kernels.ops.speculative.reject_sampling"


@register(
    "sglang-chain",
    consumes={"draft_token", "retrieve_index", "retrieve_next_token", "retrieve_next_sibling"},
    capabilities=beside_attention(
        # One number of draft tokens for the whole batch.
        ragged=False,
        pad_rows=False,
        sampling={CHAIN},
    ),
    requires=sglang_loader.REQUIRES,
)
class SglangChain:
    """One launch for the whole batch of B chains of N rows each, the root included."""

    def __init__(self) -> None:
        self._sample: Any = sglang_loader.load(MODULE).chain_speculative_sampling_triton

    def sample(self, x: VerifyInput, given: Sampling) -> Accepted:
        """Raises ValueError where the rule is another than `chain`."""
        if given.rule != CHAIN:
            raise ValueError(f"rule is {given.rule}: known is {CHAIN}")
        assert x.retrieve_index is not None
        shape, device = x.retrieve_index.shape, x.retrieve_index.device
        predicted = torch.zeros(shape[0] * shape[1], dtype=torch.int32, device=device)
        # As wide as a chain has rows: the kernel goes through both by the same strides.
        index = torch.full(shape, -1, dtype=x.retrieve_index.dtype, device=device)
        correct = torch.zeros(shape[0], dtype=torch.int32, device=device)
        self._sample(
            predicted,
            index,
            correct,
            x.draft_token.view(shape),
            x.retrieve_index,
            x.retrieve_next_token,
            x.retrieve_next_sibling,
            given.coins.view(shape),
            given.final_coins,
            given.target_probs.view(*shape, -1),
            given.draft_probs,
            1.0,
            1.0,
            True,
        )
        lengths = correct.long() + 1
        wide = torch.full((shape[0], x.spec_steps + 1), -1, dtype=torch.int64, device=device)
        kept = torch.arange(shape[1], device=device) < lengths[:, None]
        wide[:, : shape[1]] = torch.where(kept, index.long(), -1)
        tokens = torch.where(wide >= 0, predicted[wide.clamp(min=0)].long(), -1)
        return Accepted(accept_index=wide, accept_len=lengths, tokens=tokens)
