"""Shape groups: the values that a kernel is compiled for, in a short list that covers all pairs."""

from __future__ import annotations

from dataclasses import dataclass

from treeproof.contract.case import MaskMode

FULL, QLEN = MaskMode.FULL_MASK, MaskMode.QLEN_ONLY
BITS = MaskMode.QLEN_ONLY_BITPACKING
ROPE = 10_000.0


@dataclass(frozen=True)
class ShapeGroup:
    """Compile-time values shared by all cases of a work unit; all else is drawn case by case."""

    dtype: str
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    page_size: int
    windowed: bool
    """The layer has a sliding window; its width is drawn."""
    mask_mode: MaskMode
    rotary: float | None
    """Base of the rotary embedding; None: none."""

    @property
    def name(self) -> str:
        """Distinct for each group, e.g. float16-4x1-d16-p64-window-QLEN_ONLY-rope."""
        dims = f"d{self.head_dim}"
        if self.v_head_dim != self.head_dim:
            dims += f"v{self.v_head_dim}"
        parts = [self.dtype, f"{self.num_q_heads}x{self.num_kv_heads}", dims, f"p{self.page_size}"]
        parts += ["window" if self.windowed else "full", self.mask_mode.name]
        return "-".join([*parts, "rope"] if self.rotary else parts)

    @property
    def most_rows(self) -> int | None:
        """Rows that a request may have because of the mask mode; None: no limit."""
        return 32 if self.mask_mode is BITS else None


# Every pair of values of two columns appears in some row: 3 dtypes, 4 head layouts (multi-head, groups
# of 2 and 3, multi-query), 6 head dims, 4 page sizes, window, 3 mask modes, rotary. 24 rows are
# the fewest there can be (6 head dims x 4 page sizes). The first is the simplest, for shrinking.
_PAIRWISE: tuple[tuple[str, int, int, int, int, int, bool, MaskMode, float | None], ...] = (
    ("float32", 2, 2, 16, 16, 1, False, FULL, None),
    ("float16", 4, 1, 16, 16, 64, True, QLEN, ROPE),
    ("float32", 6, 2, 64, 32, 64, False, FULL, ROPE),
    ("bfloat16", 6, 2, 32, 32, 16, True, BITS, None),
    ("float32", 4, 1, 128, 128, 16, True, FULL, ROPE),
    ("float16", 4, 2, 64, 32, 16, False, QLEN, None),
    ("float16", 2, 2, 96, 96, 16, True, FULL, None),
    ("float16", 2, 2, 64, 64, 64, True, BITS, ROPE),
    ("bfloat16", 2, 2, 128, 128, 64, False, QLEN, None),
    ("float32", 6, 2, 16, 16, 16, True, QLEN, None),
    ("float32", 4, 2, 32, 32, 64, False, FULL, ROPE),
    ("bfloat16", 4, 2, 16, 16, 2, False, BITS, ROPE),
    ("bfloat16", 4, 1, 32, 32, 2, True, QLEN, ROPE),
    ("bfloat16", 4, 1, 96, 96, 64, False, FULL, None),
    ("float32", 6, 2, 96, 96, 1, True, QLEN, ROPE),
    ("bfloat16", 4, 1, 64, 32, 1, True, BITS, ROPE),
    ("float16", 6, 2, 128, 128, 2, False, QLEN, None),
    ("float32", 4, 2, 64, 64, 16, True, FULL, None),
    ("float16", 2, 2, 32, 32, 1, False, QLEN, None),
    ("float32", 4, 2, 96, 96, 2, True, BITS, ROPE),
    ("float16", 2, 2, 64, 32, 2, True, FULL, ROPE),
    ("float32", 4, 1, 64, 64, 2, False, FULL, None),
    ("bfloat16", 6, 2, 64, 64, 1, False, QLEN, None),
    ("float32", 4, 2, 128, 128, 1, False, BITS, ROPE),
)

# Sizes that people serve; too slow for a laptop's quick run.
_SERVED: tuple[tuple[str, int, int, int, int, int, bool, MaskMode, float | None], ...] = (
    ("bfloat16", 32, 8, 128, 128, 16, False, FULL, ROPE),
    ("bfloat16", 16, 2, 128, 128, 1, True, FULL, ROPE),
    ("float16", 8, 1, 256, 256, 64, True, QLEN, ROPE),
    ("bfloat16", 8, 8, 192, 128, 32, False, FULL, ROPE),
    ("float16", 12, 12, 64, 64, 128, False, BITS, None),
    ("bfloat16", 5, 1, 80, 80, 1, False, QLEN, ROPE),
)

GROUPS = tuple(ShapeGroup(*row) for row in _PAIRWISE)
SERVED_GROUPS = tuple(ShapeGroup(*row) for row in _SERVED)
