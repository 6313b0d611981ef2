"""The input of `build`: the trees of a case as selected candidates of a draft pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treeproof.contract.case import MaskMode, VerifyCase
from treeproof.contract.counter import address_hash, hash_words
from treeproof.contract.inputs import Candidates
from treeproof.contract.ledger import SlotLedger
from treeproof.generate.columns import columns
from treeproof.generate.data import hash_tensor
from treeproof.generate.embedding import Embedding, embed, pool_dims, pool_size
from treeproof.generate.sending import sent

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch
    from torch import Tensor

    Ints = npt.NDArray[np.int64]

# Address words of the draws made here; those of `data` begin at 1, those of the ledger at 101.
_FREE_CELLS, _MASK_GARBAGE, _FIRST_SLOT = 201, 202, 203


def candidates(
    case: VerifyCase, ledger: SlotLedger, device: str = "cpu", mask_buffer: Tensor | None = None
) -> Candidates:
    """The candidates that a draft phase would hand to `build`, for every request of the case.

    Rows come in the order of `row_of_node`, whatever it is, with padding at the end. Cells of
    `parent_list` that no candidate reaches hold wrong but plausible pool indices, and the mask
    buffer (as long as its mode needs, and `mask.slack` more) holds random bytes, where none is given.
    """
    import numpy as np

    topk, steps = pool_dims(case)
    nodes, embedding = case.nodes, _embedding(case, topk)
    rows = [request.num_rows for request in case.requests]

    def placed(of_nodes: Ints) -> Tensor:
        """(B, Nmax - 1): of every node but the roots, by rows; -1 on padding."""
        table = np.full((len(rows), max(rows)), -1)
        table[nodes.request, nodes.row] = of_nodes
        return sent(table[:, 1:], device)

    return Candidates(
        bonus_tokens=sent([r.tree.tokens[0] for r in case.requests], device),
        parent_list=_parent_list(case, embedding, topk, steps, device),
        selected_index=placed(embedding.index),
        draft_token=placed(nodes.token),
        num_rows=sent(rows, device),
        num_nodes=sent([r.num_nodes for r in case.requests], device),
        seq_lens=sent([r.prefix_len for r in case.requests], device),
        request_slots=sent(ledger.request_slots, device),
        req_to_token=_token_table(ledger, device),
        topk=topk,
        spec_steps=steps,
        shape=case.shape,
        kv=case.layout,
        mask_mode=case.mask.mode,
        mask_buffer=mask_garbage(case, device) if mask_buffer is None else mask_buffer,
        fill_prefix_mask=case.mask.fill_prefix,
    )


def _token_table(ledger: SlotLedger, device: str) -> Tensor:
    """`ledger.token_table`, made where it is needed: it is as large as the cache has slots."""
    import torch

    if ledger.table is not None:
        return sent(ledger.table, device)
    every, pad = columns(ledger, device), ledger.case.layout.page_table_pad
    table = torch.full(ledger.table_shape, pad, device=device)
    row = sent(ledger.request_slots, device)
    table[row[every.request], every.column] = torch.where(every.slot < 0, pad, every.slot)
    return table


def _embedding(case: VerifyCase, topk: int) -> Embedding:
    """Ranks follow rows, so breadth-first rows give ascending indices, as a sorted selection does."""
    import numpy as np

    def first_slot(levels: Ints, spare: Ints) -> Ints:
        start = address_hash(case.seed, _FIRST_SLOT)
        request, depth = levels.astype(np.uint64)
        drawn = hash_words(hash_words(start, request), depth)
        return (drawn % (spare + 1).astype(np.uint64)).astype(np.int64)

    return embed(case.nodes, topk, case.nodes.row, first_slot)


def _parent_list(
    case: VerifyCase, embedding: Embedding, topk: int, steps: int, device: str
) -> Tensor:
    """(B, topk*(steps-1) + 1), or (B, 0) where all trees have depth 1."""
    import numpy as np
    import torch

    requests = len(case.requests)
    if steps == 1:
        return torch.empty(requests, 0, dtype=torch.int64, device=device)
    cells, most = topk * (steps - 1) + 1, pool_size(topk, steps) + 1
    parent_list = _free_cells(case.seed, requests, cells, device) % most - 1
    reached = np.flatnonzero(embedding.cell >= 0)
    of_nodes = case.nodes.request[reached], embedding.cell[reached], embedding.index[reached]
    at_request, at_cell, pool = sent(np.stack(of_nodes), device)
    parent_list[at_request, at_cell] = pool
    return parent_list


def _free_cells(seed: int, requests: int, cells: int, device: str) -> Tensor:
    """(B, cells) random words. On a GPU made there, as in a large batch they are most of a list; numpy makes
    the few of a small one in a third of the time that torch takes."""
    import numpy as np
    import torch

    if torch.device(device).type != "cpu":
        of, cell = (torch.arange(n, device=device) for n in (requests, cells))
        return hash_tensor(seed, _FREE_CELLS, of[:, None], cell)
    request = np.arange(requests, dtype=np.uint64)[:, None]
    words = hash_words(address_hash(seed, _FREE_CELLS), request)
    return torch.from_numpy(hash_words(words, np.arange(cells, dtype=np.uint64)).view(np.int64))


def mask_garbage(case: VerifyCase, device: str) -> Tensor:
    """Garbage, as much as there is room for a mask and `mask.slack` more."""
    import torch

    item, count = mask_items(case)
    bytes_needed = count * item.itemsize
    words = hash_tensor(
        case.seed, _MASK_GARBAGE, torch.arange(-(-bytes_needed // 8), device=device)
    )
    garbage = words.view(torch.uint8)[:bytes_needed]
    if item is torch.bool:
        return garbage.bitwise_and_(1).view(torch.bool)
    return garbage.view(item)


def mask_items(case: VerifyCase) -> tuple[torch.dtype, int]:
    """Item type of the mask mode, bool or the smallest that holds a row's bits, and how many."""
    import torch

    rows = [request.num_rows for request in case.requests]
    if case.mask.mode is MaskMode.QLEN_ONLY_BITPACKING:
        width = next(bits for bits in (8, 16, 32) if max(rows) <= bits)
        item, count = getattr(torch, f"uint{width}"), sum(rows)
    elif case.mask.mode is MaskMode.QLEN_ONLY:
        item, count = torch.bool, sum(r * r for r in rows)
    else:
        lengths = [request.prefix_len for request in case.requests]
        item, count = torch.bool, sum(r * (p + r) for r, p in zip(rows, lengths, strict=True))
    return item, count + case.mask.slack
