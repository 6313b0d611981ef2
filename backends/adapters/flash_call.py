"""One call for every build of FlashAttention: queries, lists of keys, and back `out` and `lse`.

Keys are named by a table of pages. A build that takes such pages is handed the cache and the table;
another one is handed the keys themselves, gathered one list after another.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from treeproof.backends.adapters.flash_library import KVCACHE, VARLEN, Library
from treeproof.contract.backend import BackendUnavailable
from treeproof.contract.shape import AttentionShape

_GATHERED = 1 << 28
"""Elements of K that are gathered for one launch: 512 MiB in half precision."""


@dataclass(frozen=True)
class Keys:
    """n lists of keys in the cache, in whole pages."""

    table: Tensor
    """(n, pages) page ids; what follows the last page of a list is not read."""
    lengths: Tensor
    """(n,) keys of each list."""
    page_size: int

    def gathered(self, cache: Tensor) -> Tensor:
        """(sum of lengths, Hkv, lanes) of a cache (num_slots, Hkv, lanes)."""
        index = torch.arange(self.table.shape[1] * self.page_size, device=cache.device)
        slots = self.table[:, index // self.page_size] * self.page_size + index % self.page_size
        return cache[slots[index < self.lengths[:, None]]]

    def part(self, own: slice) -> Keys:
        return Keys(self.table[own], self.lengths[own], self.page_size)


@dataclass(frozen=True)
class Layer:
    """What is the same in every launch of a layer."""

    shape: AttentionShape
    k_cache: Tensor
    v_cache: Tensor
    """(num_slots, Hkv, D) and (num_slots, Hkv, Dv)."""


class Flash:
    """The functions of one build, loaded."""

    def __init__(self, library: Library) -> None:
        """Warns of a version that was not checked. Raises BackendUnavailable where it does not load."""
        name = library.name
        if name.known and library.version != name.known:
            warnings.warn(
                f"{name.distribution} {library.version} is installed; checked is {name.known}",
                stacklevel=2,
            )
        try:
            module = importlib.import_module(name.module)
        except (ImportError, OSError) as error:  # a library built for another torch, among others
            raise BackendUnavailable(f"{name.module} does not load: {error}") from error
        self.library = library
        self._varlen: Callable[..., Any] = getattr(module, VARLEN)
        self._paged: Callable[..., Any] = getattr(module, library.paged or VARLEN)

    def pages(self, size: int) -> bool:
        """Whether the build takes pages of `size` keys."""
        sizes = self.library.page_sizes
        return sizes is None or size in sizes

    def attend(
        self,
        layer: Layer,
        q: Tensor,
        indptr: Tensor,
        keys: Keys,
        *,
        window: int | None = None,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Queries `indptr[i]` to `indptr[i + 1]` of `q` (T, Hq, D) each over all keys of list i.

        With a window, lists are of one query each, their last key being its own. Returns out
        (T, Hq, Dv) and lse (T, Hq) float32 in natural log, sinks included; 0 and -inf over no key.
        """
        longest = int(keys.lengths.max())
        if longest == 0:
            lse = q.new_full(q.shape[:2], float("-inf"), dtype=torch.float32)
            return q.new_zeros(*q.shape[:2], layer.v_cache.shape[2]), lse
        paged = self.pages(keys.page_size)
        if not paged and len(keys.lengths) > 1 and _large(keys, layer.k_cache):
            return self._halves(layer, q, indptr, keys, window, sinks)
        options = self._options(layer.shape, q, indptr, window, sinks)
        if paged:
            result = self._launch_paged(layer, q, keys, longest, options)
        else:
            result = self._launch_gathered(layer, q, keys, longest, options)
        if not isinstance(result, tuple):
            raise BackendUnavailable(f"{self.library.name.module} returns no log-sum-exp")
        out, lse = result[0], result[1].transpose(0, 1)  # (Hq, T) as it comes
        # Over no key some builds return +inf.
        return out, torch.where(lse == float("inf"), float("-inf"), lse).contiguous()

    def _options(
        self,
        shape: AttentionShape,
        q: Tensor,
        indptr: Tensor,
        window: int | None,
        sinks: Tensor | None,
    ) -> dict[str, Any]:
        options: dict[str, Any] = {
            "cu_seqlens_q": indptr.int(),
            "max_seqlen_q": int(indptr.diff().max()),
            "softmax_scale": shape.score_scale,
            "causal": False,
        }
        if window is not None:
            # As wide to the left as there are keys before the query's own, which is the last.
            options["window_size"] = (window - 1, 0)
        if shape.softcap is not None:
            options["softcap"] = shape.softcap
        if sinks is not None:
            options["learnable_sink"] = sinks
        return options

    def _launch_paged(
        self, layer: Layer, q: Tensor, keys: Keys, longest: int, options: dict[str, Any]
    ) -> Any:
        caches = [
            cache.view(-1, keys.page_size, *cache.shape[1:])
            for cache in (layer.k_cache, layer.v_cache)
        ]
        lengths, table = keys.lengths.int(), keys.table.int().contiguous()
        if self.library.generation == "fa2":
            own = {"cu_seqlens_k": _bounds(lengths), "max_seqlen_k": longest, "block_table": table}
        elif self.library.paged == KVCACHE:
            # One pass over the keys of a list, as the other builds make it.
            own = {"cache_seqlens": lengths, "page_table": table, "num_splits": 1}
        else:
            own = {"seqused_k": lengths, "max_seqlen_k": longest, "page_table": table}
        asked = self.library.log_sum_exp[self.library.paged]
        return self._paged(q, *caches, **own, **options, **({asked: True} if asked else {}))

    def _launch_gathered(
        self, layer: Layer, q: Tensor, keys: Keys, longest: int, options: dict[str, Any]
    ) -> Any:
        asked = self.library.log_sum_exp[VARLEN]
        return self._varlen(
            q,
            keys.gathered(layer.k_cache),
            keys.gathered(layer.v_cache),
            cu_seqlens_k=_bounds(keys.lengths),
            max_seqlen_k=longest,
            **options,
            **({asked: True} if asked else {}),
        )

    def _halves(
        self,
        layer: Layer,
        q: Tensor,
        indptr: Tensor,
        keys: Keys,
        window: int | None,
        sinks: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        middle = len(keys.lengths) // 2
        cut = int(indptr[middle])
        parts = (
            (slice(0, middle), q[:cut], indptr[: middle + 1]),
            (slice(middle, None), q[cut:], indptr[middle:] - cut),
        )
        done = [
            self.attend(layer, queries, bounds, keys.part(own), window=window, sinks=sinks)
            for own, queries, bounds in parts
        ]
        return torch.cat([out for out, _ in done]), torch.cat([lse for _, lse in done])


def _large(keys: Keys, cache: Tensor) -> bool:
    return int(keys.lengths.sum()) * cache[0].numel() > _GATHERED


def _bounds(lengths: Tensor) -> Tensor:
    """(n+1,) int32 sums of the lengths before each list."""
    return pad(lengths.cumsum(0), (1, 0)).int()
