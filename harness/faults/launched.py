"""Faults of a launch: attend reads other keys than its tables say, and declares what they said.

Every representation is rewritten in its own terms: lists a row, a mask, the prefix in the token
table. A planted launch is handed rewritten tables and goes on as the backend does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.case import MaskMode
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.contract.shape import Full, Window
from treeproof.faults.plant import wrapped
from treeproof.properties.tables import recover_mask

Block = npt.NDArray[np.bool_]
"""(R, R): which rows of a request each of them reads, padded ones included."""


@dataclass(frozen=True)
class Row:
    """What one row of a launch reads: `keys[cut:]`, prefix slots and then its path down to itself.

    `keys` begin at logical index `first`; lists that share the front of the prefix begin later.
    `homes` are the slots of the request's real rows.
    """

    x: VerifyInput
    request: int
    row: int
    keys: tuple[int, ...]
    cut: int
    prefix_len: int
    homes: tuple[int, ...]

    @property
    def window(self) -> int | None:
        return self.x.shape.window

    @property
    def front(self) -> tuple[int, ...]:
        """Prefix slots of this list."""
        return self.keys[: len(self.keys) - len(self.path)]

    @property
    def path(self) -> tuple[int, ...]:
        own = set(self.homes)
        begin = next(i for i, slot in enumerate(self.keys) if slot in own)
        return self.keys[begin:]

    @property
    def first(self) -> int:
        return self.prefix_len - len(self.front)


def launched(backend: Backend, change: Callable[[VerifyInput], VerifyInput]) -> Backend:
    """The backend whose attend is handed `change` of its input, and declares its input.

    `change` may look at fields that the backend consumes, and at `qo_indptr`.
    """

    def around(right: Callable[..., Attended], x: VerifyInput, *tensors: Tensor) -> Attended:
        done = right(change(seen_by(backend, x)), *tensors)
        given = {name: getattr(x, name) for name in backend.consumes & set(done.declared)}
        return replace(done, declared={**done.declared, **given})

    return wrapped(backend, "attend", around)


def seen_by(backend: Backend, x: VerifyInput) -> VerifyInput:
    """The same input without the tables that the backend does not look at: they may be garbage.

    So may be the rows of each request to those who go by links, which say where they begin.
    """
    tables = {"custom_mask", "kv_indices", "page_table"} - backend.consumes
    unread: dict[str, Any] = dict.fromkeys(tables)
    x = replace(x, **unread)
    if "qo_indptr" in backend.consumes or x.retrieve_index is None:
        return x
    end = x.out_cache_loc.new_tensor([len(x.out_cache_loc)])
    return replace(x, qo_indptr=torch.cat([x.retrieve_index[:, 0], end]))


def with_window(x: VerifyInput, width: int | None) -> VerifyInput:
    """The same input under another window; None: none at all."""
    visibility = Full() if width is None else Window(width=width)
    return replace(x, shape=msgspec.structs.replace(x.shape, visibility=visibility))


def relisted(backend: Backend, change: Callable[[Row], Row]) -> Backend:
    """A backend with a list or a line a row, each of which reads what `change` makes of it.

    Lines are cut here, so that a changed `cut` counts: attend sees no window any more.
    """

    def of_lists(x: VerifyInput) -> VerifyInput:
        rows = [change(row) if _is_real(row) else row for row in _rows(x)]
        device = x.seq_lens.device
        if x.kv_indices is None:
            kept = [torch.tensor(row.keys[row.cut :], device=device) for row in rows]
            lengths = torch.tensor([len(slots) for slots in kept], device=device)
            lines = torch.nn.utils.rnn.pad_sequence(kept, batch_first=True)
            return with_window(replace(x, page_table=lines, cache_seqlens=lengths), None)
        lengths = torch.tensor([len(row.keys) for row in rows], device=device)
        return replace(
            x,
            kv_indptr=torch.nn.functional.pad(lengths.cumsum(0), (1, 0)),
            kv_indices=torch.tensor([slot for row in rows for slot in row.keys], device=device),
            kv_start=torch.tensor([row.cut for row in rows], device=device),
        )

    return launched(backend, of_lists)


def _is_real(row: Row) -> bool:
    """A padded row holds the root's list; the root is row 0."""
    return row.row < len(row.homes)


def _rows(x: VerifyInput) -> list[Row]:
    starts, found = x.qo_indptr.tolist(), []
    prefixes, home = x.seq_lens.tolist(), x.out_cache_loc.tolist()
    lists, cuts = _lists(x)
    nowhere = (-1, x.kv.pad_slot)
    for b, (lo, hi) in enumerate(pairwise(starts)):
        homes = tuple(slot for slot in home[lo:hi] if slot not in nowhere)
        for i in range(lo, hi):
            found.append(Row(x, b, i - lo, tuple(lists[i]), cuts[i], prefixes[b], homes))
    return found


def _lists(x: VerifyInput) -> tuple[list[list[int]], list[int]]:
    """Keys of each row and how many of them its window cuts, from lists or from lines."""
    if x.kv_indices is not None:
        assert x.kv_indptr is not None
        assert x.kv_start is not None
        bounds, slots = x.kv_indptr.tolist(), x.kv_indices.tolist()
        return [slots[lo:hi] for lo, hi in pairwise(bounds)], x.kv_start.tolist()
    assert x.page_table is not None
    assert x.cache_seqlens is not None
    lengths = x.cache_seqlens.tolist()
    lines = [line[:n] for line, n in zip(x.page_table.tolist(), lengths, strict=True)]
    return lines, [max(0, n - (x.shape.window or n)) for n in lengths]


def remasked(backend: Backend, change: Callable[[Block], Block]) -> Backend:
    """A backend with a mask, which reads what `change` makes of the tree block of each request."""
    return launched(backend, lambda x: _with_blocks(x, [change(block) for block in _blocks(x)]))


def _blocks(x: VerifyInput) -> list[Block]:
    assert x.custom_mask is not None
    assert x.mask_indptr is not None
    assert x.mask_mode is not None
    rows = (x.qo_indptr[1:] - x.qo_indptr[:-1]).tolist()
    mask = x.custom_mask.cpu().numpy()
    return recover_mask(mask, x.mask_indptr.tolist(), x.mask_mode, x.seq_lens.tolist(), rows)


def _with_blocks(x: VerifyInput, blocks: list[Block]) -> VerifyInput:
    """A mask of tree blocks alone, which says nothing about the prefix and so fits any."""
    device = x.seq_lens.device
    sizes = torch.tensor([0, *(block.size for block in blocks)], device=device)
    return replace(
        x,
        custom_mask=torch.from_numpy(np.concatenate([block.reshape(-1) for block in blocks])).to(
            device
        ),
        mask_indptr=sizes.cumsum(0),
        mask_mode=MaskMode.QLEN_ONLY,
    )


Prefix = Callable[[list[int], int, VerifyInput], list[int]]
"""Slots of a request's prefix in logical order, which request it is, what it was handed: slots
that are read instead."""


def reprefixed(backend: Backend, change: Prefix) -> Backend:
    """The backend reads `change` of each request's prefix, which may be longer or shorter.

    It has a line or a list a row, or finds the prefix in the token table.
    """
    written_out = backend.consumes & {"page_table", "kv_indices"}
    if "req_to_token" in backend.consumes and not written_out:
        return launched(backend, lambda x: _with_prefixes(x, change))

    def of_row(row: Row) -> Row:
        front = change(list(row.front), row.request, row.x)
        keys = (*front, *row.path)
        cut = 0 if row.window is None else max(0, len(keys) - row.window)
        return replace(row, keys=keys, cut=cut)

    return relisted(backend, of_row)


def _with_prefixes(x: VerifyInput, change: Prefix) -> VerifyInput:
    table, at = x.req_to_token.clone(), x.request_slots.tolist()
    lengths = x.seq_lens.tolist()
    found = [
        change(table[row, :length].tolist(), b, x)
        for b, (row, length) in enumerate(zip(at, lengths, strict=True))
    ]
    wider = max(0, max(map(len, found)) - table.shape[1])
    table = torch.nn.functional.pad(table, (0, wider))
    for row, slots in zip(at, found, strict=True):
        table[row, : len(slots)] = torch.tensor(slots, dtype=table.dtype, device=table.device)
    if x.custom_mask is not None and x.mask_mode is MaskMode.FULL_MASK:
        x = _with_blocks(x, _blocks(x))
    return replace(x, req_to_token=table, seq_lens=x.seq_lens.new_tensor([len(s) for s in found]))
