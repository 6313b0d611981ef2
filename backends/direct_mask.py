"""Backend `direct-mask`: dense attention under the tree mask, whatever layout the mask has.

The mask is the only account of the tree that is read: depths, parents and windows come from it.
The only backend that holds a rows x keys tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from treeproof.backends.reference.store import store_kv
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.case import MaskMode
from treeproof.contract.inputs import Accepted, Attended, Candidates, Committed, VerifyInput
from treeproof.contract.registry import register


@register(
    "direct-mask",
    consumes={
        "draft_token",
        "seq_lens",
        "qo_indptr",
        "out_cache_loc",
        "request_slots",
        "req_to_token",
        "custom_mask",
        "mask_indptr",
        "sinks",
        "alibi_slopes",
        "k_scale",
        "v_scale",
    },
    # A hidden value is multiplied by a weight of 0, and 0 * NaN is NaN.
    capabilities=Capabilities(
        sibling_order="ascending",
        nan_safe=False,
        softcap=True,
        sinks=True,
        alibi=True,
        kv_dtypes={None, "float8_e4m3fn", "int8"},
        cache_layouts={"NHD", "layered", "interleaved"},
    ),
    numerics=Numerics(p="float32", mul="float32", v="float32"),
)
class DirectMask:
    """Tree attention as one masked softmax a request."""

    def build(self, c: Candidates) -> VerifyInput:
        """Write the ancestor closure of each tree into `c.mask_buffer`; derive the rest from it."""
        trees = [_closure(c, b, real) for b, real in enumerate(c.num_nodes.tolist())]
        mask_indptr = _write(c, trees)
        width = int(c.num_rows.max())
        row = torch.arange(width, device=c.num_rows.device)
        real, launched = row < c.num_nodes[:, None], row < c.num_rows[:, None]  # (B, Nmax)
        first = c.num_rows.cumsum(0) - c.num_rows
        depth = torch.stack([pad(t.sum(1) - 1, (0, width - len(t))) for t in trees])
        parent = torch.stack([pad(_parents(t), (0, width - len(t)), value=-1) for t in trees])
        next_token, next_sibling = _links(parent)
        tokens = torch.cat([c.bonus_tokens[:, None], c.draft_token], dim=1)
        columns = torch.where(real, c.seq_lens[:, None] + row, 0)
        slots = c.req_to_token[c.request_slots[:, None], columns]
        return VerifyInput(
            draft_token=torch.where(real, tokens, 0)[launched],
            positions=torch.where(real, c.seq_lens[:, None] + depth, 0)[launched],
            seq_lens=c.seq_lens,
            qo_indptr=pad(c.num_rows.cumsum(0), (1, 0)),
            out_cache_loc=torch.where(real, slots, c.kv.pad_slot)[launched],
            request_slots=c.request_slots,
            req_to_token=c.req_to_token,
            topk=c.topk,
            spec_steps=c.spec_steps,
            shape=c.shape,
            kv=c.kv,
            custom_mask=c.mask_buffer,
            mask_indptr=mask_indptr,
            mask_mode=c.mask_mode,
            retrieve_index=torch.where(real, first[:, None] + row, -1),
            retrieve_next_token=next_token,
            retrieve_next_sibling=next_sibling,
            retrieve_parent_token=parent,
        )

    def attend(
        self, x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor
    ) -> Attended:
        """Masked softmax over prefix and tree columns of each request, in float32."""
        store_kv(x, k, v, k_cache, v_cache)
        out = q.new_empty(*q.shape[:2], v.shape[2])
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        rows, window = x.qo_indptr.tolist(), x.shape.window
        table_rows = x.request_slots.tolist()
        for b, (prefix, tree) in enumerate(zip(x.seq_lens.tolist(), _trees(x), strict=True)):
            own = slice(rows[b], rows[b + 1])
            depth = tree.sum(1) - 1
            # Row 0 is the root: no row's window begins before its own.
            start = 0 if window is None else max(0, prefix - window + 1)
            visible = pad(tree, (prefix - start, 0), value=True)
            if window is not None:
                index = torch.cat([torch.arange(start - prefix, 0, device=q.device), depth])
                visible = visible & (index > depth[:, None] - window)
            above = torch.arange(start - prefix, 0, device=q.device)
            distance = depth[:, None] - torch.cat([above, depth])
            # A padded row does not see itself. Its column is hidden, but has no slot: name the root's.
            homes = x.out_cache_loc[own]
            homes = torch.where(tree.diagonal(), homes, homes[0])
            slots = torch.cat([x.req_to_token[table_rows[b], start:prefix], homes])
            out[own], lse[own] = _masked_softmax(
                x, q[own], k_cache[slots], v_cache[slots], visible, distance
            )
        declared = {"custom_mask": x.custom_mask, "mask_indptr": x.mask_indptr}
        return Attended(out=out, lse=lse, declared=declared)

    def accept(self, x: VerifyInput, target_predict: Tensor) -> Accepted:
        """Greedy walk over the parents that the mask implies."""
        predicted, drafted = target_predict.tolist(), x.draft_token.tolist()
        width, index, lengths, tokens = x.spec_steps + 1, [], [], []
        for first, tree in zip(x.qo_indptr.tolist(), _trees(x), strict=False):
            child: dict[tuple[int, int], int] = {}
            for row, parent in enumerate(_parents(tree).tolist(), start=first):
                if parent >= 0:
                    child.setdefault((first + parent, drafted[row]), row)
            path = [first]
            while len(path) < width and (path[-1], predicted[path[-1]]) in child:
                path.append(child[path[-1], predicted[path[-1]]])
            index.append(path + [-1] * (width - len(path)))
            lengths.append(len(path))
            tokens.append([predicted[row] for row in path] + [-1] * (width - len(path)))
        device = target_predict.device
        return Accepted(
            accept_index=torch.tensor(index, device=device),
            accept_len=torch.tensor(lengths, device=device),
            tokens=torch.tensor(tokens, device=device),
        )

    def commit(
        self, x: VerifyInput, accepted: Accepted, k_cache: Tensor, v_cache: Tensor
    ) -> Committed:
        """Move accepted row j of each request to the home of its row j; loads before stores."""
        taken = accepted.accept_index >= 0
        step = torch.arange(taken.shape[1], device=taken.device)
        sources = x.out_cache_loc[accepted.accept_index[taken]]
        targets = x.out_cache_loc[(x.qo_indptr[:-1, None] + step)[taken]]
        k_cache[targets] = k_cache[sources]
        v_cache[targets] = v_cache[sources]
        last = accepted.accept_len[:, None] - 1
        return Committed(
            seq_lens=x.seq_lens + accepted.accept_len,
            next_root=accepted.tokens.gather(1, last)[:, 0],
        )


def _closure(c: Candidates, b: int, real: int) -> Tensor:
    """(N_b, N_b) bool: row i is or descends from row j. Powers of the parent matrix."""
    selected = c.selected_index[b, : real - 1]
    beam = selected // c.topk
    # One more cell, for indices past the pool and for the empty list of a one-step draft.
    parents = pad(c.parent_list[b], (0, 1), value=-1)
    parent_pool = parents[beam.clamp(-1, len(parents) - 1)]
    reach = torch.eye(real, dtype=torch.bool, device=selected.device)
    reach[1:, 0] = beam == 0
    reach[1:, 1:] |= (parent_pool[:, None] == selected) & (beam > 0)[:, None]
    lost = (reach[1:].sum(1) != 2).nonzero()
    if len(lost):
        row = int(lost[0]) + 1
        raise ValueError(
            f"selected_index[{b}, {row - 1}] is {int(selected[row - 1])}: row {row} needs exactly one "
            "selected parent"
        )
    for _ in range(c.spec_steps.bit_length()):
        reach = (reach.float() @ reach.float()) > 0
    return reach


def _parents(tree: Tensor) -> Tensor:
    """(R,) parent row of each row of a closure: its deepest ancestor; -1 for the root and padding."""
    depth = tree.sum(1)
    above = (tree & ~torch.eye(len(tree), dtype=torch.bool, device=tree.device)) * depth
    parent = above.argmax(1)
    return torch.where(tree.diagonal() & (depth > 1), parent, -1)


def _links(parent: Tensor) -> tuple[Tensor, Tensor]:
    """(B, Nmax) first child and next sibling of each row, in ascending row order; -1 none."""
    row = torch.arange(parent.shape[1], device=parent.device)
    child = parent[:, None, :] == row[:, None]  # (B, parent, row)
    linked = (parent >= 0)[:, :, None]
    later = (parent[:, :, None] == parent[:, None, :]) & linked & (row > row[:, None])
    # argmax names the first of equal values.
    first_child = torch.where(child.any(2), child.int().argmax(2), -1)
    next_sibling = torch.where(later.any(2), later.int().argmax(2), -1)
    return first_child, next_sibling


def _write(c: Candidates, trees: list[Tensor]) -> Tensor:
    """Lay the closures out in `c.mask_buffer`, in place; (B+1,) first cell of each request.

    A padded row sees the root and no row of the tree sees it.
    """
    indptr, rows, prefix_lens = [0], c.num_rows.tolist(), c.seq_lens.tolist()
    for count, prefix, tree in zip(rows, prefix_lens, trees, strict=True):
        block = pad(tree, (0, count - len(tree), 0, count - len(tree)))
        block[:, 0] = True
        start = indptr[-1]
        if c.mask_mode is MaskMode.FULL_MASK:
            indptr.append(start + count * (prefix + count))
            cells = c.mask_buffer[start : indptr[-1]].view(count, prefix + count)
            cells[:, prefix:] = block
            if c.fill_prefix_mask:
                cells[:, :prefix] = True
        elif c.mask_mode is MaskMode.QLEN_ONLY:
            indptr.append(start + count * count)
            c.mask_buffer[start : indptr[-1]] = block.reshape(-1)
        else:
            indptr.append(start + count)
            size = c.mask_buffer.element_size()
            items = (block.long() << torch.arange(count, device=block.device)).sum(1)
            packed = c.mask_buffer.view(torch.uint8).view(-1, size)
            packed[start : indptr[-1]] = items.view(torch.uint8).view(count, 8)[:, :size]
    return torch.tensor(indptr, device=c.mask_buffer.device)


def _trees(x: VerifyInput) -> list[Tensor]:
    """(R_b, R_b) bool tree block of each request, out of any of the three layouts.

    Prefix cells of a FULL_MASK are not read: a builder may leave them undefined.
    """
    if x.custom_mask is None or x.mask_indptr is None:
        raise ValueError("custom_mask and mask_indptr are needed, and were not built")
    rows, prefix_lens, blocks = x.qo_indptr.tolist(), x.seq_lens.tolist(), []
    for b, start in enumerate(x.mask_indptr.tolist()[:-1]):
        count = rows[b + 1] - rows[b]
        if x.mask_mode is MaskMode.QLEN_ONLY_BITPACKING:
            size = x.custom_mask.element_size()
            octets = x.custom_mask.view(torch.uint8).view(-1, size)[start : start + count]
            bits = octets[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=octets.device)
            blocks.append((bits & 1).bool().reshape(count, 8 * size)[:, :count])
            continue
        cells = x.custom_mask[start:]
        width = count + (prefix_lens[b] if x.mask_mode is MaskMode.FULL_MASK else 0)
        blocks.append(cells[: count * width].view(count, width)[:, width - count :])
    return blocks


def _masked_softmax(
    x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, visible: Tensor, distance: Tensor
) -> tuple[Tensor, Tensor]:
    """`q` (R, Hq, D), `k` (L, Hkv, D), `v` (L, Hkv, Dv), `visible` and `distance` (R, L).

    Out (R, Hq, Dv), and natural-log lse (R, Hq) of the keys alone.
    """
    (rows, heads, dim), (keys, kv_heads, v_dim) = q.shape, v.shape
    group = heads // kv_heads
    grouped = q.float().reshape(rows, kv_heads, group, dim).transpose(0, 1)
    k_lanes = _dequantised(k, x.k_scale).permute(1, 2, 0)
    scores = grouped.reshape(kv_heads, rows * group, dim) @ k_lanes * x.shape.score_scale
    scores = scores.view(kv_heads, rows, group, keys)
    if x.shape.softcap is not None:
        scores = torch.tanh(scores / x.shape.softcap) * x.shape.softcap
    if x.alibi_slopes is not None:
        scores = scores - x.alibi_slopes.view(kv_heads, 1, group, 1) * distance[:, None]
    scores = scores.masked_fill(~visible[:, None, :], float("-inf"))
    p = torch.softmax(scores, dim=-1)
    lse = torch.logsumexp(scores, dim=-1)
    if x.sinks is not None:
        # What the keys keep of the softmax beside the sink.
        p = p * torch.sigmoid(lse - x.sinks.view(kv_heads, 1, group))[..., None]
    values = _dequantised(v, x.v_scale).transpose(0, 1)
    out = (p.view(kv_heads, rows * group, keys) @ values).view(kv_heads, rows, group, v_dim)
    return (
        out.transpose(0, 1).reshape(rows, heads, v_dim).to(q.dtype),
        lse.transpose(0, 1).reshape(rows, heads),
    )


def _dequantised(held: Tensor, scale: Tensor | None) -> Tensor:
    """`held` (L, Hkv, lanes), codes where there is a scale (Hkv,), in float32."""
    return held.float() if scale is None else held.float() * scale[:, None]
