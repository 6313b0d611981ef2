"""Backend `page-table`: one table line a row, its prefix and then its ancestors, one softmax.

The line of a row lists the slots of its logical indices 0 to P + depth, which makes tree attention
ordinary paged attention with pages of one key. Prefix pages of any size are expanded when the table
is built. A window is the end of a line, so it is cut by logical index.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from treeproof.backends.reference.store import store_kv
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.inputs import Accepted, Attended, Candidates, Committed, VerifyInput
from treeproof.contract.registry import register

_GATHERED = {"cpu": 1 << 18, "cuda": 1 << 27}
"""Elements of K that a chunk of rows gathers: on the CPU 1 MiB in float32, which stays in a core's cache; a GPU
would wait for the host between so small ones."""


@register(
    "page-table",
    consumes={
        "draft_token",
        "seq_lens",
        "qo_indptr",
        "out_cache_loc",
        "request_slots",
        "req_to_token",
        "page_table",
        "cache_seqlens",
        "sinks",
        "alibi_slopes",
        "k_scale",
        "v_scale",
    },
    capabilities=Capabilities(
        sibling_order="ascending",
        nan_safe=True,
        capturable=True,
        softcap=True,
        sinks=True,
        alibi=True,
        kv_dtypes={None, "float8_e4m3fn", "int8"},
        cache_layouts={"NHD", "layered", "interleaved"},
    ),
    numerics=Numerics(p="float32", mul="float32", v="float32"),
)
class PageTable:
    """Tree attention as paged attention of T independent sequences."""

    def build(self, c: Candidates) -> VerifyInput:
        """Chase parents in step, all rows at once; a line is the prefix and then the path."""
        width = int(c.num_rows.max())
        row = torch.arange(width, device=c.num_rows.device)
        real, launched = row < c.num_nodes[:, None], row < c.num_rows[:, None]  # (B, Nmax)
        parent = _parents(c, real)
        path, depth = _paths(parent, real, c.spec_steps)
        tokens = torch.cat([c.bonus_tokens[:, None], c.draft_token], dim=1)
        slots = _expanded(c)
        own = slots.gather(1, torch.where(real, c.seq_lens[:, None] + row, 0))
        lines, lengths = _lines(c.seq_lens, slots, path, depth)
        first = c.num_rows.cumsum(0) - c.num_rows
        next_token, next_sibling = _links(parent)
        return VerifyInput(
            draft_token=torch.where(real, tokens, 0)[launched],
            positions=torch.where(real, lengths - 1, 0)[launched],
            seq_lens=c.seq_lens,
            qo_indptr=pad(c.num_rows.cumsum(0), (1, 0)),
            out_cache_loc=torch.where(real, own, c.kv.pad_slot)[launched],
            request_slots=c.request_slots,
            req_to_token=c.req_to_token,
            topk=c.topk,
            spec_steps=c.spec_steps,
            shape=c.shape,
            kv=c.kv,
            retrieve_index=torch.where(real, first[:, None] + row, -1),
            retrieve_next_token=next_token,
            retrieve_next_sibling=next_sibling,
            retrieve_parent_token=parent,
            page_table=lines[launched],
            cache_seqlens=lengths[launched],
        )

    def attend(
        self, x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor
    ) -> Attended:
        """Each row against the last min(length, window) slots of its line, in float32."""
        store_kv(x, k, v, k_cache, v_cache)
        table, lengths = _table(x)
        reach = lengths if x.shape.window is None else lengths.clamp(max=x.shape.window)
        out = torch.empty(*q.shape[:2], v.shape[2], dtype=torch.float32, device=q.device)
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        longest = min(table.shape[1], x.shape.window or table.shape[1])
        step = torch.arange(longest, device=q.device)
        listed = step < reach[:, None]
        # Past its end a line's first slot inside the window is named again, at weight 0.
        cells = (lengths - reach)[:, None] + step * listed
        slots, distance = table.gather(1, cells), lengths[:, None] - 1 - cells
        # Once, and not for each row that reads a key.
        keys, values = (cache.float().contiguous() for cache in (k_cache, v_cache))
        ranked = reach.argsort()  # so that lines of a chunk are about equally long
        for own, width in _chunks(reach[ranked], longest, k_cache):
            rows = ranked[own]
            out[rows], lse[rows] = _softmax_over(
                x,
                q[rows].float(),
                slots[rows, :width],
                listed[rows, :width],
                distance[rows, :width],
                keys,
                values,
            )
        kv_indptr = pad(reach.cumsum(0), (1, 0))
        declared = {
            "kv_indptr": kv_indptr,
            "kv_indices": _one_after_another(slots, kv_indptr),
            "kv_start": torch.zeros_like(reach),  # what is declared is cut already
        }
        return Attended(out=out.to(q.dtype), lse=lse, declared=declared)

    def accept(self, x: VerifyInput, target_predict: Tensor) -> Accepted:
        """Every row checks the edge above it; from the root, step to the child whose edge holds."""
        parent = _parent_of_line(x)
        holds = (parent >= 0) & (target_predict[parent.clamp(min=0)] == x.draft_token)
        after = torch.full_like(parent, -1)
        # Siblings hold distinct tokens: no two rows below one parent hold their edge.
        after[parent[holds]] = holds.nonzero()[:, 0]
        path = [x.qo_indptr[:-1]]
        for _ in range(x.spec_steps):
            path.append(torch.where(path[-1] >= 0, after[path[-1]], -1))
        accept_index = torch.stack(path, dim=1)
        taken = accept_index >= 0
        return Accepted(
            accept_index=accept_index,
            accept_len=taken.sum(1),
            tokens=torch.where(taken, target_predict[accept_index], -1),
        )

    def commit(
        self, x: VerifyInput, accepted: Accepted, k_cache: Tensor, v_cache: Tensor
    ) -> Committed:
        """Last slot of an accepted row's line to columns P, P + 1, ... of `req_to_token`."""
        table, lengths = _table(x)
        own = table.gather(1, lengths[:, None] - 1)[:, 0]
        taken = accepted.accept_index >= 0
        step = torch.arange(taken.shape[1], device=taken.device)
        column = (x.seq_lens[:, None] + step)[taken]
        table_row = x.request_slots[:, None].expand_as(taken)[taken]
        targets = x.req_to_token[table_row, column]
        sources = own[accepted.accept_index[taken]]
        # index_copy_ takes its values from a gathered copy, so overlap does no harm. It is not there
        # for every kind of code, and moves bytes.
        for cache in (k_cache.view(torch.uint8), v_cache.view(torch.uint8)):
            cache.index_copy_(0, targets, cache[sources])
        last = (accepted.tokens >= 0).sum(1, keepdim=True) - 1
        return Committed(
            seq_lens=x.seq_lens + taken.sum(1), next_root=accepted.tokens.gather(1, last)[:, 0]
        )


def _parents(c: Candidates, real: Tensor) -> Tensor:
    """(B, Nmax) parent row; -1 for the root and padding. Parents are found by binary search."""
    # A last column above every pool index keeps the search inside the table.
    selected = pad(c.selected_index, (0, 1), value=1 << 62)
    ordered, order = selected.sort(dim=1)
    beam = c.selected_index.clamp(min=0) // c.topk
    parents = pad(c.parent_list, (0, 1), value=-1)  # one more cell, for indices past the pool
    parent_pool = parents.gather(1, beam.clamp(max=parents.shape[1] - 1))
    at = torch.searchsorted(ordered, parent_pool)
    below_root = beam == 0
    lost = (real[:, 1:] & ~below_root & (ordered.gather(1, at) != parent_pool)).nonzero().tolist()
    if lost:
        b, j = lost[0]
        raise ValueError(
            f"selected_index[{b}, {j}] is {int(selected[b, j])}: its parent "
            f"{int(parent_pool[b, j])} is not selected"
        )
    parent = torch.where(below_root, 0, order.gather(1, at) + 1)
    return pad(torch.where(real[:, 1:], parent, -1), (1, 0), value=-1)


def _paths(parent: Tensor, real: Tensor, spec_steps: int) -> tuple[Tensor, Tensor]:
    """(B, Nmax, S+1) rows from the root down to each row, then the row repeated; (B, Nmax) depth.

    A padded row's path is the root.
    """
    depth = torch.zeros_like(parent)
    up = [torch.where(real, torch.arange(parent.shape[1], device=parent.device), 0)]
    for _ in range(spec_steps):
        above = parent.gather(1, up[-1])
        depth = depth + (above >= 0)
        up.append(torch.where(above >= 0, above, up[-1]))
    step = torch.arange(spec_steps + 1, device=parent.device)
    return torch.stack(up, dim=2).gather(2, (depth[:, :, None] - step).clamp(min=0)), depth


def _expanded(c: Candidates) -> Tensor:
    """(B, columns) slots of each request's logical columns, out of whole pages."""
    page = c.kv.page_size
    pages = c.req_to_token[c.request_slots, ::page] // page
    return (pages[:, :, None] * page + torch.arange(page, device=pages.device)).flatten(1)


def _lines(prefix: Tensor, slots: Tensor, path: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
    """(B, Nmax, longest) slots by logical index, and (B, Nmax) how many of them count."""
    lengths = prefix[:, None] + depth + 1
    index = torch.arange(int(lengths.max()), device=prefix.device)
    step = (index - prefix[:, None]).clamp(0, path.shape[2] - 1)  # (B, longest)
    tree = path.gather(2, step[:, None].expand(-1, path.shape[1], -1))
    column = torch.where(index < prefix[:, None, None], index, prefix[:, None, None] + tree)
    request = torch.arange(len(prefix), device=prefix.device)[:, None, None]
    return slots[request, column], lengths


def _links(parent: Tensor) -> tuple[Tensor, Tensor]:
    """(B, Nmax) first child and next sibling, ascending: neighbours once rows are sorted by parent."""
    ranked, order = parent.sort(dim=1, stable=True)
    follows = (ranked[:, 1:] == ranked[:, :-1]) & (ranked[:, 1:] >= 0)
    next_sibling = torch.full_like(parent, -1)
    next_sibling.scatter_(1, order[:, :-1], torch.where(follows, order[:, 1:], -1))
    row = torch.arange(parent.shape[1], device=parent.device).expand_as(parent).contiguous()
    at = torch.searchsorted(ranked, row).clamp(max=parent.shape[1] - 1)
    next_token = torch.where(ranked.gather(1, at) == row, order.gather(1, at), -1)
    return next_token, next_sibling


def _table(x: VerifyInput) -> tuple[Tensor, Tensor]:
    if x.page_table is None or x.cache_seqlens is None:
        raise ValueError("page_table and cache_seqlens are needed, and were not built")
    return x.page_table, x.cache_seqlens


def _chunks(reach: Tensor, longest: int, k_cache: Tensor) -> Iterator[tuple[slice, int]]:
    """Lines to gather at once, of `reach` (T,) ascending, and how wide: as the longest of them on a GPU, where
    that saves most; but a captured launch asks the device nothing, and there all are as wide as the table."""
    asked = reach.is_cuda and not torch.cuda.is_current_stream_capturing()
    widths = reach.tolist() if asked else [longest] * len(reach)
    cells = max(1, _GATHERED[reach.device.type] // k_cache[0].numel())
    end = len(widths)
    while end:
        width = widths[end - 1]
        start = max(0, end - max(1, cells // width))
        yield slice(start, end), width
        end = start


def _one_after_another(lines: Tensor, indptr: Tensor) -> Tensor:
    """Lines (T, longest) as lists of which row i's begins at `indptr[i]`; 0 behind the last of them.

    Gathered, not scattered: cells that belong nowhere would all be written to one place, one by one.
    """
    place = torch.arange(lines.numel(), device=lines.device)
    row = torch.searchsorted(indptr, place, right=True) - 1
    behind = row == len(lines)
    row = row.clamp(max=len(lines) - 1)
    step = (place - indptr[row]).clamp(max=lines.shape[1] - 1)
    return lines[row, step].masked_fill_(behind, 0)


def _parent_of_line(x: VerifyInput) -> Tensor:
    """(T,) batch-global parent row; -1 for roots and padding. It is who owns the last slot but one."""
    table, lengths = _table(x)
    own = table.gather(1, lengths[:, None] - 1)[:, 0]
    above = table.gather(1, (lengths[:, None] - 2).clamp(min=0))[:, 0]
    # Stable: a padded row ends in the root's slot as well, and the root comes first.
    ordered, order = own.sort(stable=True)
    parent = order[torch.searchsorted(ordered, above).clamp(max=len(own) - 1)]
    prefix = x.seq_lens.repeat_interleave(x.qo_indptr[1:] - x.qo_indptr[:-1])
    return torch.where(lengths > prefix + 1, parent, -1)


def _softmax_over(
    x: VerifyInput,
    q: Tensor,
    slots: Tensor,
    listed: Tensor,
    distance: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
) -> tuple[Tensor, Tensor]:
    """`q` (n, Hq, D) and caches float32; `slots`, `listed` and `distance` (n, L).

    Out (n, Hq, Dv) float32, and natural-log lse (n, Hq) of the keys alone.
    """
    (rows, heads, _), (_, kv_heads, v_dim) = q.shape, v_cache.shape
    lanes = slots[:, None] * kv_heads + torch.arange(kv_heads, device=q.device)[:, None]
    lanes, shape = lanes.flatten(), (rows * kv_heads, slots.shape[1], -1)
    keys = k_cache.flatten(0, 1).index_select(0, lanes).view(shape)
    scores = torch.bmm(q.reshape(rows * kv_heads, heads // kv_heads, -1), keys.transpose(1, 2))
    scores = scores * x.shape.score_scale
    if x.k_scale is not None:
        scores = scores * x.k_scale.repeat(rows)[:, None, None]
    if x.shape.softcap is not None:
        scores = (scores / x.shape.softcap).tanh() * x.shape.softcap
    if x.alibi_slopes is not None:
        bias = x.alibi_slopes.view(-1, 1) * distance[:, None]  # (n, Hq, L)
        scores = scores - bias.view(scores.shape)
    hidden = ~listed.repeat_interleave(kv_heads, 0)[:, None]
    scores = scores.masked_fill(hidden, float("-inf"))
    lse = torch.logsumexp(scores, -1).view(rows, heads)
    if x.sinks is not None:
        # One more column, whose weight meets no value.
        scores = torch.cat([scores, x.sinks.repeat(rows).view(*scores.shape[:2], 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : slots.shape[1]]
    values = v_cache.flatten(0, 1).index_select(0, lanes).view(shape)
    out = torch.bmm(weights, values).view(rows, kv_heads, -1, v_dim)
    if x.v_scale is not None:
        out = out * x.v_scale[:, None, None]
    return out.view(rows, heads, v_dim), lse
