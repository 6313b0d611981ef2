"""A small language model as plain data: what an engine of ours and its oracle both run.

Token embeddings x of `width` lanes. norm(x) = x / sqrt(mean(x^2) + 2^-20) times a weight a lane. In
each layer x += attention(norm(x) Q, norm(x) K, norm(x) V) O, then with h = norm(x)
x += (act(h G) * h U) D; with `post_norm` what is added goes through a norm of its own first. Logits are
norm(x) H, of which `final_softcap` makes final_softcap * tanh(. / final_softcap).

Attention has `heads` query heads, each of head_dim lanes, and `kv_heads` heads of keys and of values,
v_head_dim lanes, that groups of query heads share. With `qkv_bias` a bias is added to queries, keys and
values; with `qk_norm` each head of q and k then goes through a norm. The first `rotary_lanes` of q and k
are turned to their logical index: pair i by index * rotary ** (-2i / rotary_lanes) radians, where a pair is lane i and lane i + rotary_lanes/2, or with `interleaved` lanes 2i and
2i + 1. A score is scale * q.k, of which `softcap` makes softcap * tanh(. / softcap); from a key at p a query
at t takes slope * (t - p) off. A layer with a window of W reads, from logical index t, the indices
t - W < p <= t. A sink is one more score, without a value. Keys, once turned, and values may be kept as
codes, and are read as code * scale of their head. Rows are multiplied from the left.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta
from msgspec.structs import replace

from treeproof.contract.counter import address_hash, hash_words
from treeproof.contract.shape import KVDtype
from treeproof.contract.typed import Typed

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

NORM_FLOOR = 2.0**-20

Count = Annotated[int, Meta(ge=1)]
Scale = Annotated[float, Meta(gt=0)]
Base = Annotated[float, Meta(gt=1)]
Cap = Annotated[float, Meta(gt=0)]


class Codes(Typed, frozen=True, kw_only=True):
    """What keys and values are kept as: the nearest code, ties to the even one, and beyond the last the
    last one. Scales are one a key-value head."""

    dtype: KVDtype
    k_scale: tuple[Scale, ...]
    v_scale: tuple[Scale, ...]


class TargetModel(Typed, frozen=True, kw_only=True):
    """Sizes, features and the seed of the weights; every weight is a float32 number.

    Raises ValueError naming the field where the sizes do not fit each other.
    """

    vocab_size: Count = 61
    width: Count = 32
    heads: Count = 2
    kv_heads: Count = 2
    head_dim: Count = 16
    v_head_dim: Count = 16
    layers: Count = 2
    hidden: Count = 48
    activation: Literal["silu", "gelu"] = "silu"
    """act; gelu is the one with a tanh."""
    rotary: Base | None = 100.0
    """Base of the rotation; None: nothing is turned."""
    windowed_rotary: Base | None = None
    """The base in layers with a window; None: as in the others."""
    rotary_lanes: int | None = None
    """None: all of a head."""
    interleaved: bool = False
    angles: Literal["float64", "float32"] = "float64"
    """What angles are taken in, by those who run the model."""
    windows: tuple[Count | None, ...] = ()
    """Width of each layer's window, None where it has none; empty: no layer has one."""
    scale: Cap | None = None
    """None: head_dim ** -0.5."""
    softcap: Cap | None = None
    final_softcap: Cap | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norm: bool = False
    sinks: tuple[float, ...] = ()
    """One a query head, in every layer; empty: none."""
    slopes: tuple[float, ...] = ()
    """Of ALiBi, one a query head; empty: none."""
    codes: Codes | None = None
    """None: keys and values are kept as they are."""
    seed: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads is {self.heads}: accepted are multiples of kv_heads {self.kv_heads}"
            )
        turned = self.turned_lanes
        if turned % 2 or not 0 <= turned <= self.head_dim:
            name = "head_dim" if self.rotary_lanes is None else "rotary_lanes"
            raise ValueError(
                f"{name} is {turned}: accepted are even numbers, rotary_lanes up to head_dim"
            )
        held = () if self.codes is None else (self.codes.k_scale, self.codes.v_scale)
        for name, values, of, count in (
            ("windows", self.windows, "layer", self.layers),
            ("sinks", self.sinks, "query head", self.heads),
            ("slopes", self.slopes, "query head", self.heads),
            *(("codes", scales, "key-value head", self.kv_heads) for scales in held),
        ):
            if values and len(values) != count:
                raise ValueError(
                    f"{name} has {len(values)} entries: accepted are one a {of}, {count}, and none"
                )

    @property
    def turned_lanes(self) -> int:
        """Lanes of a head, from its first, that are turned to their index."""
        if self.rotary is None:
            return 0
        return self.head_dim if self.rotary_lanes is None else self.rotary_lanes

    @property
    def score_scale(self) -> float:
        return self.head_dim**-0.5 if self.scale is None else self.scale

    def window(self, layer: int) -> int | None:
        """Keys that a row of this layer reads at most, its own included; None: all."""
        return self.windows[layer] if self.windows else None

    def base(self, layer: int) -> float | None:
        """Base of the rotation in this layer."""
        if self.window(layer) is not None and self.windowed_rotary is not None:
            return self.windowed_rotary
        return self.rotary

    @property
    def bare(self) -> TargetModel:
        """The model of the same weights and turns, whatever its attention adds and its cache holds."""
        return replace(self, sinks=(), slopes=(), codes=None)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each weight: (rows, columns) of a matrix, (lanes,) of a norm's or a bias."""
        width, keys = self.width, self.kv_heads * self.head_dim
        queries, values = self.heads * self.head_dim, self.kv_heads * self.v_head_dim
        found: dict[str, tuple[int, ...]] = {
            "embed": (self.vocab_size, width), "head": (width, self.vocab_size), "norm": (width,),
        }  # fmt: skip
        for i in range(self.layers):
            found |= {
                f"q{i}": (width, queries), f"k{i}": (width, keys), f"v{i}": (width, values),
                f"o{i}": (self.heads * self.v_head_dim, width), f"gate{i}": (width, self.hidden),
                f"up{i}": (width, self.hidden), f"down{i}": (self.hidden, width),
                f"attend_norm{i}": (width,), f"inner_norm{i}": (width,),
            }  # fmt: skip
            if self.qkv_bias:
                found |= {f"q_bias{i}": (queries,), f"k_bias{i}": (keys,), f"v_bias{i}": (values,)}
            if self.qk_norm:
                found |= {f"q_norm{i}": (self.head_dim,), f"k_norm{i}": (self.head_dim,)}
            if self.post_norm:
                found |= {f"attended_norm{i}": (width,), f"carried_norm{i}": (width,)}
        return found


def weights(model: TargetModel) -> dict[str, npt.NDArray[np.float64]]:
    """Every weight by name. Uniform: of a matrix with a variance of about 1 / rows, of `embed` 1/3, of a
    bias 1/48, and those of a norm from 3/4 to 5/4."""
    return _drawn(model.bare)


@lru_cache(maxsize=16)
def _drawn(model: TargetModel) -> dict[str, npt.NDArray[np.float64]]:
    found = {}
    for number, (name, shape) in enumerate(model.shapes.items()):
        drawn = _uniform(math.prod(shape), model.seed, number).reshape(shape)
        if name == "embed":
            found[name] = drawn
        elif len(shape) == 2:
            # A power of two, so that 16 random bits stay exact.
            found[name] = drawn * 2.0 ** round(math.log2(math.sqrt(3 / shape[0])))
        else:
            found[name] = drawn / 4 + ("norm" in name)
    return found


def _uniform(count: int, seed: int, *address: int) -> npt.NDArray[np.float64]:
    """Numbers of 16 bits between -1 and 1, never 0."""
    import numpy as np

    words = hash_words(address_hash(seed, *address), np.arange(count, dtype=np.uint64))
    kept: npt.NDArray[np.float64] = (words & np.uint64(0xFFFF)).astype(np.float64)
    return (kept - 32767.5) / 32768
