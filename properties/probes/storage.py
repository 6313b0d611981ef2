"""K and V caches as an engine holds them: `KVLayout.storage` in memory, and what lies beside it.

Contents are laid by slot and looked at by slot; in between, a backend has the tensors that a kernel
of its engine would be handed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.contract.layout import KVLayout
from treeproof.properties.contract import same_rows


@dataclass(frozen=True)
class Caches:
    """`k` and `v` are what a backend is handed.

    `beside`: memory of other layers around the slots, (num_slots, lanes) each, and what it held.
    """

    layout: KVLayout
    k: Tensor
    v: Tensor
    beside: tuple[tuple[Tensor, Tensor], ...] = ()

    @classmethod
    def laid(
        cls, layout: KVLayout, k: Tensor, v: Tensor, beside_k: Tensor, beside_v: Tensor
    ) -> Caches:
        """`k` (num_slots, Hkv, D) and `v` (num_slots, Hkv, Dv) themselves, or copies in new memory.

        `beside_k`, `beside_v`: what other layers hold, in every slot alike where a slot's worth is
        given.
        """
        match layout.storage:
            case "NHD":
                return cls(layout, k, v)
            case "interleaved":
                both = torch.cat([k.flatten(1), v.flatten(1)], dim=1)
                split = k[0].numel()
                own_k, own_v = both[:, :split].view(k.shape), both[:, split:].view(v.shape)
                return cls(layout, own_k, own_v)
            case "HND":
                own_k, own_v = (
                    cache.view(-1, layout.page_size, *cache.shape[1:]).transpose(1, 2).contiguous()
                    for cache in (k, v)
                )
                return cls(layout, own_k, own_v)
        layers_k, layers_v = _between(k, beside_k), _between(v, beside_v)
        others = [
            layers[:, other].flatten(1) for layers in (layers_k, layers_v) for other in (0, 2)
        ]
        return cls(
            layout, layers_k[:, 1], layers_v[:, 1], tuple((now, now.clone()) for now in others)
        )

    def by_slot(self) -> tuple[Tensor, Tensor]:
        """K (num_slots, Hkv, D) and V (num_slots, Hkv, Dv) as they are now."""
        if self.layout.storage == "HND":
            k, v = (pages.transpose(1, 2).flatten(0, 1) for pages in (self.k, self.v))
            return k, v
        return self.k, self.v

    def strayed(self) -> tuple[int, ...]:
        """Slots at which the memory of another layer was written."""
        if not self.beside:
            return ()
        changed = torch.stack([~same_rows(now, was) for now, was in self.beside]).any(0)
        return tuple(changed.nonzero().flatten().tolist())


def _between(own: Tensor, other: Tensor) -> Tensor:
    """(num_slots, 3, Hkv, lanes): this layer between two others."""
    others = other.to(own.dtype).expand_as(own)
    return torch.stack([others, own, others], dim=1)
