"""Candidates by hand for the tests of the reference builder, and its mask read cell by cell."""

import torch

from treeproof.backends.reference.mask import mask_offsets, packed_dtype
from treeproof.contract.case import MaskMode
from treeproof.contract.inputs import Candidates
from treeproof.contract.layout import KVLayout
from treeproof.contract.shape import AttentionShape

SHAPE = AttentionShape(num_q_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16)
MODES = tuple(MaskMode)


def candidates(
    selected, parents, topk, steps, prefixes, *, tokens=None, bonus=None, mode=MaskMode.QLEN_ONLY,
    rows=None, nodes=None, fill=True, slack=0, shape=SHAPE, page_size=1, pad_slot=0,
):  # fmt: skip
    """Candidates by hand. Column c of request b lives in slot 1000 * (b + 1) + c; table row is B - b."""
    batch, drafted = len(selected), len(selected[0])
    rows = rows or [drafted + 1] * batch
    cells = mask_offsets(mode, prefixes, rows)[-1] + slack
    item = packed_dtype(max(rows)) if mode is MaskMode.QLEN_ONLY_BITPACKING else torch.bool
    garbage = (torch.arange(cells * item.itemsize) % 3 == 0).to(torch.uint8)
    table = torch.full((batch + 1, 256), -7)
    for b in range(batch):
        table[batch - b] = 1000 * (b + 1) + torch.arange(256)
    return Candidates(
        bonus_tokens=torch.tensor(bonus or [7] * batch),
        parent_list=torch.tensor(parents, dtype=torch.int64).view(batch, -1),
        selected_index=torch.tensor(selected, dtype=torch.int64).view(batch, -1),
        draft_token=torch.tensor(tokens or selected, dtype=torch.int64).view(batch, -1),
        num_rows=torch.tensor(rows),
        num_nodes=torch.tensor(nodes or rows),
        seq_lens=torch.tensor(prefixes),
        request_slots=torch.tensor([batch - b for b in range(batch)]),
        req_to_token=table,
        topk=topk,
        spec_steps=steps,
        shape=shape,
        kv=KVLayout(page_size=page_size, num_slots=4096, pad_slot=pad_slot),
        mask_mode=mode,
        mask_buffer=garbage.view(item),
        fill_prefix_mask=fill,
    )


def bits(*words):
    """Rows of a mask from little-endian words: bit j is column j."""
    return [[word >> j & 1 for j in range(len(words))] for word in words]


def tree_block(x, b):
    """(R, R) tree block of request b, decoded here cell by cell."""
    rows = (x.qo_indptr[b + 1] - x.qo_indptr[b]).item()
    prefix, start = x.seq_lens[b].item(), x.mask_indptr[b].item()
    if x.mask_mode is MaskMode.QLEN_ONLY_BITPACKING:
        size = x.custom_mask.element_size()
        octets = x.custom_mask.view(torch.uint8).tolist()[start * size : (start + rows) * size]
        items = [
            int.from_bytes(bytes(octets[i * size : (i + 1) * size]), "little") for i in range(rows)
        ]
        return [[item >> j & 1 for j in range(rows)] for item in items]
    skip = prefix if x.mask_mode is MaskMode.FULL_MASK else 0
    cells = x.custom_mask.int().tolist()
    return [
        cells[start + i * (skip + rows) + skip : start + (i + 1) * (skip + rows)]
        for i in range(rows)
    ]


TRACE = {
    "selected": [[0, 1, 4, 8, 20, 24, 36], [0, 4, 5, 6, 7, 24, 36]],
    "parents": [
        [-1, 0, 1, 2, 3, 4, 8, 9, 10, 20, 24, 21, 28],
        [-1, 0, 1, 2, 3, 4, 5, 6, 7, 24, 28, 20, 21],
    ],
    "topk": 4, "steps": 4, "prefixes": [5, 10], "bonus": [29974, 13],
    "tokens": [
        [29896, 29906, 29889, 29974, 29946, 29896, 29946],
        [13, 22550, 4136, 16492, 8439, 29871, 29941],
    ],
}  # fmt: skip
"""The trace that SGLang recorded: two requests, topk 4, four steps, eight rows."""
