"""The attention layer of a case: heads, dims, how scores are made, dtypes, and what a row may see."""

from __future__ import annotations

import math
from typing import Annotated, Literal, get_args

import msgspec

from treeproof.contract.typed import Typed

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
KVDtype = Literal["float8_e4m3fn", "int8"]
KV_DTYPES: tuple[KVDtype, ...] = get_args(KVDtype)
"""What a quantised cache may hold; values are `code * scale`, with a scale a KV head."""
MAX_WIDTH = 1 << 21
"""Twice the longest prefix: wide enough to cut nothing."""


class Full(Typed, frozen=True, kw_only=True, tag="full", tag_field="kind"):
    """Every row sees the whole prefix, its ancestors and itself."""


class Window(Typed, frozen=True, kw_only=True, tag="window", tag_field="kind"):
    """A sliding window of `width` keys, the query's own included.

    Key at logical index p is visible from logical index t iff `t - width < p <= t`.
    """

    width: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.width <= MAX_WIDTH:
            raise ValueError(f"width is {self.width}: accepted are 1 to {MAX_WIDTH}")


class AttentionShape(Typed, frozen=True, kw_only=True):
    """The layer: heads, head dims, how scores are made, window, rotary base and dtypes.

    The logit of a key at logical index p for a query at t = P + depth, head h, is
    `softcap * tanh(scale * q.k / softcap) - slope[h] * (t - p)`, without the softcap where it is
    None and without the slope where `alibi` is false. `scale` None means `head_dim ** -0.5`. With
    `sinks` each query head has one more logit, which joins the sum that weights are divided by and
    has no value. `rotary` None means no rotary embedding, otherwise it is the base of the rotation,
    applied to q and k over all of an even `head_dim` (half split). `kv_dtype` None means that the
    cache holds K and V in `dtype`; otherwise it holds codes, to be multiplied by the scale of their
    KV head (`k_scale`, `v_scale` of `VerifyInput`, where `sinks` and `alibi_slopes` are as well).
    """

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: Annotated[str, msgspec.Meta(extra_json_schema={"enum": list(DTYPES)})] = "float32"
    scale: float | None = None
    rotary: float | None = None
    visibility: Full | Window = msgspec.field(default_factory=Full)
    softcap: float | None = None
    sinks: bool = False
    alibi: bool = False
    kv_dtype: Annotated[
        str | None, msgspec.Meta(extra_json_schema={"enum": [None, *KV_DTYPES]})
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least, most in (
            ("num_q_heads", 1, 256),
            ("num_kv_heads", 1, 256),
            ("head_dim", 8, 1024),
            ("v_head_dim", 8, 1024),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}: accepted are {least} to {most}")
        if self.num_q_heads % self.num_kv_heads:
            raise ValueError(
                f"num_q_heads is {self.num_q_heads}: accepted are multiples of num_kv_heads "
                f"{self.num_kv_heads}"
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}: accepted are {', '.join(DTYPES)}")
        if self.scale is not None and not 0 < self.scale < math.inf:
            raise ValueError(f"scale is {self.scale}: accepted are finite numbers above 0")
        if self.softcap is not None and not 0 < self.softcap < math.inf:
            raise ValueError(f"softcap is {self.softcap}: accepted are finite numbers above 0")
        if self.kv_dtype is not None and self.kv_dtype not in KV_DTYPES:
            raise ValueError(
                f"kv_dtype is {self.kv_dtype!r}: accepted are None, {', '.join(KV_DTYPES)}"
            )
        if self.rotary is not None:
            if not 1 < self.rotary < math.inf:
                raise ValueError(f"rotary is {self.rotary}: accepted are finite bases above 1")
            if self.head_dim % 2:
                raise ValueError(f"head_dim is {self.head_dim}: rotary needs an even one")

    @property
    def score_scale(self) -> float:
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def window(self) -> int | None:
        """Width of the sliding window in keys, own key included; None where there is none."""
        return self.visibility.width if isinstance(self.visibility, Window) else None

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_q_heads // self.num_kv_heads
