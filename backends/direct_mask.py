"""Backend `direct-mask`: dense attention under the tree mask, whatever layout the mask has.

The mask is the only account of the tree that is read: depths, parents and windows come from it.
The only backend that holds a rows x keys tensor, one for several requests: what pads the shorter of
them is the root, hidden as another branch is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from treeproof.backends.reference.store import store_kv
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.case import MaskMode
from treeproof.contract.inputs import Accepted, Attended, Candidates, Committed, VerifyInput
from treeproof.contract.registry import register

_GATHERED = {"cpu": 1 << 18, "cuda": 1 << 27}
"""Elements of K, and scores, of the requests that are attended to at once: on the CPU 1 MiB in float32, which
stays in a core's cache; a GPU would wait for the host between so small ones."""


class _Request(NamedTuple):
    """Where a request's rows, tree block and prefix are."""

    first: int
    rows: int
    cell: int
    """First cell of the tree block in the mask."""
    stride: int
    """Cells from one row of the block to the next."""
    table_row: int
    start: int
    """First prefix column that a row may see."""
    prefix: int

    @property
    def above(self) -> int:
        """Prefix columns from there on."""
        return self.prefix - self.start


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
    """Tree attention as a masked softmax over padded requests."""

    def build(self, c: Candidates) -> VerifyInput:
        """Write the ancestor closure of each tree into `c.mask_buffer`; derive the rest from it."""
        width = c.selected_index.shape[1] + 1
        row = torch.arange(width, device=c.num_rows.device)
        real, launched = row < c.num_nodes[:, None], row < c.num_rows[:, None]  # (B, Nmax)
        trees = _closures(c, real)
        mask_indptr = _write(c, trees, launched)
        first = c.num_rows.cumsum(0) - c.num_rows
        depth, parent = trees.sum(2) - 1, _parents(trees)
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
        window = x.shape.window
        for chunk, rows, above in _chunks(_requests(x), q, k_cache):
            first, count, cell, stride, table_row, start, prefix = _columns(chunk, q.device)
            # Columns are counted from the root's, which is in one place for all requests.
            every = torch.arange(-above, rows, device=q.device)
            column = every[:above]
            row, tree = _trees(x, every[above:], count, cell, stride)
            table_column = prefix + column
            inside = (table_column >= start)[:, None].expand(-1, rows, -1)
            visible = torch.cat([inside, tree], dim=2)
            if window is not None:
                visible = visible & (_distance(tree, column) < window)
            # What is hidden has a slot all the same: what a prefix is short of its first, or where there is
            # none the root's; a padded row, which does not see itself, the root's.
            own = first + row
            homes = x.out_cache_loc[own]
            homes = torch.where(tree.diagonal(dim1=1, dim2=2), homes, homes[:, :1])
            shared = x.req_to_token[table_row, torch.maximum(table_column, start)]
            slots = torch.cat([shared, homes], dim=1)
            # A root's rows that are there for padding hold what it holds itself.
            out[own], lse[own] = _masked_softmax(
                x, q[own], k_cache, v_cache, slots, visible, tree, column
            )
        declared = {"custom_mask": x.custom_mask, "mask_indptr": x.mask_indptr}
        return Attended(out=out, lse=lse, declared=declared)

    def accept(self, x: VerifyInput, target_predict: Tensor) -> Accepted:
        """Greedy walk over the parents that the mask implies."""
        predicted, drafted = target_predict.tolist(), x.draft_token.tolist()
        width, index, lengths, tokens = x.spec_steps + 1, [], [], []
        requests = _requests(x)
        _, count, cell, stride, *_ = _columns(requests, target_predict.device)
        local = torch.arange(max(r.rows for r in requests), device=count.device)
        _, trees = _trees(x, local, count, cell, stride)
        for (first, *_), parents in zip(requests, _parents(trees).tolist(), strict=True):
            child: dict[tuple[int, int], int] = {}
            for row, parent in enumerate(parents, start=first):
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


def _closures(c: Candidates, real: Tensor) -> Tensor:
    """(B, Nmax, Nmax) bool: row i is or descends from row j. Powers of the parent matrix."""
    selected, drafted = c.selected_index, real[:, 1:]
    beam = selected // c.topk
    # One more cell, for indices that are outside of the list or none.
    parents = pad(c.parent_list, (0, 1), value=-1)
    past = parents.shape[1] - 1
    parent_pool = parents.gather(1, torch.where(beam < 0, past, beam.clamp(max=past)))
    reach = torch.eye(real.shape[1], dtype=torch.bool, device=real.device) & real[:, None]
    reach[:, 1:, 0] = (beam == 0) & drafted
    known = (parent_pool[:, :, None] == selected[:, None]) & drafted[:, None]
    reach[:, 1:, 1:] |= known & ((beam > 0) & drafted)[:, :, None]
    lost = (drafted & (reach[:, 1:].sum(2) != 2)).nonzero().tolist()
    if lost:
        b, row = lost[0]
        raise ValueError(
            f"selected_index[{b}, {row}] is {int(selected[b, row])}: row {row + 1} needs exactly one "
            "selected parent"
        )
    for _ in range(c.spec_steps.bit_length()):
        reach = (reach.float() @ reach.float()) > 0
    return reach


def _parents(trees: Tensor) -> Tensor:
    """(B, R) parent row of each row of closures (B, R, R): its deepest ancestor; -1 for the root and
    padding."""
    depth = trees.sum(2)
    itself = torch.eye(trees.shape[1], dtype=torch.bool, device=trees.device)
    parent = ((trees & ~itself) * depth[:, None]).argmax(2)
    return torch.where(trees.diagonal(dim1=1, dim2=2) & (depth > 1), parent, -1)


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


def _write(c: Candidates, trees: Tensor, launched: Tensor) -> Tensor:
    """Lay closures (B, Nmax, Nmax) out in `c.mask_buffer`, in place; (B+1,) first cell of each request.

    A padded row sees the root and no row of the tree sees it.
    """
    column = torch.arange(launched.shape[1], device=launched.device)
    blocks = trees | (column == 0)
    if c.mask_mode is MaskMode.QLEN_ONLY_BITPACKING:
        size = c.mask_buffer.element_size()
        items = (blocks.long() << column).sum(2)[launched]
        packed = c.mask_buffer.view(torch.uint8).view(-1, size)
        packed[: len(items)] = items.view(torch.uint8).view(-1, 8)[:, :size]
        return pad(c.num_rows.cumsum(0), (1, 0))
    before = c.seq_lens if c.mask_mode is MaskMode.FULL_MASK else torch.zeros_like(c.seq_lens)
    stride = before + c.num_rows
    indptr = pad((c.num_rows * stride).cumsum(0), (1, 0))
    if c.mask_mode is MaskMode.FULL_MASK and c.fill_prefix_mask:
        c.mask_buffer[: int(indptr[-1])] = True
    cells = (indptr[:-1] + before)[:, None] + column * stride[:, None]  # (B, Nmax), of column 0
    cells = cells[:, :, None] + column
    inside = launched[:, :, None] & launched[:, None]
    c.mask_buffer[cells[inside]] = blocks[inside]
    return indptr


def _requests(x: VerifyInput) -> list[_Request]:
    """Where the rows, the mask and the prefix of each request are.

    Prefix cells of a FULL_MASK are not read: a builder may leave them undefined.
    """
    if x.custom_mask is None or x.mask_indptr is None:
        raise ValueError("custom_mask and mask_indptr are needed, and were not built")
    packed = x.mask_mode is MaskMode.QLEN_ONLY_BITPACKING
    bits = 8 * x.custom_mask.element_size() if packed else 1
    most, window = len(x.custom_mask) * bits, x.shape.window
    rows, prefix_lens, found = x.qo_indptr.tolist(), x.seq_lens.tolist(), []
    table_rows = x.request_slots.tolist()
    for b, item in enumerate(x.mask_indptr.tolist()[:-1]):
        count, prefix = rows[b + 1] - rows[b], prefix_lens[b]
        before = prefix_lens[b] if x.mask_mode is MaskMode.FULL_MASK else 0
        cell, stride = item * bits + before, bits if packed else before + count
        end = cell + (count - 1) * stride + count
        if end > most:
            raise ValueError(f"custom_mask has {most} cells, and request {b} needs {end}")
        # Row 0 is the root: no row's window begins before its own.
        start = 0 if window is None else max(0, prefix - window + 1)
        found.append(_Request(rows[b], count, cell, stride, table_rows[b], start, prefix))
    return found


def _chunks(
    requests: list[_Request], q: Tensor, k_cache: Tensor
) -> Iterator[tuple[list[_Request], int, int]]:
    """Requests of about as many keys, as many as `_GATHERED` allows once each is padded to the largest; the
    most rows and the most prefix columns among them."""
    lanes, heads = k_cache.shape[1:].numel(), q.shape[1]
    chunk: list[_Request] = []
    most_rows = most_above = 0
    for request in sorted(requests, key=lambda r: r.above + r.rows):
        rows, above = max(most_rows, request.rows), max(most_above, request.above)
        elements = (len(chunk) + 1) * (above + rows) * max(lanes, rows * heads)
        if chunk and elements > _GATHERED[q.device.type]:
            yield chunk, most_rows, most_above
            chunk, rows, above = [], request.rows, request.above
        chunk.append(request)
        most_rows, most_above = rows, above
    yield chunk, most_rows, most_above


def _columns(requests: list[_Request], device: torch.device) -> tuple[Tensor, ...]:
    """(n, 1) of each field."""
    return torch.tensor([*zip(*requests, strict=True)], device=device)[:, :, None].unbind()


def _trees(
    x: VerifyInput, row: Tensor, count: Tensor, cell: Tensor, stride: Tensor
) -> tuple[Tensor, Tensor]:
    """(n, R) rows of each request, and (n, R, R) bool tree blocks out of any of the three layouts.

    `row` (R,) counts up to the most rows, the others are (n, 1). What pads a request is its root again, in
    columns that are hidden.
    """
    assert x.custom_mask is not None
    listed = row < count
    row = row * listed
    cells = (cell + row * stride)[:, :, None] + row[:, None]
    if x.mask_mode is MaskMode.QLEN_ONLY_BITPACKING:
        octets = x.custom_mask.view(torch.uint8).take(cells // 8)
        return row, (octets >> cells % 8 & 1).bool() & listed[:, None]
    return row, x.custom_mask.take(cells) & listed[:, None]


def _distance(tree: Tensor, column: Tensor) -> Tensor:
    """(n, R, L) how many logical indices rows of `tree` (n, R, R) are past prefix columns, counted from the
    root's, and past each other."""
    depth = tree.sum(2) - 1
    index = torch.cat([column.expand(len(depth), -1), depth], dim=1)
    return depth[:, :, None] - index[:, None]


def _masked_softmax(
    x: VerifyInput,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    visible: Tensor,
    tree: Tensor,
    column: Tensor,
) -> tuple[Tensor, Tensor]:
    """`q` (n, R, Hq, D), `slots` (n, L), `visible` (n, R, L); `_distance` explains the rest.

    Out (n, R, Hq, Dv), and natural-log lse (n, R, Hq) of the keys alone.
    """
    (requests, rows, heads, dim), (_, kv_heads, v_dim) = q.shape, v_cache.shape
    group, keys = heads // kv_heads, slots.shape[1]
    flat = requests * kv_heads, rows * group
    grouped = q.float() * x.shape.score_scale
    grouped = grouped.view(requests, rows, kv_heads, group, dim).transpose(1, 2)
    k_lanes = _dequantised(k_cache[slots], x.k_scale).transpose(1, 2)
    scores = torch.bmm(grouped.reshape(*flat, dim), k_lanes)
    scores = scores.view(requests, kv_heads, rows, group, keys)
    if x.shape.softcap is not None:
        scores = torch.tanh(scores / x.shape.softcap) * x.shape.softcap
    if x.alibi_slopes is not None:
        distance = _distance(tree, column)
        slopes = x.alibi_slopes.view(kv_heads, 1, group, 1)
        scores = scores - slopes * distance[:, None, :, None]
    scores.masked_fill_(~visible[:, None, :, None], float("-inf"))
    p = torch.softmax(scores, dim=-1)
    # The highest score's weight is exp(score - lse).
    lse = scores.amax(-1) - p.amax(-1).log()
    if x.sinks is not None:
        # What the keys keep of the softmax beside the sink.
        p = p * torch.sigmoid(lse - x.sinks.view(kv_heads, 1, group))[..., None]
    values = _dequantised(v_cache[slots], x.v_scale)
    out = torch.bmm(p.view(*flat, keys), values).view(requests, kv_heads, rows, group, v_dim)
    return (
        out.transpose(1, 2).reshape(requests, rows, heads, v_dim).to(q.dtype),
        lse.transpose(1, 2).reshape(requests, rows, heads),
    )


def _dequantised(held: Tensor, scale: Tensor | None) -> Tensor:
    """`held` (n, L, Hkv, lanes), codes where there is a scale (Hkv,), in float32 (n * Hkv, L, lanes)."""
    lanes = held.float() if scale is None else held.float() * scale[:, None]
    return lanes.transpose(1, 2).flatten(0, 1)
