"""One launch, spelled as a build of FlashAttention wants it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from treeproof.backends.adapters.flash_library import Library
from treeproof.backends.adapters.flash_names import KVCACHE
from treeproof.contract.backend import BackendUnavailable

_LOG_SUM_EXP = ("return_softmax_lse", "return_lse", "return_attn_probs")
"""Parameters that ask for it, of which a function has one."""


@dataclass(frozen=True)
class Launch:
    """Queries of n sequences over n lists of keys; every query reads its whole list."""

    q: Tensor
    """(T, Hq, D)"""
    k: Tensor
    v: Tensor
    """(keys, Hkv, lanes) one list after another, or (pages, page size, Hkv, lanes) with `table`."""
    indptr: Tensor
    """(n+1,) bounds of the sequences in `q`."""
    max_q: int
    """Queries of a sequence at most."""
    lengths: Tensor
    """(n,) keys of each list."""
    room: int | None
    """Keys from the beginning of one list to that of the next, where they are not one right after
    another."""
    table: Tensor | None
    """(n, pages)"""
    scale: float
    window: int | None
    """Keys, the query's own included; each sequence is then one query, its list's last key its own."""
    softcap: float | None
    sinks: Tensor | None
    """(Hq,)"""

    @property
    def max_k(self) -> int:
        """Keys of a list at most. Where lists have no room of their own the device is asked."""
        return int(self.lengths.max()) if self.room is None else self.room

    @property
    def cu_seqlens_k(self) -> Tensor:
        if self.room is not None:
            return torch.arange(
                0, len(self.indptr) * self.room, self.room, dtype=torch.int32, device=self.q.device
            )
        return pad(self.lengths.cumsum(0), (1, 0)).int()

    @property
    def sides(self) -> tuple[int, int]:
        """Keys to the left and to the right of the query's own that it reads."""
        return (-1, -1) if self.window is None else (self.window - 1, 0)


def launch(library: Library, module: Any, given: Launch) -> tuple[Tensor, Tensor]:
    """out (T, Hq, Dv) and lse (Hq, T), natural log. Raises BackendUnavailable where there is no lse."""
    spelled = _torch_varlen if library.generation == "torch-varlen" else _flash_attn
    result = spelled(library, module, given)
    if not isinstance(result, tuple) or result[1] is None:
        raise BackendUnavailable(f"{library.name.module} returns no log-sum-exp")
    return result[0], result[1]


def _flash_attn(library: Library, module: Any, given: Launch) -> Any:
    options: dict[str, Any] = {
        "cu_seqlens_q": given.indptr.int(),
        "max_seqlen_q": given.max_q,
        "softmax_scale": given.scale,
        "causal": False,
    }
    if given.window is not None:
        options["window_size"] = given.sides
    if given.softcap is not None:
        options["softcap"] = given.softcap
    if given.sinks is not None:
        options["learnable_sink"] = given.sinks
    name = library.known.function
    if given.table is None:
        options |= {"cu_seqlens_k": given.cu_seqlens_k, "max_seqlen_k": given.max_k}
        if given.room is not None:
            options["seqused_k"] = given.lengths.int()
    else:
        name, table = library.paged, given.table.int().contiguous()
        if library.generation == "fa2":
            options |= {
                "cu_seqlens_k": given.cu_seqlens_k,
                "max_seqlen_k": given.max_k,
                "block_table": table,
            }
        elif name == KVCACHE:
            # One pass over the keys of a list, as the other functions make it.
            options |= {
                "cache_seqlens": given.lengths.int(),
                "page_table": table,
                "num_splits": 1,
            }
        else:
            options |= {
                "seqused_k": given.lengths.int(),
                "max_seqlen_k": given.max_k,
                "page_table": table,
            }
    options |= {asked: True for asked in _LOG_SUM_EXP if asked in library.parameters[name]}
    function: Callable[..., Any] = getattr(module, name)
    return function(given.q, given.k, given.v, **options)


def _torch_varlen(library: Library, module: Any, given: Launch) -> Any:
    cu_seq_k: Tensor | None = given.cu_seqlens_k
    options: dict[str, Any] = {}
    if given.window is not None:
        options["window_size"] = given.sides
    if given.table is not None:
        cu_seq_k = None
        options |= {
            "seqused_k": given.lengths.int(),
            "block_table": given.table.int().contiguous(),
        }
    attend = _torch_varlen_attend(library, module, given.scale)
    rows, heads, _ = given.q.shape
    out, lse = attend(
        given.q, given.k, given.v, given.indptr.int(), cu_seq_k, given.max_q, given.max_k, **options
    )
    # Documented is (T, Hq), and what the operator says of itself is (Hq, T).
    shape = lse.shape if rows != heads else _shape_of_more_rows(attend, given)
    return out, lse if shape[0] == heads else lse.transpose(0, 1)


def _torch_varlen_attend(library: Library, module: Any, scale: float) -> Callable[..., Any]:
    options: dict[str, Any] = {"return_aux": module.AuxRequest(lse=True)}
    if library.takes("scale"):  # the first release knew the default alone
        options["scale"] = scale
    if library.takes("enable_gqa"):
        options["enable_gqa"] = True
    return partial(module.varlen_attn, **options)


def _shape_of_more_rows(attend: Callable[..., Any], given: Launch) -> Any:
    """Of the log-sum-exp, where there is a row more than there are heads: asked of a small launch."""
    rows = given.q.shape[1] + 1
    k, v = (t[:1] if given.table is None else t[0, :1] for t in (given.k, given.v))
    bounds = given.indptr.new_tensor([0, rows]).int(), given.indptr.new_tensor([0, 1]).int()
    return attend(given.q[:1].repeat(rows, 1, 1), k, v, *bounds, rows, 1)[1].shape


def load(library: Library) -> Any:
    """The module of the interface. Raises BackendUnavailable where it does not load."""
    try:
        return importlib.import_module(library.name.module)
    except (ImportError, OSError) as error:  # a library built for another torch, among others
        raise BackendUnavailable(f"{library.name.module} does not load: {error}") from error
