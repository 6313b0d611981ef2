"""What an engine keeps from step to step: caches of every layer, what lies beside them, the table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from treeproof.contract.case import VerifyCase
from treeproof.contract.counter import address_hash
from treeproof.properties.scene import TORCH_DTYPE

COMPANION_LANES = 8
_LOUD = 48.0
"""What lies in slots that were never written: were it read, it would show."""


class Memory:
    """KV caches (layers, num_slots, Hkv, lanes), the companions of each slot, and `req_to_token`.

    Companions stand for what moves with keys and values and is no layer's: a hidden row and an
    indexer key, (num_slots, 1, lanes) each. Their contents are codes of all tokens up to theirs. The
    drafter's keys and values, by the same slots, are codes of the token after theirs as well; it writes
    them anew for what was accepted, so no commit moves them.
    """

    def __init__(self, case: VerifyCase, layers: int, table_rows: int, device: str) -> None:
        self.device = device
        shape, slots = case.shape, case.layout.num_slots
        dtype, kv = TORCH_DTYPE[shape.dtype], shape.num_kv_heads

        def loud(*size: int) -> Tensor:
            return torch.full(size, _LOUD, dtype=dtype, device=device)

        self.k = loud(layers, slots, kv, shape.head_dim)
        self.v = loud(layers, slots, kv, shape.v_head_dim)
        self.companions = loud(slots, 1, COMPANION_LANES), loud(slots, 1, COMPANION_LANES)
        self.drafter = loud(slots, 1, COMPANION_LANES), loud(slots, 1, COMPANION_LANES)
        page = case.layout.page_size
        width = case.layout.num_slots + 2 * page
        self.table = np.full((table_rows, width), case.layout.page_table_pad)
        self._masks: dict[torch.dtype, Tensor] = {}

    def mask_buffer(self, fresh: Tensor) -> Tensor:
        """The buffer that is kept for masks of this item type, as the last round left it; at first,
        what is in `fresh`, again and again. It is never too short, and mostly too long."""
        kept = self._masks.get(fresh.dtype)
        if kept is None or len(kept) < len(fresh):
            kept = self._masks[fresh.dtype] = torch.cat([fresh] * 4)
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

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """The caches that live by the same slots: each layer's, and the companions."""
        return [*zip(self.k, self.v, strict=True), self.companions]


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
    for which, cache in enumerate(caches):
        cache[slots] = companion_rows(codes, which).to(cache)


def companion_rows(codes: Sequence[int], which: int) -> Tensor:
    """(n, 1, lanes) float32 of signs, one a bit of each code."""
    bits = np.array(codes, dtype=np.uint64)[:, None] >> np.uint64(COMPANION_LANES * (1 + which))
    signs = (bits >> np.arange(COMPANION_LANES, dtype=np.uint64)) & np.uint64(1)
    return torch.tensor(signs.astype(np.float32) * 2 - 1)[:, None]
