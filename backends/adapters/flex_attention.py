"""Backends `flex-attention` and `flex-attention-compiled`: torch's FlexAttention, the tree as a `mask_mod`.

A batch of requests a call: the keys of each are its prefix slots and then its verify rows, padded to the
most of them. The mask is read in whichever of the three layouts it has;
a window is cut by logical index, that of a verify row being its position. Softcap and ALiBi are a
`score_mod`, and sinks one key more, whose value is 0 and whose score is the sink.

Eager on the CPU and on CUDA, compiled on CUDA: scores and softmax in float32, weights rounded to the
dtype of the inputs before the second product; the log-sum-exp comes in natural log, float32.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from treeproof.backends.adapters import tree_mask
from treeproof.backends.adapters.tree_mask import tree_cells
from treeproof.backends.reference.store import at_slots, store_kv
from treeproof.contract.backend import BackendUnavailable
from treeproof.contract.capabilities import Capabilities, Device, Numerics
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.contract.registry import register
from treeproof.contract.shape import DTYPES, Dtype

try:
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
except ImportError as error:
    raise BackendUnavailable(
        f"torch {torch.__version__} has no FlexAttention that returns its log-sum-exp; "
        "pip install 'torch>=2.9'"
    ) from error

_CLASSES = 4096
_SCORES = 1 << 28
"""Scores of one call, unless one request alone has more: 1 GiB in float32."""
_ANY_LENGTH = 256
"""Prefix keys that a request may be filled up by for less than what a call of its own would cost."""

READS = tree_mask.READS | {"positions", "out_cache_loc", "kv_indices", "sinks", "alibi_slopes"}


def _capabilities(
    *devices: Device, dtypes: Set[Dtype] = frozenset(DTYPES), head_dims: Set[int] | None = None
) -> Capabilities:
    return Capabilities(
        dtypes=dtypes,
        head_dims=head_dims,
        # A hidden value is multiplied by a weight of 0, and 0 * NaN is NaN.
        nan_safe=False,
        tree_kv="operand",
        cache_layouts={"NHD", "HND", "layered", "interleaved"},
        devices=frozenset(devices),
        softcap=True,
        sinks=True,
        alibi=True,
        lse_includes_sink=True,
    )


@register(
    "flex-attention",
    consumes=READS,
    capabilities=_capabilities("cpu", "cuda"),
    numerics=Numerics(p="input"),
    kernels={"FlexAttention*"},
)
def attend(
    x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor
) -> Attended:
    """Prefix keys from the cache, the verify rows' own from `k` and `v`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        return _attend(flex_attention, x, q, k, v, k_cache, v_cache)


@register(
    "flex-attention-compiled",
    consumes=READS,
    # Inductor refuses narrower heads, and has no configuration for 128 lanes of float32 on an H200.
    capabilities=_capabilities(
        "cuda", dtypes={"bfloat16", "float16"}, head_dims=frozenset(range(16, 257))
    ),
    numerics=Numerics(p="input"),
    kernels={"triton_*flex*|triton_tem*"},
)
def attend_compiled(
    x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor
) -> Attended:
    """The same by `torch.compile`, as people serve it; each class of shapes is compiled once."""
    # A class of shapes is a compilation, and there are more of them than one function may have.
    with torch._dynamo.config.patch(recompile_limit=_CLASSES):
        return _attend(_compiled(), x, q, k, v, k_cache, v_cache)


@functools.cache
def _compiled() -> Callable[..., Any]:
    # A break in the graph would run the rest in plain torch.
    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=True, fullgraph=True)
    return compiled


def _attend(
    flex: Callable[..., Any],
    x: VerifyInput,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
) -> Attended:
    store_kv(x, k, v, k_cache, v_cache)
    assert x.kv_indptr is not None
    out = q.new_empty(*q.shape[:2], v.shape[2])
    lse = q.new_empty(q.shape[:2], dtype=torch.float32)
    cells = tree_cells(x)
    counts, prefixes = torch.stack([x.qo_indptr.diff(), x.kv_indptr.diff()]).tolist()
    for requests in _parts(counts, prefixes, x.shape.window, x.shape.num_q_heads):
        of = torch.tensor(requests, device=q.device)
        rows, is_row = _rows(x, of)
        keys = _keys(x, of, rows, is_row)
        at = at_slots(keys.slots, x.kv)
        k_all, v_all = (
            torch.cat([cache[at], own[rows]], dim=1) for cache, own in ((k_cache, k), (v_cache, v))
        )
        found, found_lse = _call(
            flex, x, q[rows], k_all, v_all, keys, _visible(x, rows, keys, cells)
        )
        out[rows[is_row]], lse[rows[is_row]] = found[is_row], found_lse[is_row]
    return Attended(out=out, lse=lse)


def _call(
    flex: Callable[..., Any],
    x: VerifyInput,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: _Keys,
    visible: Tensor,
) -> tuple[Tensor, Tensor]:
    """`q` (n, R, Hq, D), `k` and `v` (n, L, Hkv, lanes), `visible` (n, R, L): out and lse (n, R, Hq)."""
    if x.sinks is not None:
        visible = pad(visible, (0, 1), value=True)
        k, v = (pad(t, (0, 0, 0, 0, 0, 1)) for t in (k, v))

    def mask_mod(request: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return visible[request, row, key]

    requests, rows, columns = visible.shape
    mask = create_block_mask(mask_mod, requests, None, rows, columns, device=q.device)
    out, aux = flex(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        score_mod=_score_mod(x, keys),
        block_mask=mask,
        scale=x.shape.score_scale,
        enable_gqa=True,
        return_aux=AuxRequest(lse=True),
    )
    return out.transpose(1, 2), aux.lse.transpose(1, 2)


def _parts(
    rows: list[int], prefixes: list[int], window: int | None, heads: int
) -> Iterator[list[int]]:
    """Requests with about as many keys, none above twice the fewest of a part, and as many at a time as have few
    enough scores when all are padded to the most rows and keys among them."""
    reach = [min(prefix, window or prefix) for prefix in prefixes]
    part: list[int] = []
    most_rows = most_keys = 0
    for b in sorted(range(len(rows)), key=lambda b: reach[b] + rows[b]):
        most_rows, most_keys = max(most_rows, rows[b]), max(most_keys, reach[b])
        scores = (len(part) + 1) * heads * most_rows * (most_keys + most_rows)
        if part and (scores > _SCORES or reach[b] > 2 * reach[part[0]] + _ANY_LENGTH):
            yield part
            part, most_rows, most_keys = [], rows[b], reach[b]
        part.append(b)
    yield part


def _rows(x: VerifyInput, of: Tensor) -> tuple[Tensor, Tensor]:
    """(n, R) verify rows of the requests `of` (n,), padded with the root; and which of them are no padding."""
    counts = x.qo_indptr.diff()[of]
    row = torch.arange(int(counts.max()), device=of.device)
    is_row = row < counts[:, None]
    return x.qo_indptr[of, None] + row * is_row, is_row


@dataclass(frozen=True)
class _Keys:
    """L keys of each of n requests: C of its prefix, then its R verify rows."""

    slots: Tensor  # (n, C) of the prefix keys; the root's where there is none
    there: Tensor  # (n, L) bool: a key, and no padding
    index: Tensor  # (n, L) logical index


def _keys(x: VerifyInput, of: Tensor, rows: Tensor, is_row: Tensor) -> _Keys:
    assert x.kv_indptr is not None
    assert x.kv_indices is not None
    first, prefix = x.kv_indptr[of, None], x.kv_indptr.diff()[of, None]
    # Slots before the root's window may have been given back: no row reaches them.
    begin = prefix * 0 if x.shape.window is None else (prefix + 1 - x.shape.window).clamp(min=0)
    step = torch.arange(int((prefix - begin).max()), device=of.device)
    column = begin + step
    there = column < prefix
    # `kv_indices` is empty where all prefixes are.
    listed = pad(x.kv_indices, (0, 1))[torch.where(there, first + column, 0)]
    return _Keys(
        slots=torch.where(there, listed, x.out_cache_loc[rows[:, :1]]),
        there=torch.cat([there, is_row], dim=1),
        index=torch.cat([column, x.positions[rows]], dim=1),
    )


def _visible(x: VerifyInput, rows: Tensor, keys: _Keys, cells: Tensor) -> Tensor:
    """(n, R, L) bool: in the prefix or set in the mask, and inside the window; `cells` (T, Nmax)."""
    in_prefix = torch.ones_like(keys.slots, dtype=torch.bool)[:, None].expand(-1, rows.shape[1], -1)
    visible = (
        torch.cat([in_prefix, cells[rows][:, :, : rows.shape[1]]], dim=2) & keys.there[:, None]
    )
    if x.shape.window is not None:
        visible &= keys.index[:, None] > x.positions[rows][:, :, None] - x.shape.window
    return visible


def _score_mod(x: VerifyInput, keys: _Keys) -> Callable[..., Tensor] | None:
    """What becomes of a scaled score: capped, biased, and at the last key the sink instead."""
    cap, slopes, sinks = x.shape.softcap, x.alibi_slopes, x.sinks
    if cap is None and slopes is None and sinks is None:
        return None
    # Captured as tensors, numbers are no part of what is compiled.
    limit = x.positions.new_tensor(cap or 1.0, dtype=torch.float32)
    last = x.positions.new_tensor(keys.index.shape[1])
    index, own = pad(keys.index, (0, 1)), keys.index[:, keys.slots.shape[1] :]

    def score_mod(score: Tensor, request: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        if cap is not None:
            score = limit * torch.tanh(score / limit)
        if slopes is not None:
            score = score - slopes[head] * (own[request, row] - index[request, key])
        if sinks is not None:
            score = torch.where(key == last, sinks[head], score)
        return score

    return score_mod
