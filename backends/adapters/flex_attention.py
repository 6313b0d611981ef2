"""Backend `flex-attention`: torch's FlexAttention, with the tree as a `mask_mod`.

One call for the whole batch: the keys are the prefix slots of all requests and then all verify
rows, and the mask keeps requests apart. The mask is read in whichever of the three layouts it has;
a window is cut by logical index, that of a verify row being its position.

Eager, on the CPU and on CUDA: scores and softmax in float32, weights rounded to the dtype of the
inputs before the second product; the log-sum-exp comes in natural log, float32.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.backends.adapters import tree_mask
from treeproof.backends.adapters.tree_mask import owner, tree_cells
from treeproof.backends.reference.store import store_kv
from treeproof.contract.backend import BackendUnavailable
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.contract.registry import register

try:
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
except ImportError as error:
    raise BackendUnavailable(
        f"torch {torch.__version__} has no FlexAttention that returns its log-sum-exp; "
        "pip install 'torch>=2.9'"
    ) from error


@register(
    "flex-attention",
    consumes=tree_mask.READS | {"positions", "out_cache_loc", "kv_indices"},
    # A hidden value is multiplied by a weight of 0, and 0 * NaN is NaN.
    capabilities=Capabilities(nan_safe=False, tree_kv="operand"),
    numerics=Numerics(p="input"),
    kernels={"FlexAttention*"},
)
def attend(
    x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor
) -> Attended:
    """Prefix keys from the cache, the verify rows' own from `k` and `v`."""
    store_kv(x, k, v, k_cache, v_cache)
    keys = _keys(x)
    visible = _visible(x, keys)

    def mask_mod(batch: Tensor, head: Tensor, row: Tensor, key: Tensor) -> Tensor:
        return visible[row, key]

    k_all, v_all = torch.cat([k_cache[keys.slots], k]), torch.cat([v_cache[keys.slots], v])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        out, aux = flex_attention(
            _batched(q),
            _batched(k_all),
            _batched(v_all),
            block_mask=create_block_mask(mask_mod, None, None, len(q), len(k_all), device=q.device),
            scale=x.shape.score_scale,
            enable_gqa=True,
            return_aux=AuxRequest(lse=True),
        )
    assert aux.lse is not None  # it was asked for
    return Attended(out=out[0].transpose(0, 1), lse=aux.lse[0].transpose(0, 1))


def _batched(t: Tensor) -> Tensor:
    """(rows, heads, D) to (1, heads, rows, D)."""
    return t.transpose(0, 1)[None]


@dataclass(frozen=True)
class _Keys:
    """L keys: those of the prefixes, then the T verify rows."""

    slots: Tensor  # (L - T,) of the prefix keys
    request: Tensor  # (L,)
    index: Tensor  # (L,) logical index
    column: Tensor  # (L,) column in the tree block of the mask; -1 in the prefix


def _keys(x: VerifyInput) -> _Keys:
    assert x.kv_indptr is not None
    assert x.kv_indices is not None
    of_row, local_row = owner(x.qo_indptr)
    request, column = owner(x.kv_indptr)
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


def _visible(x: VerifyInput, keys: _Keys) -> Tensor:
    """(T, L) bool: own request, in the prefix or set in the mask, and inside the window."""
    request, _ = owner(x.qo_indptr)
    same = request[:, None] == keys.request
    in_tree = tree_cells(x)[:, keys.column.clamp(min=0)]
    visible = same & ((keys.column < 0) | in_tree)
    if x.shape.window is not None:
        visible &= keys.index > x.positions[:, None] - x.shape.window
    return visible
