"""The input of `build`: the trees of a case as selected candidates of a draft pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treeproof.contract.case import MaskMode, VerifyCase
from treeproof.contract.counter import address_hash
from treeproof.contract.inputs import Candidates
from treeproof.contract.ledger import SlotLedger
from treeproof.generate.data import hash_tensor
from treeproof.generate.embedding import Embedding, embed, pool_dims, pool_size

if TYPE_CHECKING:
    from torch import Tensor

# Address words of the draws made here; those of `data` begin at 1, those of the ledger at 101.
_FREE_CELLS, _MASK_GARBAGE, _FIRST_SLOT = 201, 202, 203


def candidates(case: VerifyCase, ledger: SlotLedger, device: str = "cpu") -> Candidates:
    """The candidates that a draft phase would hand to `build`, for every request of the case.

    Rows come in the order of `row_of_node`, whatever it is, with padding at the end. Cells of
    `parent_list` that no candidate reaches hold wrong but plausible pool indices, and the mask
    buffer (as long as its mode needs, and `mask.slack` more) holds random bytes.
    """
    import torch

    topk, steps = pool_dims(case)
    embeddings = [_embedding(case, b, topk) for b in range(len(case.requests))]
    rows = [request.num_rows for request in case.requests]
    selected = torch.full((len(rows), max(rows) - 1), -1)
    tokens = torch.full_like(selected, -1)
    for b, (request, embedding) in enumerate(zip(case.requests, embeddings, strict=True)):
        drafted = request.node_of_row[1:]
        selected[b, : len(drafted)] = torch.tensor([embedding.index[n] for n in drafted])
        tokens[b, : len(drafted)] = torch.tensor([request.tree.tokens[n] for n in drafted])
    return Candidates(
        bonus_tokens=torch.tensor([r.tree.tokens[0] for r in case.requests], device=device),
        parent_list=_parent_list(case, embeddings, topk, steps).to(device),
        selected_index=selected.to(device),
        draft_token=tokens.to(device),
        num_rows=torch.tensor(rows, device=device),
        num_nodes=torch.tensor([r.num_nodes for r in case.requests], device=device),
        seq_lens=torch.tensor([r.prefix_len for r in case.requests], device=device),
        request_slots=torch.tensor(ledger.request_slots, device=device),
        req_to_token=torch.from_numpy(ledger.token_table).to(device),
        topk=topk,
        spec_steps=steps,
        shape=case.shape,
        kv=case.layout,
        mask_mode=case.mask.mode,
        mask_buffer=_mask_buffer(case, device),
        fill_prefix_mask=case.mask.fill_prefix,
    )


def _embedding(case: VerifyCase, request: int, topk: int) -> Embedding:
    """Ranks follow rows, so breadth-first rows give ascending indices, as a sorted selection does."""
    drawn = case.requests[request]

    def first_slot(level: int, spare: int) -> int:
        return address_hash(case.seed, _FIRST_SLOT, request, level) % (spare + 1)

    return embed(drawn.tree, topk, drawn.row_of_node, first_slot)


def _parent_list(case: VerifyCase, embeddings: list[Embedding], topk: int, steps: int) -> Tensor:
    """(B, topk*(steps-1) + 1), or (B, 0) where all trees have depth 1."""
    import torch

    if steps == 1:
        return torch.empty(len(embeddings), 0, dtype=torch.int64)
    cells = torch.arange(topk * (steps - 1) + 1)
    requests = torch.arange(len(embeddings))[:, None]
    free = hash_tensor(case.seed, _FREE_CELLS, requests, cells)
    parent_list = free % (pool_size(topk, steps) + 1) - 1
    reached = [
        (b, cell, parent)
        for b, embedding in enumerate(embeddings)
        for cell, parent in embedding.parent_list.items()
    ]
    row, cell, parent = torch.tensor(reached, dtype=torch.int64).reshape(-1, 3).unbind(1)
    parent_list[row, cell] = parent
    return parent_list


def _mask_buffer(case: VerifyCase, device: str) -> Tensor:
    """Garbage in the item type of the mask mode: bool, or the smallest that holds a row's bits."""
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
    count += case.mask.slack
    bytes_needed = count * item.itemsize
    words = hash_tensor(
        case.seed, _MASK_GARBAGE, torch.arange(-(-bytes_needed // 8), device=device)
    )
    garbage = words.view(torch.uint8)[:bytes_needed]
    if item is torch.bool:
        return garbage.bitwise_and_(1).view(torch.bool)
    return garbage.view(item)
