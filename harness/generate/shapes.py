"""Shape groups: the values that a kernel is compiled for, in a short list that covers all pairs."""

from __future__ import annotations

from dataclasses import dataclass

from treeproof.contract.case import MaskMode

FULL, QLEN = MaskMode.FULL_MASK, MaskMode.QLEN_ONLY
BITS = MaskMode.QLEN_ONLY_BITPACKING
ROPE = 10_000.0
FP8, INT8 = "float8_e4m3fn", "int8"


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
    softcap: bool = False
    """Of these five, all but the scale are only in those cases of a group that are not plain."""
    sinks: bool = False
    alibi: bool = False
    custom_scale: bool = False
    kv_dtype: str | None = None

    @property
    def name(self) -> str:
        """Distinct for each group, e.g. float16-4x1-d16-p64-window-QLEN_ONLY-rope."""
        dims = f"d{self.head_dim}"
        if self.v_head_dim != self.head_dim:
            dims += f"v{self.v_head_dim}"
        parts = [self.dtype, f"{self.num_q_heads}x{self.num_kv_heads}", dims, f"p{self.page_size}"]
        parts += ["window" if self.windowed else "full", self.mask_mode.name]
        further = {
            "rope": self.rotary, "cap": self.softcap, "sinks": self.sinks, "alibi": self.alibi,
            "scale": self.custom_scale, str(self.kv_dtype): self.kv_dtype,
        }  # fmt: skip
        return "-".join([*parts, *(name for name, there in further.items() if there)])

    @property
    def most_rows(self) -> int | None:
        """Rows that a request may have because of the mask mode; None: no limit."""
        return 32 if self.mask_mode is BITS else None


_Row = tuple[
    str, int, int, int, int, int, bool, MaskMode, float | None, bool, bool, bool, bool, str | None
]

# Every pair of values of two columns appears in some row: 3 dtypes, 4 head layouts (multi-head, groups
# of 2 and 3, multi-query), 6 head dims, 4 page sizes, window, 3 mask modes, rotary, softcap, sinks,
# ALiBi, custom scale, 3 dtypes of the cache. 24 rows are the fewest there can be (6 head dims x 4 page
# sizes). The first is the simplest, for shrinking.
_PAIRWISE: tuple[_Row, ...] = (
    ("float32", 2, 2, 16, 16, 1, False, FULL, None, False, False, False, False, None),
    ("float16", 4, 1, 16, 16, 64, True, QLEN, ROPE, True, False, False, False, INT8),
    ("float32", 6, 2, 64, 32, 64, False, FULL, ROPE, False, True, True, False, FP8),
    ("bfloat16", 6, 2, 32, 32, 16, True, BITS, None, True, False, False, False, None),
    ("float32", 4, 1, 128, 128, 16, True, FULL, ROPE, True, False, False, False, None),
    ("float16", 4, 2, 64, 32, 16, False, QLEN, None, True, False, True, True, INT8),
    ("float16", 2, 2, 96, 96, 16, True, FULL, None, True, True, False, True, None),
    ("float16", 2, 2, 64, 64, 64, True, BITS, ROPE, True, False, True, False, INT8),
    ("bfloat16", 2, 2, 128, 128, 64, False, QLEN, None, False, True, True, True, None),
    ("float32", 6, 2, 16, 16, 16, True, QLEN, None, True, True, False, True, FP8),
    ("float32", 4, 2, 32, 32, 64, False, FULL, ROPE, False, False, False, True, INT8),
    ("bfloat16", 4, 2, 16, 16, 2, False, BITS, ROPE, False, True, True, False, None),
    ("bfloat16", 4, 1, 32, 32, 2, True, QLEN, ROPE, False, True, False, True, FP8),
    ("bfloat16", 4, 1, 96, 96, 64, False, FULL, None, False, True, False, False, None),
    ("float32", 6, 2, 96, 96, 1, True, QLEN, ROPE, False, True, True, False, INT8),
    ("bfloat16", 4, 1, 64, 32, 1, True, BITS, ROPE, True, True, True, False, None),
    ("float16", 6, 2, 128, 128, 2, False, QLEN, None, True, False, False, True, INT8),
    ("float32", 4, 2, 64, 64, 16, True, FULL, None, False, True, True, True, FP8),
    ("float16", 2, 2, 32, 32, 1, False, QLEN, None, False, False, True, False, FP8),
    ("float32", 4, 2, 96, 96, 2, True, BITS, ROPE, False, False, False, True, FP8),
    ("float16", 2, 2, 64, 32, 2, True, FULL, ROPE, False, False, False, True, FP8),
    ("float32", 4, 1, 64, 64, 2, False, FULL, None, False, False, False, False, None),
    ("bfloat16", 6, 2, 64, 64, 1, False, QLEN, None, False, True, True, True, INT8),
    ("float32", 4, 2, 128, 128, 1, False, BITS, ROPE, True, True, True, False, FP8),
)

# Sizes that people serve; too slow for a laptop's quick run.
_SERVED: tuple[_Row, ...] = (
    ("bfloat16", 32, 8, 128, 128, 16, False, FULL, ROPE, False, False, False, False, None),
    ("bfloat16", 16, 2, 128, 128, 1, True, FULL, ROPE, False, True, False, False, FP8),
    ("float16", 8, 1, 256, 256, 64, True, QLEN, ROPE, True, False, False, True, None),
    ("bfloat16", 8, 8, 192, 128, 32, False, FULL, ROPE, False, False, False, True, None),
    ("float16", 12, 12, 64, 64, 128, False, BITS, None, False, False, True, False, INT8),
    ("bfloat16", 5, 1, 80, 80, 1, False, QLEN, ROPE, True, True, False, False, FP8),
)

GROUPS = tuple(ShapeGroup(*row) for row in _PAIRWISE)
SERVED_GROUPS = tuple(ShapeGroup(*row) for row in _SERVED)
