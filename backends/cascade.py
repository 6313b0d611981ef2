"""Backend `cascade`: one pass over the prefix that all rows share, one over each row's own list.

The shared prefix is read through a page table (page_table, cache_seqlens); what is left of a row, its
ancestors and itself, is a list of slots (kv_indptr, kv_indices). The two partial results are merged
by their log-sum-exp.

Under a sliding window rows begin at different prefix keys, so only whole pages that every row still
sees are shared; the keys before them come first in the rows' lists, and kv_start cuts each list.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from treeproof.backends.reference.store import store_kv
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.inputs import Accepted, Attended, Candidates, Committed, VerifyInput
from treeproof.contract.registry import register

_GATHERED = {"cpu": 1 << 18, "cuda": 1 << 27}
"""Elements of K that a chunk of rows or requests gathers: on the CPU 1 MiB in float32, which stays in a core's cache; a GPU
would wait for the host between so small ones."""


@register(
    "cascade",
    consumes={
        "draft_token",
        "qo_indptr",
        "out_cache_loc",
        "page_table",
        "cache_seqlens",
        "kv_indptr",
        "kv_indices",
        "kv_start",
        "seq_lens",
        "sinks",
        "alibi_slopes",
        "k_scale",
        "v_scale",
    },
    capabilities=Capabilities(
        sibling_order="ascending",
        nan_safe=True,
        softcap=True,
        sinks=True,
        alibi=True,
        kv_dtypes={None, "float8_e4m3fn", "int8"},
        cache_layouts={"NHD", "layered", "interleaved"},
    ),
    numerics=Numerics(p="float32", partial="float32", merges=1, mul="float32", v="float32"),
)
class Cascade:
    """Tree attention as prefix attention merged with ancestor attention."""

    def build(self, c: Candidates) -> VerifyInput:
        """Lists grow from parent to child: a child's list is its parent's and its own slot."""
        rows, nodes, prefix_lens = c.num_rows.tolist(), c.num_nodes.tolist(), c.seq_lens.tolist()
        own_slots, listed, starts, positions = [], [], [], []
        qo_indptr, width, links, shared = [0, *accumulate(rows)], max(rows), [], []
        paddings = [count - real for count, real in zip(rows, nodes, strict=True)]
        for b, (real, padding, prefix) in enumerate(zip(nodes, paddings, prefix_lens, strict=True)):
            slots = c.req_to_token[c.request_slots[b], prefix : prefix + real].tolist()
            suffixes = _suffixes(c, b, slots)
            head, first_key, shared_from = _heads(c, b, prefix, suffixes)
            shared.append(shared_from)
            own_slots += slots + [c.kv.pad_slot] * padding
            listed += [head + suffix for suffix in suffixes] + [slots[:1]] * padding
            starts += first_key + [0] * padding
            positions += [prefix + len(suffix) - 1 for suffix in suffixes] + [0] * padding
            links.append(_links(suffixes, qo_indptr[b], width))
        index, parents, next_token, next_sibling = c.seq_lens.new_tensor(links).unbind(1)
        shared_key = c.seq_lens.new_tensor(shared)
        return VerifyInput(
            draft_token=_tokens(c, nodes, paddings),
            positions=c.seq_lens.new_tensor(positions),
            seq_lens=c.seq_lens,
            qo_indptr=c.seq_lens.new_tensor(qo_indptr),
            out_cache_loc=c.seq_lens.new_tensor(own_slots),
            request_slots=c.request_slots,
            req_to_token=c.req_to_token,
            topk=c.topk,
            spec_steps=c.spec_steps,
            shape=c.shape,
            kv=c.kv,
            retrieve_index=index,
            retrieve_next_token=next_token,
            retrieve_next_sibling=next_sibling,
            retrieve_parent_token=parents,
            kv_indptr=c.seq_lens.new_tensor([0, *accumulate(map(len, listed))]),
            kv_indices=c.seq_lens.new_tensor([slot for slots in listed for slot in slots]),
            kv_start=c.seq_lens.new_tensor(starts),
            page_table=_page_table(c, shared_key),
            cache_seqlens=c.seq_lens - shared_key,
        )

    def attend(
        self, x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor
    ) -> Attended:
        """Prefix pass over the requests, suffix pass over the rows, merge; float32 throughout."""
        store_kv(x, k, v, k_cache, v_cache)
        grouped = q.float().reshape(len(q), k.shape[1], -1, q.shape[2])  # (T, Hkv, G, D)
        if x.k_scale is not None:
            grouped = grouped * x.k_scale[:, None, None]  # q . (scale * code) = (scale * q) . code
        suffix, suffix_lse = _suffix_pass(x, grouped, k_cache, v_cache)
        prefix, prefix_lse = _prefix_pass(x, grouped, k_cache, v_cache)
        if x.alibi_slopes is not None:
            # The root's list is as long as all lists are but for the rows below it.
            listed = _built(x.kv_indptr).diff()
            depth = listed - listed[x.qo_indptr[:-1]].repeat_interleave(x.qo_indptr.diff())
            prefix_lse = prefix_lse - _by_group(x.alibi_slopes, grouped) * depth[:, None, None]
        out, lse = merge(prefix, prefix_lse, suffix, suffix_lse)
        if x.v_scale is not None:
            out = out * x.v_scale[:, None, None]
        if x.sinks is not None:
            # A sink is a part without values; the log-sum-exp is that of the keys.
            sink = _by_group(x.sinks, grouped).expand_as(lse)
            out, _ = merge(out, lse, torch.zeros_like(out), sink)
        names = ("page_table", "cache_seqlens", "kv_indptr", "kv_indices", "kv_start")
        return Attended(
            out=out.flatten(1, 2).to(q.dtype),
            lse=lse.flatten(1, 2),
            declared={name: getattr(x, name) for name in names},
        )

    def merge(
        self, out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What puts the two passes together, as a stage of its own."""
        return merge(out_a, lse_a, out_b, lse_b)

    def accept(self, x: VerifyInput, target_predict: Tensor) -> Accepted:
        """Greedy walk: a row's suffix ends in its parent's slot and its own, which tell who is whose."""
        predicted, drafted = target_predict.tolist(), x.draft_token.tolist()
        bounds, slots = _built(x.kv_indptr).tolist(), _built(x.kv_indices).tolist()
        rows, width = x.qo_indptr.tolist(), x.spec_steps + 1
        index, tokens = [], []
        for first, end in pairwise(rows):
            child: dict[tuple[int, int], int] = {}
            for row in range(first + 1, end):
                suffix = slots[bounds[row] : bounds[row + 1]]
                if len(suffix) > 1:  # not a padded row
                    child.setdefault((suffix[-2], drafted[row]), row)
            path = [first]
            while len(path) < width:
                at = slots[bounds[path[-1] + 1] - 1]
                row = child.get((at, predicted[path[-1]]), -1)
                if row < 0:
                    break
                path.append(row)
            index.append(path + [-1] * (width - len(path)))
            tokens.append([predicted[row] for row in path] + [-1] * (width - len(path)))
        accept_index = torch.tensor(index, device=target_predict.device)
        return Accepted(
            accept_index=accept_index,
            accept_len=(accept_index >= 0).sum(1),
            tokens=torch.tensor(tokens, device=target_predict.device),
        )

    def commit(
        self, x: VerifyInput, accepted: Accepted, k_cache: Tensor, v_cache: Tensor
    ) -> Committed:
        """The slot that ends an accepted row's suffix moves to the slot that ends row j's."""
        home = _built(x.kv_indices)[_built(x.kv_indptr)[1:] - 1]
        sources: list[int] = []
        targets: list[int] = []
        for first, path in zip(x.qo_indptr.tolist(), accepted.accept_index.tolist(), strict=False):
            taken = [row for row in path if row >= 0]
            sources += taken
            targets += range(first, first + len(taken))
        moved, front = home[sources], home[targets]
        # Both loads before both stores: the paths overlap their targets.
        k_rows, v_rows = k_cache[moved], v_cache[moved]
        k_cache[front], v_cache[front] = k_rows, v_rows
        requests = torch.arange(len(accepted.tokens), device=front.device)
        return Committed(
            seq_lens=x.seq_lens + accepted.accept_len,
            next_root=accepted.tokens[requests, accepted.accept_len - 1],
        )


def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint key sets, from the two results.

    `out_*` (..., Dv) float32 normalised, `lse_*` (...) float32, natural log of the summed weights. An
    empty set has lse -inf and any finite out; two empty sets give 0 and -inf.
    """
    top = torch.maximum(lse_a, lse_b)
    top = top.masked_fill(top == float("-inf"), 0.0)
    z_a, z_b = (lse_a - top).exp(), (lse_b - top).exp()
    z = z_a + z_b
    share = torch.where(z > 0, z, 1.0)
    out = out_a * (z_a / share).unsqueeze(-1) + out_b * (z_b / share).unsqueeze(-1)
    return out, top + z.log()


def _built(table: Tensor | None) -> Tensor:
    if table is None:
        raise ValueError(
            "page_table, cache_seqlens, kv_indptr, kv_indices and kv_start are needed, and one was not built"
        )
    return table


def _tokens(c: Candidates, nodes: list[int], paddings: list[int]) -> Tensor:
    """(T,) root and drafted tokens of each request, 0 on padding."""
    bonus, drafted = c.bonus_tokens.tolist(), c.draft_token.tolist()
    tokens = []
    for b, (real, padding) in enumerate(zip(nodes, paddings, strict=True)):
        tokens += [bonus[b], *drafted[b][: real - 1], *[0] * padding]
    return torch.tensor(tokens, device=c.bonus_tokens.device)


def _heads(
    c: Candidates, b: int, prefix: int, suffixes: list[list[int]]
) -> tuple[list[int], list[int], int]:
    """Prefix slots that only some rows see, each row's first entry among them, and their end.

    From the end on, at a whole page or at `prefix`, every row sees the prefix: that part is shared.
    """
    page, window = c.kv.page_size, c.shape.window or prefix + len(suffixes)
    first_key = [max(0, prefix + len(suffix) - window) for suffix in suffixes]
    low = min(first_key)
    shared_from = min(prefix, -(-max(first_key) // page) * page)
    head = c.req_to_token[c.request_slots[b], low:shared_from].tolist()
    return head, [key - low for key in first_key], shared_from


def _page_table(c: Candidates, shared_from: Tensor) -> Tensor:
    """(B, pages) of the shared part of each prefix; cells past its end are whatever comes there."""
    page = c.kv.page_size
    pages = -(-int((c.seq_lens - shared_from).max()) // page)
    column = shared_from[:, None] + page * torch.arange(pages, device=shared_from.device)
    # Shorter requests run past the table.
    column = column.clamp(max=c.req_to_token.shape[1] - 1)
    return c.req_to_token[c.request_slots[:, None], column] // page


def _suffixes(c: Candidates, b: int, slots: list[int]) -> list[list[int]]:
    """Slots from the root to each row of request b, by row; `slots` (N_b) are the rows' own."""
    selected = c.selected_index[b, : len(slots) - 1].tolist()
    parent_of_beam = dict(enumerate(c.parent_list[b].tolist()))
    row_of_pool = {pool: row for row, pool in enumerate(selected, start=1)}
    if len(row_of_pool) < len(selected):
        raise ValueError(f"selected_index[{b}] is {selected}: a candidate is selected twice")
    suffixes = [slots[:1]] * len(slots)
    # A parent comes before its children in the pool, wherever their rows are.
    for pool in sorted(selected):
        row, beam = row_of_pool[pool], pool // c.topk
        above = parent_of_beam.get(beam, -1)
        parent = 0 if beam == 0 else row_of_pool.get(above, -1)
        if parent < 0:
            raise ValueError(
                f"selected_index[{b}, {row - 1}] is {pool}: its parent {above} is not selected"
            )
        if parent and above >= pool:
            raise ValueError(
                f"selected_index[{b}, {row - 1}] is {pool}: its parent {above} comes after it"
            )
        suffixes[row] = [*suffixes[parent], slots[row]]
    return suffixes


def _links(suffixes: list[list[int]], first: int, width: int) -> list[list[int]]:
    """index, parents, next_token and next_sibling of one request's rows, -1 padded to `width`."""
    row_of_slot = {suffix[-1]: row for row, suffix in enumerate(suffixes)}
    parents, next_token, next_sibling = [-1] * width, [-1] * width, [-1] * width
    youngest: dict[int, int] = {}
    for row, suffix in enumerate(suffixes):
        if len(suffix) > 1:
            parent = parents[row] = row_of_slot[suffix[-2]]
            if parent in youngest:
                next_sibling[youngest[parent]] = row
            else:
                next_token[parent] = row
            youngest[parent] = row
    index = [*range(first, first + len(suffixes)), *[-1] * (width - len(suffixes))]
    return [index, parents, next_token, next_sibling]


def _at(cache: Tensor, slots: Tensor) -> Tensor:
    """(n, L, Hkv, lanes) float32 of the cache at `slots` (n, L)."""
    return cache.index_select(0, slots.flatten()).float().view(*slots.shape, *cache.shape[1:])


def _by_group(heads: Tensor, q: Tensor) -> Tensor:
    """(Hkv, G) of a parameter that has one number a query head; `q` (T, Hkv, G, D)."""
    return heads.view(q.shape[1:3])


def _capped(scores: Tensor, cap: float | None) -> Tensor:
    return scores if cap is None else cap * torch.tanh(scores / cap)


def _distance(x: VerifyInput, begin: Tensor, lengths: Tensor, own: slice, step: Tensor) -> Tensor:
    """(chunk, longest) from each entry of a list to the row, which is its last.

    What lies in front of the root in a list comes before the keys that the prefix pass reads.
    """
    bounds, rows = _built(x.kv_indptr), x.qo_indptr.diff()
    root_ends = bounds[1:][x.qo_indptr[:-1]] - bounds[x.qo_indptr[:-1]]
    head = (root_ends - 1).repeat_interleave(rows)[own, None]
    between = _built(x.cache_seqlens).repeat_interleave(rows)[own, None]
    entry = (begin - bounds[:-1])[own, None] + step
    return lengths[own, None] - 1 - step + between * (entry < head)


def _together(lengths: list[int], keys: int) -> Iterator[list[int]]:
    """Requests with a prefix to share, about equally long ones together, the longest last.

    They have at most `keys` keys with what pads the shorter, or are one.
    """
    chosen: list[int] = []
    for b in sorted((b for b, length in enumerate(lengths) if length), key=lengths.__getitem__):
        if chosen and lengths[b] > min(1.25 * lengths[chosen[0]] + 64, keys // (len(chosen) + 1)):
            yield chosen
            chosen = []
        chosen.append(b)
    if chosen:
        yield chosen


def _prefix_pass(
    x: VerifyInput, q: Tensor, k_cache: Tensor, v_cache: Tensor
) -> tuple[Tensor, Tensor]:
    """Every row reads the shared keys of its request; out (T, Hkv, G, Dv) and lse (T, Hkv, G).

    ALiBi counts from the end of the prefix here, which is the same for all rows of a request.
    """
    page, lengths, group = x.kv.page_size, _built(x.cache_seqlens), q.shape[1:3]
    bounds, sizes = x.qo_indptr.tolist(), lengths.tolist()
    out = q.new_zeros(*q.shape[:3], v_cache.shape[2])
    lse = q.new_full(q.shape[:3], float("-inf"))
    # A key costs its lanes of K, or a score of each query head of each row.
    widest = max(end - first for first, end in pairwise(bounds))
    cost = max(k_cache.shape[1:].numel(), widest * group.numel())
    for chosen in _together(sizes, _GATHERED[q.device.type] // cost):
        shortest, longest = sizes[chosen[0]], sizes[chosen[-1]]
        own = [range(bounds[b], bounds[b + 1]) for b in chosen]
        widest = max(map(len, own))
        # A request with fewer rows than the widest asks for its last again, which nobody looks at.
        asked = [[min(row, rows[-1]) for row in range(rows[0], rows[0] + widest)] for rows in own]
        looked_at = [i * widest + row for i, rows in enumerate(own) for row in range(len(rows))]
        requests, asking, cells, rows = (
            torch.tensor(ids, device=q.device)
            for ids in (chosen, asked, looked_at, [row for rows in own for row in rows])
        )
        pages = _built(x.page_table)[requests, : -(-longest // page), None] * page
        slots = (pages + torch.arange(page, device=q.device)).flatten(1)[:, :longest]  # (n, L)
        to_root = lengths[requests, None] - torch.arange(longest, device=q.device)
        if shortest < longest:
            # Past the end of a prefix its first key is read again, and its weight is 0.
            slots = slots.where(to_root > 0, slots[:, :1])
        keys, values = _at(k_cache, slots), _at(v_cache, slots)
        queries = _at(q, asking).transpose(1, 2).flatten(2, 3)  # (n, Hkv, R * G, D)
        scores = queries @ keys.permute(0, 2, 3, 1) * x.shape.score_scale
        scores = _capped(scores, x.shape.softcap)
        if x.alibi_slopes is not None:
            slopes = _by_group(x.alibi_slopes, q).repeat(1, widest)  # (Hkv, R * G)
            scores = scores - slopes[:, :, None] * to_root[:, None, None]
        if shortest < longest:
            scores = scores.masked_fill((to_root <= 0)[:, None, None], float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        part, part_lse = weights @ values.transpose(1, 2), _log_sum(scores, weights)
        for of_all, of_some in ((out, part), (lse, part_lse)):
            apart = of_some.view(*of_some.shape[:2], widest, group[1], *of_some.shape[3:])
            by_row = apart.transpose(1, 2).flatten(0, 1)
            of_all.index_copy_(0, rows, by_row.index_select(0, cells))
    return out, lse


def _log_sum(scores: Tensor, weights: Tensor) -> Tensor:
    """Log-sum-exp over keys; the weight of the highest score is 1 over the sum of exp(score - highest)."""
    return scores.amax(dim=-1) - weights.amax(dim=-1).log()


def _suffix_pass(
    x: VerifyInput, q: Tensor, k_cache: Tensor, v_cache: Tensor
) -> tuple[Tensor, Tensor]:
    """Every row reads its own list; out (T, Hkv, G, Dv) and lse (T, Hkv, G)."""
    begin, indices = _built(x.kv_indptr)[:-1] + _built(x.kv_start), _built(x.kv_indices)
    lengths = _built(x.kv_indptr)[1:] - begin
    longest = int(lengths.max())
    chunk = max(1, _GATHERED[q.device.type] // (longest * k_cache[0].numel()))
    out = q.new_empty(*q.shape[:3], v_cache.shape[2])
    lse = q.new_empty(q.shape[:3])
    step = torch.arange(longest, device=q.device)
    for first in range(0, len(q), chunk):
        own = slice(first, first + chunk)
        listed = step < lengths[own, None]  # (chunk, longest)
        # Past the end of a list its first slot is named again, and its weight is 0.
        slots = indices[begin[own, None] + step * listed]
        keys, values = _at(k_cache, slots), _at(v_cache, slots)  # (chunk, longest, Hkv, D)
        scores = q[own] @ keys.permute(0, 2, 3, 1) * x.shape.score_scale
        scores = _capped(scores, x.shape.softcap)
        if x.alibi_slopes is not None:
            above = _distance(x, begin, lengths, own, step)
            scores = scores - _by_group(x.alibi_slopes, q)[:, :, None] * above[:, None, None]
        scores = scores.masked_fill(~listed[:, None, None], float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        out[own] = weights @ values.transpose(1, 2)
        lse[own] = _log_sum(scores, weights)
    return out, lse
