"""Faults of merging: what two partial results weigh, and what an empty one counts for."""

from __future__ import annotations

from treeproof.faults.attending import edit, fault_of_attend
from treeproof.faults.smallest import case, request

_PREFIX_LSE = "lse.view(kv_heads, rows, group).transpose(0, 1)"
_SUFFIX_LSE = "lse[own] = torch.logsumexp(scores, dim=-1)"
_WEIGHED = "out = out_a * (z_a / share).unsqueeze(-1) + out_b * (z_b / share).unsqueeze(-1)"
_SHORT_NEXT_TO_LONG = case(request(prefix=2))

FAULTS = (
    fault_of_attend(
        "base-2-lse.prefix",
        "the prefix pass returns its log-sum-exp in base 2, which the merge takes for natural",
        {"cascade": edit((_PREFIX_LSE, f"{_PREFIX_LSE} * 1.4426950408889634"))},
        cause="base-2-lse",
        smallest=_SHORT_NEXT_TO_LONG,
        sources=("B039",),
        identity="output",
    ),
    fault_of_attend(
        "base-2-lse.suffix",
        "the suffix pass returns its log-sum-exp in base 2, which the merge takes for natural",
        {"cascade": edit((_SUFFIX_LSE, f"{_SUFFIX_LSE} * 1.4426950408889634"))},
        cause="base-2-lse",
        smallest=case(request(prefix=1)),
        sources=("B039", "vllm-project/vllm#52796"),
        identity="output",
    ),
    fault_of_attend(
        "base-2-lse.weights",
        "the merge raises 2, not e, to the power of natural logarithms",
        {
            "cascade": edit(
                (
                    "z_a, z_b = (lse_a - top).exp(), (lse_b - top).exp()",
                    "z_a, z_b = (lse_a - top).exp2(), (lse_b - top).exp2()",
                )
            )
        },
        cause="base-2-lse",
        smallest=_SHORT_NEXT_TO_LONG,
        sources=("B039", "vllm-project/vllm#47079"),
        identity="output",
    ),
    fault_of_attend(
        "merge-unweighted.average",
        "two partial results are averaged",
        {"cascade": edit((_WEIGHED, "out = (out_a + out_b) / 2"))},
        cause="merge-unweighted",
        smallest=_SHORT_NEXT_TO_LONG,
        sources=("B039",),
        identity="output",
    ),
    fault_of_attend(
        "merge-unweighted.exchanged",
        "each partial result gets the weight of the other",
        {
            "cascade": edit(
                (
                    _WEIGHED,
                    "out = out_a * (z_b / share).unsqueeze(-1) + out_b * (z_a / share).unsqueeze(-1)",
                )
            )
        },
        cause="merge-unweighted",
        smallest=_SHORT_NEXT_TO_LONG,
        sources=("B039",),
        identity="output",
    ),
    fault_of_attend(
        "empty-part-counted",
        "an empty prefix has log-sum-exp 0, and so weighs as much as one key",
        {
            "cascade": edit(
                (
                    'prefix_lse = torch.full_like(suffix_lse, float("-inf"))',
                    "prefix_lse = torch.zeros_like(suffix_lse)",
                )
            )
        },
        cause="empty-part-counted",
        smallest=case(request()),
        sources=("B040",),
        identity="output",
    ),
)
