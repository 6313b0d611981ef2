"""What an engine keeps from step to step: caches of every layer, what lies beside them, the table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from treeproof.contract.case import VerifyCase
from treeproof.contract.counter import address_hash
from treeproof.engine.serving.layers import Layers
from treeproof.generate.pool import mask_garbage, mask_items
from treeproof.properties.probes.quantised import codes, decoded
from treeproof.properties.scene import TORCH_DTYPE

COMPANION_LANES = 8
_LANES = np.arange(COMPANION_LANES, 3 * COMPANION_LANES, dtype=np.uint64)
"""Bits of a code that its two companions show."""
_LOUD = 48.0
"""What lies in slots that were never written: were it read, it would show."""


class Memory:
    """KV caches (layers, num_slots, Hkv, lanes), the companions of each slot, and `req_to_token`.

    Companions stand for what moves with keys and values and is no layer's: a hidden row and an
    indexer key, (num_slots, 1, lanes) each. Their contents are codes of all tokens up to theirs. The
    drafter's keys and values, by the same slots, are codes of the token after theirs as well; it writes
    them anew for what was accepted, so no commit moves them.
    """

    def __init__(self, case: VerifyCase, layers: Layers, table_rows: int, device: str) -> None:
        self.device = device
        shape, slots = case.shape, case.layout.num_slots
        self._dtype, self._layer = TORCH_DTYPE[shape.dtype], layers.parameters
        self._stored = TORCH_DTYPE[shape.kv_dtype or shape.dtype]
        count, kv = layers.model.layers, shape.num_kv_heads

        def loud(*size: int) -> Tensor:
            return torch.full(size, _LOUD, dtype=self._dtype, device=device)

        self.k = loud(count, slots, kv, shape.head_dim).to(self._stored)
        self.v = loud(count, slots, kv, shape.v_head_dim).to(self._stored)
        self.companions = loud(slots, 1, COMPANION_LANES), loud(slots, 1, COMPANION_LANES)
        self.drafter = loud(slots, 1, COMPANION_LANES), loud(slots, 1, COMPANION_LANES)
        page = case.layout.page_size
        width = case.layout.num_slots + 2 * page
        self.table = np.full((table_rows, width), case.layout.page_table_pad)
        self._masks: dict[torch.dtype, Tensor] = {}

    def mask_buffer(self, case: VerifyCase) -> Tensor:
        """The buffer that is kept for masks of the item type of a round, as the last round left it; at
        first, garbage, again and again. It is never too short, and mostly too long."""
        item, count = mask_items(case)
        kept = self._masks.get(item)
        if kept is None or len(kept) < count:
            kept = self._masks[item] = torch.cat([mask_garbage(case, self.device)] * 4)
        return kept

    def keep_mask(self, written: Tensor | None) -> None:
        """A build has written this, into a copy of the buffer or into one of its own."""
        if written is not None and len(written) >= len(self._masks.get(written.dtype, ())):
            self._masks[written.dtype] = written

    def write_companions(self, slots: Tensor, codes: Sequence[int]) -> None:
        """What lies beside the keys and values of these slots (n,), one code a slot."""
        _write(self.companions, slots, codes)

    def write_drafter(self, slots: Tensor, codes: Sequence[int]) -> None:
        """The drafter's keys and values in these slots (n,), one code a slot."""
        _write(self.drafter, slots, codes)

    def rounded(self, x: Tensor) -> Tensor:
        """float32, as attention is handed it in the dtype of the case."""
        return x.to(self._dtype).float()

    def stored(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (n, Hkv, D) and values (n, Hkv, Dv) as the caches hold them: rounded, or as codes."""
        scales = self._layer.k_scale, self._layer.v_scale
        if scales[0] is None or scales[1] is None:
            return k.to(self._stored), v.to(self._stored)
        return codes(k, scales[0], self._stored), codes(v, scales[1], self._stored)

    def numbers(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """What caches hold (..., Hkv, lanes) as numbers, float64."""
        scales = self._layer.k_scale, self._layer.v_scale
        if scales[0] is None or scales[1] is None:
            return k.double(), v.double()
        return decoded(k, scales[0]), decoded(v, scales[1])

    def handed(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """What rows that are stored so are as a stage is handed them, in the dtype of the case."""
        if self._stored == self._dtype:
            return k, v
        k, v = self.numbers(k, v)
        return k.to(self._dtype), v.to(self._dtype)

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Rows (n, Hkv, lanes), as they are stored, to these slots (n,) of a layer."""
        movable(self.k[layer])[slots] = movable(k)
        movable(self.v[layer])[slots] = movable(v)

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """(n, Hkv, lanes) float32 of a layer's keys and values in these slots."""
        k, v = self.numbers(*(_held(cache[layer], slots) for cache in (self.k, self.v)))
        return k.float(), v.float()

    def held(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """(layers, n, Hkv, lanes) float64 of all layers."""
        every = ([_held(one, slots) for one in cache] for cache in (self.k, self.v))
        return self.numbers(*map(torch.stack, every))

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """The caches that live by the same slots: each layer's, and the companions."""
        return [*zip(self.k, self.v, strict=True), self.companions]


def movable(cache: Tensor) -> Tensor:
    """The same bits in a dtype whose rows every device moves."""
    return cache.view(torch.int8) if cache.element_size() == 1 else cache


def _held(cache: Tensor, slots: Tensor) -> Tensor:
    return movable(cache)[slots].view(cache.dtype)


def path_codes(tokens: Sequence[int], before: int) -> list[int]:
    """64 bits for each token that depend on it and on all before it; `before` is the last one's."""
    codes = []
    for token in tokens:
        before = address_hash(before, token)
        codes.append(before)
    return codes


def drafter_codes(codes: Sequence[int], after: Sequence[int]) -> list[int]:
    """Of columns with these codes, each with the token that follows it."""
    return [address_hash(code, token) for code, token in zip(codes, after, strict=True)]


def _write(caches: tuple[Tensor, Tensor], slots: Tensor, codes: Sequence[int]) -> None:
    for cache, rows in zip(caches, companion_rows(codes), strict=True):
        cache[slots] = rows.to(cache)


def companion_rows(codes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """(n, 1, lanes) float32 of signs twice, one a bit of each code."""
    bits = np.array(codes, dtype=np.uint64)[:, None, None] >> _LANES
    signs = (bits & np.uint64(1)).astype(np.float32) * 2 - 1
    both = torch.from_numpy(signs)
    return both[..., :COMPANION_LANES], both[..., COMPANION_LANES:]
