"""What the path oracle says about one request, and the inputs it accepts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.contract.case import AttentionShape
from treeproof.contract.tree import CandidateTree


@dataclass(frozen=True)
class PathResult:
    """Attention of every node of one request, in node order.

    N nodes, Hq query heads, Dv the head dim of values; p are the softmax weights of the visible
    keys. float64 unless said otherwise.
    """

    out: Tensor
    """(N, Hq, Dv): sum of p * v."""
    lse: Tensor
    """(N, Hq): natural log of the sum of exp(score)."""
    weight: Tensor
    """(N, Hq, Dv): sum of p * |v|, what rounding errors of p and v are multiplied by."""
    abs_v: Tensor
    """(N, Hq, Dv): sum of |v| over the visible keys."""
    score_abs: Tensor
    """(N, Hq): largest over the visible keys of scale * sum of |q| * |k|."""
    score_max: Tensor
    """(N, Hq): largest score, scale included."""
    visible: Tensor
    """(N,) int64: number of visible keys, the node's own included."""


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
