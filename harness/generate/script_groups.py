"""Script groups: what a small model is made of and its caches lie in, in a list that covers all pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from treeproof.contract.case import AttentionShape, Full, Window
from treeproof.contract.shape import Dtype, KVDtype

Sees = Literal["all", "window", "window, pages given back"]
_ALL: Sees = "all"
_WINDOW: Sees = "window"
_EVICTED: Sees = "window, pages given back"
_INT8: KVDtype = "int8"
_FP8: KVDtype = "float8_e4m3fn"

WIDTH = 5
"""Of a window: short, so that a prompt is longer and a tree may be."""
_ROTARY = 100.0
_SOFTCAP = 4.0

Heads = tuple[int, int, int, int]
"""Query heads, key-value heads, lanes of keys and of values."""
_EACH: Heads = (2, 2, 16, 16)
_ONE: Heads = (4, 1, 16, 16)
_TWO: Heads = (4, 2, 16, 24)


@dataclass(frozen=True)
class ScriptGroup:
    """Values that all scripts of a group have; all else is drawn script by script."""

    page_size: int
    dtype: Dtype
    sees: Sees
    """A window without its pages given back is in every other layer, with full ones between."""
    kv_dtype: KVDtype | None
    heads: Heads
    softcap: bool
    sinks: bool
    alibi: bool
    ends: bool
    """Requests come to an end by themselves: at a limit, or a stop token, inside what a round emits."""

    @property
    def evicted(self) -> bool:
        return self.sees == _EVICTED

    @property
    def shape(self) -> AttentionShape:
        q_heads, kv_heads, lanes, v_lanes = self.heads
        return AttentionShape(
            num_q_heads=q_heads,
            num_kv_heads=kv_heads,
            head_dim=lanes,
            v_head_dim=v_lanes,
            dtype=self.dtype,
            rotary=_ROTARY,
            visibility=Full() if self.sees == _ALL else Window(width=WIDTH),
            softcap=_SOFTCAP if self.softcap else None,
            sinks=self.sinks,
            alibi=self.alibi,
            kv_dtype=self.kv_dtype,
        )


# Every pair of values of two columns appears in some row. 12 rows are the fewest there can be (4 page
# sizes x 3 dtypes). Weights are kept by head layout, of which there are few.
_PAIRWISE: tuple[tuple[int, Dtype, Sees, KVDtype | None, Heads, bool, bool, bool, bool], ...] = (
    (1, "float32", _ALL, None, _EACH, False, False, False, False),
    (1, "bfloat16", _EVICTED, _INT8, _ONE, True, False, True, True),
    (1, "float16", _WINDOW, _FP8, _TWO, False, True, False, True),
    (2, "float32", _EVICTED, _FP8, _EACH, True, False, True, False),
    (2, "bfloat16", _WINDOW, None, _ONE, True, True, False, True),
    (2, "float16", _ALL, _INT8, _TWO, False, True, True, False),
    (4, "float32", _WINDOW, _INT8, _TWO, True, False, True, True),
    (4, "bfloat16", _ALL, _FP8, _EACH, False, True, False, True),
    (4, "float16", _EVICTED, None, _ONE, False, True, False, False),
    (16, "float32", _ALL, _FP8, _ONE, True, True, False, True),
    (16, "bfloat16", _EVICTED, None, _TWO, False, True, True, False),
    (16, "float16", _WINDOW, _INT8, _EACH, True, False, False, False),
)

SCRIPT_GROUPS = tuple(ScriptGroup(*row) for row in _PAIRWISE)
