"""Backends `flex-attention` and `flex-attention-compiled`: torch's FlexAttention, the tree as a `mask_mod`.

One call for a batch, unless it has too many scores: the keys are the prefix slots of all requests and
then all verify rows, and the mask keeps requests apart. The mask is read in whichever of the three layouts it has;
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
from treeproof.backends.adapters.tree_mask import owner, tree_cells
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
_SCORES = 1 << 26
"""Scores of one call, unless one request alone has more: 256 MiB in float32."""

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
    keys, cells = _keys(x), tree_cells(x)
    done = []
    for rows, prefix in _parts(x, keys):
        own = keys.of(rows, prefix)
        at = at_slots(keys.slots[prefix], x.kv)
        k_own, v_own = torch.cat([k_cache[at], k[rows]]), torch.cat([v_cache[at], v[rows]])
        done.append(_attend_part(flex, x, q[rows], k_own, v_own, rows, own, cells[rows]))
    out, lse = (torch.cat(pieces) for pieces in zip(*done, strict=True))
    return Attended(out=out, lse=lse)


def _attend_part(
    flex: Callable[..., Any],
    x: VerifyInput,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: slice,
    keys: _Keys,
    cells: Tensor,
) -> tuple[Tensor, Tensor]:
    """`q` (R, Hq, D), `k` and `v` (L, Hkv, lanes), `cells` (R, Nmax): out (R, Hq, Dv) and lse (R, Hq)."""
    positions = x.positions[rows]
    visible = _visible(positions, keys, cells, x.shape.window)
    if x.sinks is not None:
        visible = pad(visible, (0, 1), value=True)
        k, v = (pad(t, (0, 0, 0, 0, 0, 1)) for t in (k, v))

    def mask_mod(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return visible[row, key]

    out, aux = flex(
        _batched(q),
        _batched(k),
        _batched(v),
        score_mod=_score_mod(x, positions, keys),
        block_mask=create_block_mask(mask_mod, None, None, len(q), len(k), device=q.device),
        scale=x.shape.score_scale,
        enable_gqa=True,
        return_aux=AuxRequest(lse=True),
    )
    return out[0].transpose(0, 1), aux.lse[0].transpose(0, 1)


def _batched(t: Tensor) -> Tensor:
    """(rows, heads, D) to (1, heads, rows, D)."""
    return t.transpose(0, 1)[None]


@dataclass(frozen=True)
class _Keys:
    """L keys: those of the prefixes, request by request, then verify rows."""

    slots: Tensor  # (L - rows,) of the prefix keys
    request: Tensor  # (L,)
    index: Tensor  # (L,) logical index
    column: Tensor  # (L,) column in the tree block of the mask; -1 in the prefix

    def of(self, rows: slice, prefix: slice) -> _Keys:
        """Those of some requests: prefix keys `prefix`, and verify rows `rows`."""
        behind = len(self.slots)
        own = slice(behind + rows.start, behind + rows.stop)
        picked = (torch.cat([t[prefix], t[own]]) for t in (self.request, self.index, self.column))
        return _Keys(self.slots[prefix], *picked)


def _keys(x: VerifyInput) -> _Keys:
    assert x.kv_indptr is not None
    assert x.kv_indices is not None
    of_row, local_row = owner(x.qo_indptr, len(x.draft_token))
    request, column = owner(x.kv_indptr, int(x.kv_indptr[-1]))
    if x.shape.window is not None:
        # Slots before the root's window may have been given back: no row reaches them.
        held = column > x.kv_indptr.diff()[request] - x.shape.window
        request, column = request[held], column[held]
    return _Keys(
        slots=x.kv_indices[x.kv_indptr[request] + column],
        request=torch.cat([request, of_row]),
        index=torch.cat([column, x.positions]),
        column=torch.cat([torch.full_like(column, -1), local_row]),
    )


def _parts(x: VerifyInput, keys: _Keys) -> Iterator[tuple[slice, slice]]:
    """Verify rows and prefix keys of as many requests at a time as have few enough scores: an eager call
    computes those of each row with each key, whosever it is."""
    prefix = keys.request[: len(keys.slots)]
    bounds = torch.searchsorted(prefix, torch.arange(len(x.qo_indptr), device=prefix.device))
    row_at, key_at = torch.stack([x.qo_indptr, bounds]).tolist()
    first, heads = 0, x.shape.num_q_heads
    for end in range(1, len(row_at)):
        following = min(end + 1, len(row_at) - 1)
        rows, columns = row_at[following] - row_at[first], key_at[following] - key_at[first]
        if end == following or rows * (columns + rows) * heads > _SCORES:
            yield slice(row_at[first], row_at[end]), slice(key_at[first], key_at[end])
            first = end


def _visible(positions: Tensor, keys: _Keys, cells: Tensor, window: int | None) -> Tensor:
    """(R, L) bool: own request, in the prefix or set in the mask, and inside the window."""
    same = keys.request[-len(positions) :, None] == keys.request
    visible = same & ((keys.column < 0) | cells[:, keys.column.clamp(min=0)])
    if window is not None:
        visible &= keys.index > positions[:, None] - window
    return visible


def _score_mod(x: VerifyInput, positions: Tensor, keys: _Keys) -> Callable[..., Tensor] | None:
    """What becomes of a scaled score: capped, biased, and at the last key the sink instead."""
    cap, slopes, sinks = x.shape.softcap, x.alibi_slopes, x.sinks
    if cap is None and slopes is None and sinks is None:
        return None
    # Captured as tensors, numbers are no part of what is compiled.
    limit = positions.new_tensor(cap or 1.0, dtype=torch.float32)
    last = positions.new_tensor(len(keys.index))
    index = pad(keys.index, (0, 1))

    def score_mod(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        if cap is not None:
            score = limit * torch.tanh(score / limit)
        if slopes is not None:
            score = score - slopes[head] * (positions[row] - index[key])
        if sinks is not None:
            score = torch.where(key == last, sinks[head], score)
        return score

    return score_mod
