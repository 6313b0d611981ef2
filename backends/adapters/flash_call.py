"""One call for every build of FlashAttention: queries, lists of keys, and back `out` and `lse`.

Keys are named by a table of pages. A build that takes such pages is handed the cache and the table;
another one is handed the keys themselves, gathered: each list with as much room as the table has, where
the build can be told how much of it is used, and else one list right after another.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.backends.adapters.flash_launch import Launch, launch, load
from treeproof.backends.adapters.flash_library import Library
from treeproof.contract.shape import AttentionShape

_GATHERED = 1 << 30
"""Elements of K that are gathered for one launch: 2 GiB in half precision."""


@dataclass(frozen=True)
class Keys:
    """n lists of keys in the cache, in whole pages."""

    table: Tensor
    """(n, pages) page ids; what follows the last page of a list is not read."""
    lengths: Tensor
    """(n,) keys of each list."""
    page_size: int

    @property
    def room(self) -> int:
        """Keys that the table has room for in a list."""
        return self.table.shape[1] * self.page_size

    def cells(self, by_shape: bool) -> int:
        """Keys that are gathered."""
        return len(self.lengths) * self.room if by_shape else int(self.lengths.sum())

    def _slots(self) -> tuple[Tensor, Tensor]:
        """(n, room) the slot of each cell, and whether it belongs to its list."""
        index = torch.arange(self.room, device=self.table.device)
        slots = self.table[:, index // self.page_size] * self.page_size + index % self.page_size
        return slots, index < self.lengths[:, None]

    def spread(self, cache: Tensor) -> Tensor:
        """(n * room, Hkv, lanes): behind the end of a list lies its first key again."""
        slots, listed = self._slots()
        return cache[torch.where(listed, slots, slots[:, :1]).flatten()]

    def gathered(self, cache: Tensor) -> Tensor:
        """(sum of lengths, Hkv, lanes) of a cache (num_slots, Hkv, lanes)."""
        slots, listed = self._slots()
        return cache[slots[listed]]

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
        most_queries: int,
        keys: Keys,
        *,
        window: int | None = None,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Queries `indptr[i]` to `indptr[i + 1]` of `q` (T, Hq, D), `most_queries` at most, each over all
        keys of list i. The device is asked for nothing where the build is `Library.by_shape` and the launch
        is captured: with room for every list there is up to twice as much to gather.

        With a window, lists are of one query each, their last key being its own. Returns out
        (T, Hq, Dv) and lse (T, Hq) float32 in natural log, sinks included; 0 and -inf over no key.
        """
        paged = self._library.takes_pages(keys.page_size)
        by_shape = self._library.by_shape(keys.page_size) and (paged or _is_captured(q))
        if not (keys.room if by_shape else int(keys.lengths.max())):
            lse = q.new_full(q.shape[:2], float("-inf"), dtype=torch.float32)
            return q.new_zeros(*q.shape[:2], layer.v_cache.shape[2]), lse
        if not paged and len(keys.lengths) > 1 and keys.cells(by_shape) > _most_cells(layer):
            return self._halves(layer, q, indptr, most_queries, keys, window, sinks)
        if paged:
            k, v = (c.view(-1, keys.page_size, *c.shape[1:]) for c in layer.caches)
        else:
            gather = keys.spread if by_shape else keys.gathered
            k, v = map(gather, layer.caches)
        given = Launch(
            q,
            k,
            v,
            indptr=indptr,
            max_q=most_queries,
            lengths=keys.lengths,
            room=keys.room if by_shape and not paged else None,
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
        most_queries: int,
        keys: Keys,
        window: int | None,
        sinks: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        middle = len(keys.lengths) // 2
        # Lists of one query each have as many queries before them as lists.
        cut = middle if most_queries == 1 else int(indptr[middle])
        parts = (
            (slice(0, middle), q[:cut], indptr[: middle + 1]),
            (slice(middle, None), q[cut:], indptr[middle:] - cut),
        )
        done = [
            self.attend(
                layer, queries, bounds, most_queries, keys.part(own), window=window, sinks=sinks
            )
            for own, queries, bounds in parts
        ]
        return torch.cat([out for out, _ in done]), torch.cat([lse for _, lse in done])


def _is_captured(q: Tensor) -> bool:
    return q.is_cuda and torch.cuda.is_current_stream_capturing()


def _most_cells(layer: Layer) -> int:
    return _GATHERED // layer.k_cache[0].numel()
