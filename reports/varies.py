"""What varies freely: values that differ between two cases which fail the same way."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from treeproof.contract.case import VerifyCase

_ASPECTS: Mapping[str, Callable[[VerifyCase], object]] = {
    "dtype": lambda case: case.shape.dtype,
    "query heads": lambda case: case.shape.num_q_heads,
    "KV heads": lambda case: case.shape.num_kv_heads,
    "head dim": lambda case: case.shape.head_dim,
    "window": lambda case: "none" if case.shape.window is None else case.shape.window,
    "rotary": lambda case: "off" if case.shape.rotary is None else "on",
    "page size": lambda case: case.layout.page_size,
    "slot order": lambda case: case.layout.order,
    "aliased prefix": lambda case: "yes" if case.layout.shared_prefix else "no",
    "mask mode": lambda case: case.mask.mode.name,
    "requests": lambda case: len(case.requests),
    "longest prefix": lambda case: max(request.prefix_len for request in case.requests),
    "padded rows": lambda case: sum(request.pad_rows for request in case.requests),
}


def varies_freely(drawn: VerifyCase, reduced: VerifyCase) -> str:
    """`dtype (bfloat16, float32), page size (16, 1)`: aspects in which two failing cases differ.

    Both fail with the same key, so neither value is needed for it. Empty where nothing differs.
    """
    differ = []
    for name, of in _ASPECTS.items():
        before, after = of(drawn), of(reduced)
        if before != after:
            differ.append(f"{name} ({before}, {after})")
    return ", ".join(differ)
