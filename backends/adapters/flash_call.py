"""One call for every build of FlashAttention: queries, lists of keys, and back `out` and `lse`.

Keys are named by a table of pages. A build that takes such pages is handed the cache and the table;
another one is handed the keys themselves, gathered one list after another.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.backends.adapters.flash_launch import Launch, launch, load
from treeproof.backends.adapters.flash_library import Library
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

    @property
    def caches(self) -> tuple[Tensor, Tensor]:
        return self.k_cache, self.v_cache


class Flash:
    """One build, loaded."""

    def __init__(self, library: Library) -> None:
        """Warns of a version that was not checked. Raises BackendUnavailable where it does not load."""
        name = library.name
        if name.known and library.version.partition("+")[0] != name.known:
            warnings.warn(
                f"{name.distribution} {library.version} is installed; checked is {name.known}",
                stacklevel=2,
            )
        self._library, self._module = library, load(library)

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
        if not int(keys.lengths.max()):
            lse = q.new_full(q.shape[:2], float("-inf"), dtype=torch.float32)
            return q.new_zeros(*q.shape[:2], layer.v_cache.shape[2]), lse
        paged = self._library.takes_pages(keys.page_size)
        if not paged and len(keys.lengths) > 1 and _large(keys, layer.k_cache):
            return self._halves(layer, q, indptr, keys, window, sinks)
        if paged:
            k, v = (c.view(-1, keys.page_size, *c.shape[1:]) for c in layer.caches)
        else:
            k, v = (keys.gathered(cache) for cache in layer.caches)
        given = Launch(
            q,
            k,
            v,
            indptr=indptr,
            lengths=keys.lengths,
            table=keys.table if paged else None,
            scale=layer.shape.score_scale,
            window=window,
            softcap=layer.shape.softcap,
            sinks=sinks,
        )
        out, lse = launch(self._library, self._module, given)
        lse = lse.transpose(0, 1)
        # Over no key some builds return +inf.
        return out, torch.where(lse == float("inf"), float("-inf"), lse).contiguous()

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
