"""The input of `draft`: the requests of a case as they stand when a drafting phase begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from treeproof.contract.case import KVLayout, Request, VerifyCase
from treeproof.contract.counter import address_hash
from treeproof.contract.drafting import DraftStep, columns_to_draft
from treeproof.contract.ledger import hand_out_pages, table_rows, token_table
from treeproof.generate.data import hash_tensor
from treeproof.generate.embedding import pool_dims

if TYPE_CHECKING:
    from torch import Tensor

    from treeproof.contract.ledger import Slots

MOST = 8
"""Branches and steps. A layout knows no tree, and repeats itself from a few of each on."""
MOST_SERVED = 2
"""Branches and steps of each phase of a script, whose caches are small."""
MOST_PREFIX = 640
"""Prefix keys, beyond which whole pages are left out: more than a block of 512 that kernels copy by."""

_KEYS, _VALUES, _SPARE = 301, 302, 303
_HEADS, _LANES = 2, 8


@dataclass(frozen=True, eq=False)
class DraftScene:
    """Who owns which slot while a batch drafts.

    `slots[b]` is the slot of each column of request b, those to draft in included. `before`: what the
    caches hold, (num_slots, 2, 8) float32 each, every slot something else.
    """

    layout: KVLayout
    prefix_lens: tuple[int, ...]
    slots: tuple[Slots, ...]
    request_slots: tuple[int, ...]
    topk: int
    num_steps: int
    before: tuple[Tensor, Tensor]
    device: str

    @property
    def batch(self) -> int:
        return len(self.prefix_lens)

    def step(self, k_cache: Tensor, v_cache: Tensor) -> DraftStep:
        """The input of the stage, on these caches."""
        import torch

        table = token_table(self.layout, self.slots, self.request_slots)
        return DraftStep(
            seq_lens=torch.tensor(self.prefix_lens, device=self.device),
            request_slots=torch.tensor(self.request_slots, device=self.device),
            req_to_token=torch.from_numpy(table).to(self.device),
            k_cache=k_cache,
            v_cache=v_cache,
            topk=self.topk,
            num_steps=self.num_steps,
            kv=self.layout,
        )


def served_columns(requests: Sequence[Request], ready: int, page_size: int) -> int:
    """Logical columns that one of these requests holds while it drafts in a script."""
    return columns_to_draft(ready, *served_dims(requests), page_size)


def served_dims(requests: Sequence[Request]) -> tuple[int, int]:
    """Branches and steps, the same in all rounds of a script."""
    topk = max(request.tree.topk for request in requests)
    steps = max(1, *(max(request.tree.depth) for request in requests))
    return min(MOST_SERVED, topk), min(MOST_SERVED, steps)


@lru_cache(maxsize=8)
def draft_scene(case: VerifyCase, device: str = "cpu") -> DraftScene:
    """As many branches and steps as the trees of the case need, up to `MOST`; the same requests, cache
    layout and shared prefix, in slots of its own. Nothing is evicted: a drafter has no window here."""
    import numpy as np

    page = case.layout.page_size
    topk, steps = (min(MOST, most) for most in pool_dims(case))
    prefixes = tuple(_shortened(request.prefix_len, page) for request in case.requests)
    lengths = [columns_to_draft(prefix, topk, steps, page) for prefix in prefixes]
    layout = _layout(case, lengths, prefixes)
    slots = []
    for length, pages in zip(lengths, hand_out_pages(layout, lengths, case.seed), strict=True):
        slots.append((pages[:, None] * page + np.arange(page)).ravel()[:length])
    return DraftScene(
        layout=layout,
        prefix_lens=prefixes,
        slots=tuple(slots),
        request_slots=table_rows(len(prefixes), case.seed),
        topk=topk,
        num_steps=steps,
        before=_contents(case.seed, layout.num_slots, device),
        device=device,
    )


def _shortened(prefix: int, page: int) -> int:
    """Without whole pages beyond the most that is laid out."""
    surplus = -(-(prefix - MOST_PREFIX) // page)
    return prefix - page * max(0, min(surplus, prefix // page))


def _layout(case: VerifyCase, lengths: Sequence[int], prefixes: Sequence[int]) -> KVLayout:
    page = case.layout.page_size
    shared = min(case.layout.shared_prefix, *prefixes) // page
    spare = address_hash(case.seed, _SPARE) % 4
    pages = sum(-(-length // page) for length in lengths) - shared * (len(lengths) - 1)
    num_slots = page * (pages + spare + (case.layout.pad_slot == 0))
    return msgspec.structs.replace(
        case.layout,
        num_slots=num_slots,
        page_table_pad=min(case.layout.page_table_pad, num_slots - 1),
        shared_prefix=shared * page,
        evicted=False,
    )


def _contents(seed: int, num_slots: int, device: str) -> tuple[Tensor, Tensor]:
    """Small numbers, which every type of a cache holds; a slot's number is among them in digits."""
    import torch

    slot = torch.arange(num_slots, device=device)[:, None, None]
    lane = torch.arange(_LANES, device=device)
    head = torch.arange(_HEADS, device=device)[:, None]
    salt = hash_tensor(seed, _KEYS, lane) % 16, hash_tensor(seed, _VALUES, lane) % 16
    keys, values = ((slot // 16**lane + head + of) % 16 for of in salt)
    return keys.float(), 16 + values.float()
