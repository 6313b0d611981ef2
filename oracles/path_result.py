"""What the path oracle says, and the inputs it accepts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.contract.case import AttentionShape
from treeproof.contract.inputs import LayerParameters
from treeproof.contract.tree import CandidateTree

PLAIN_LAYER = LayerParameters()
"""That of a layer without sinks, ALiBi and quantised cache."""


@dataclass(frozen=True)
class PathResult:
    """Attention of every node, in node order; of a batch, one request after the other.

    N nodes, Hq query heads, Dv the head dim of values. A logit is what `AttentionShape` says it is;
    p are the softmax weights of the visible keys, a sink having taken its part. Numbers of K and V
    are those that the cache gives back. float64 unless said otherwise.
    """

    out: Tensor
    """(N, Hq, Dv): sum of p * v."""
    lse: Tensor
    """(N, Hq): natural log of the sum of exp(logit) over the visible keys."""
    lse_sink: Tensor
    """(N, Hq): the same with exp(sink) in the sum; equal to `lse` where there is no sink."""
    weight: Tensor
    """(N, Hq, Dv): sum of p * |v|, what rounding errors of p and v are multiplied by."""
    abs_v: Tensor
    """(N, Hq, Dv): sum of |v| over the visible keys."""
    score_abs: Tensor
    """(N, Hq): largest over the visible keys of scale * sum of |q| * |k|."""
    score_max: Tensor
    """(N, Hq): largest logit of a visible key or of the sink."""
    bias_abs: Tensor
    """(N, Hq): largest magnitude of what is added to a score, or is a logit by itself: a sink."""
    visible: Tensor
    """(N,) int64: number of visible keys, the node's own included."""

    def of(self, nodes: slice) -> PathResult:
        """The result of some of the nodes."""
        return PathResult(**{name: field[nodes] for name, field in vars(self).items()})


def check_inputs(
    tree: CandidateTree,
    prefix_len: int,
    shape: AttentionShape,
    *tensors: Tensor,
) -> None:
    """Raise ValueError naming the first of q, k_prefix, v_prefix, k_tree and v_tree that is unfit.

    The oracle is the truth of everything else: a tensor of a wrong shape must not broadcast into a
    plausible answer.
    """
    n, heads = len(tree), shape.num_kv_heads
    expected = {
        "q": (n, shape.num_q_heads, shape.head_dim),
        "k_prefix": (prefix_len, heads, shape.head_dim),
        "v_prefix": (prefix_len, heads, shape.v_head_dim),
        "k_tree": (n, heads, shape.head_dim),
        "v_tree": (n, heads, shape.v_head_dim),
    }
    dtype = getattr(torch, shape.dtype)
    for (name, size), given in zip(expected.items(), tensors, strict=True):
        if tuple(given.shape) != size:
            raise ValueError(f"{name} has shape {tuple(given.shape)}: accepted is {size}")
        if given.dtype != dtype:
            raise ValueError(f"{name} is {given.dtype}: accepted is {dtype}, the dtype of the case")


def check_layer(shape: AttentionShape, layer: LayerParameters) -> None:
    """Raise ValueError naming the first parameter that the shape needs and the layer does not have."""
    needed: dict[str, tuple[int, ...]] = {}
    if shape.sinks:
        needed["sinks"] = (shape.num_q_heads,)
    if shape.alibi:
        needed["alibi_slopes"] = (shape.num_q_heads,)
    if shape.kv_dtype:
        needed["k_scale"] = needed["v_scale"] = (shape.num_kv_heads,)
    for name, size in needed.items():
        given = getattr(layer, name)
        if given is None or tuple(given.shape) != size:
            found = None if given is None else f"of shape {tuple(given.shape)}"
            raise ValueError(f"{name} is {found}: accepted is a tensor of shape {size}")
