"""Backend `topology`: walks first-child and next-sibling links; it never sees a mask or a list.

From the links it finds parents, from parents the path of each row, and with the path the row's
logical index, which is where its window is cut. Prefix slots come from the request's token table.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import torch
from torch import Tensor

from treeproof.backends.linked_logits import process_down
from treeproof.backends.reference.store import store_kv
from treeproof.backends.sampled_walk import sample_down
from treeproof.backends.served_run import finish_run
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.constraints import Constraints
from treeproof.contract.inputs import Accepted, Attended, Candidates, Committed, VerifyInput
from treeproof.contract.registry import register
from treeproof.contract.sampling import Sampling
from treeproof.contract.stopping import Finished, StopRules

_GATHERED = {"cpu": 1 << 18, "cuda": 1 << 27}
"""Elements of K that are gathered at once: on the CPU 1 MiB in float32, which stays in a core's cache; a GPU
would wait for the host between so small ones."""

_ANY_LENGTH = 256
"""Shared keys that may be filled up for less than what a chunk of their own would cost."""


@register(
    "topology",
    consumes={
        "draft_token",
        "seq_lens",
        "out_cache_loc",
        "request_slots",
        "req_to_token",
        "retrieve_index",
        "retrieve_next_token",
        "retrieve_next_sibling",
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
        lse_includes_sink=True,
        sampling={"target-only", "greedy"},
    ),
    numerics=Numerics(p="float32", mul="float32", v="float32"),
)
class Topology:
    """Tree attention along parent pointers."""

    def build(self, c: Candidates) -> VerifyInput:
        """Hang every row below its parent, then walk down from the root to count depths."""
        rows, nodes, prefix_lens = c.num_rows.tolist(), c.num_nodes.tolist(), c.seq_lens.tolist()
        selected, parent_list = c.selected_index.tolist(), c.parent_list.tolist()
        bonus, drafted = c.bonus_tokens.tolist(), c.draft_token.tolist()
        table_rows, qo_indptr, width = c.request_slots.tolist(), [0, *accumulate(rows)], max(rows)
        links: list[list[list[int]]] = []
        tokens, positions, lines, columns = [], [], [], []
        for b, (count, real, prefix) in enumerate(zip(rows, nodes, prefix_lens, strict=True)):
            down, right = _hang(selected[b][: real - 1], parent_list[b], c.topk, width)
            paths = _paths(down, right)
            if len(paths) < real:
                raise ValueError(f"selected_index[{b}] has rows that no parent leads to")
            blank = [-1] * (width - real)
            index = [*range(qo_indptr[b], qo_indptr[b] + real), *blank]
            up = [-1, *(paths[row][-2] for row in range(1, real)), *blank]
            links.append([index, down, right, up])
            tokens += [bonus[b], *drafted[b][: real - 1]] + [0] * (count - real)
            positions += [prefix + len(paths[row]) - 1 for row in range(real)]
            positions += [0] * (count - real)
            lines += [table_rows[b]] * count
            columns += [*range(prefix, prefix + real)] + [-1] * (count - real)
        device = c.seq_lens.device
        draft_token, logical, line, column = torch.tensor(
            [tokens, positions, lines, columns], device=device
        )
        retrieve = torch.tensor(links, device=device).unbind(1)
        return VerifyInput(
            draft_token=draft_token,
            positions=logical,
            seq_lens=c.seq_lens,
            qo_indptr=torch.tensor(qo_indptr, device=device),
            out_cache_loc=torch.where(column < 0, c.kv.pad_slot, c.req_to_token[line, column]),
            request_slots=c.request_slots,
            req_to_token=c.req_to_token,
            topk=c.topk,
            spec_steps=c.spec_steps,
            shape=c.shape,
            kv=c.kv,
            retrieve_index=retrieve[0],
            retrieve_next_token=retrieve[1],
            retrieve_next_sibling=retrieve[2],
            retrieve_parent_token=retrieve[3],
        )

    def attend(
        self, x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor
    ) -> Attended:
        """Prefix keys that all rows of a request see are shared, the others listed by row."""
        store_kv(x, k, v, k_cache, v_cache)
        # Rows that no link leads to (padding) read nothing.
        out = q.new_zeros(*q.shape[:2], v.shape[2])
        lse = torch.full(q.shape[:2], float("-inf"), device=q.device)
        index, down, right = _links(x)
        table_rows, parents, trees = x.request_slots.tolist(), [], []
        for b, prefix in enumerate(x.seq_lens.tolist()):
            paths = _paths(down[b], right[b])
            parents.append(_last_but_one(paths, len(down[b])))
            line = len(q) + table_rows[b] * x.req_to_token.shape[1]
            trees.append(_tree(paths, index[b], line, prefix, x.shape.window))
        trees.sort(key=lambda tree: tree.shared)
        cells = _cells(x, trees)
        for chunk in _chunks(trees, _GATHERED[q.device.type] // k_cache[0].numel()):
            rows, *attended = _attend(x, q, k_cache, v_cache, cells, chunk)
            out[rows], lse[rows] = attended
        declared = {"retrieve_parent_token": torch.tensor(parents, device=q.device)}
        return Attended(out=out, lse=lse, declared=declared)

    def accept(self, x: VerifyInput, target_predict: Tensor) -> Accepted:
        """Greedy walk down the links: the first child that holds the predicted token."""
        predicted, drafted = target_predict.tolist(), x.draft_token.tolist()
        width, paths = x.spec_steps + 1, []
        for index, down, right in zip(*_links(x), strict=True):
            row, path = 0, [index[0]]
            while len(path) < width:
                wanted = predicted[path[-1]]
                matches = (i for i in _children(row, down, right) if drafted[index[i]] == wanted)
                row = next(matches, -1)
                if row < 0:
                    break
                path.append(index[row])
            paths.append(path)
        # Accepted drafts are what the target predicted; the last prediction is the bonus.
        emitted = [[predicted[row] for row in path] for path in paths]
        device = target_predict.device
        return Accepted(
            accept_index=torch.tensor([p + [-1] * (width - len(p)) for p in paths], device=device),
            accept_len=torch.tensor([len(path) for path in paths], device=device),
            tokens=torch.tensor([t + [-1] * (width - len(t)) for t in emitted], device=device),
        )

    def process(self, x: VerifyInput, logits: Tensor, given: Constraints) -> Tensor:
        """Constraints handed down the links."""
        return process_down(x, logits, given)

    def finish(self, accepted: Accepted, rules: StopRules) -> Finished:
        """The part of each accepted run that is served."""
        return finish_run(accepted, rules)

    def sample(self, x: VerifyInput, given: Sampling) -> Accepted:
        """Sampled walk down the links."""
        return sample_down(x, given)

    def commit(
        self, x: VerifyInput, accepted: Accepted, k_cache: Tensor, v_cache: Tensor
    ) -> Committed:
        """Accepted row j of a request moves to the slot of its logical column P + j."""
        lengths = accepted.accept_len
        request = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
        begin = lengths.cumsum(0) - lengths
        step = torch.arange(len(request), device=lengths.device) - begin[request]
        targets = x.req_to_token[x.request_slots[request], x.seq_lens[request] + step]
        sources = x.out_cache_loc[accepted.accept_index[request, step]]
        # Gathered whole before anything is written: a target may be a later row's source.
        for cache, moved in ((k_cache, k_cache[sources]), (v_cache, v_cache[sources])):
            cache[targets] = moved
        bonus = accepted.tokens.gather(1, lengths[:, None] - 1)[:, 0]
        return Committed(seq_lens=x.seq_lens + lengths, next_root=bonus)


def _hang(
    selected: list[int], parent_list: list[int], topk: int, width: int
) -> tuple[list[int], list[int]]:
    """(next_token, next_sibling) of a request, -1 padded to `width`; siblings in row order."""
    parent_of_beam = dict(enumerate(parent_list))
    row_of_pool = {pool: row for row, pool in enumerate(selected, start=1)}
    down, right = [-1] * width, [-1] * width
    for row in range(len(selected), 0, -1):  # the head of a chain is the row hung last
        beam = selected[row - 1] // topk
        parent = row_of_pool.get(parent_of_beam.get(beam, -1), row) if beam else 0
        right[row], down[parent] = down[parent], row
    return down, right


def _children(row: int, down: Sequence[int], right: Sequence[int]) -> Iterator[int]:
    """Children of a row in link order. Raises ValueError where the siblings go in a circle."""
    child, seen = down[row], 0
    while child >= 0:
        if seen == len(right):
            raise ValueError(f"retrieve_next_sibling goes in a circle below row {row}")
        yield child
        child, seen = right[child], seen + 1


def _paths(down: Sequence[int], right: Sequence[int]) -> dict[int, list[int]]:
    """Rows from the root to each row that the links lead to; breadth-first, the root being row 0."""
    paths = {0: [0]}
    waiting = [0]
    for row in waiting:
        for child in _children(row, down, right):
            if child in paths:
                raise ValueError(f"links lead to row {child} twice")
            paths[child] = [*paths[row], child]
            waiting.append(child)
    return paths


def _last_but_one(paths: dict[int, list[int]], width: int) -> list[int]:
    """Parent of each row; -1 for the root and for rows without a path."""
    return [paths[row][-2] if len(paths.get(row, ())) > 1 else -1 for row in range(width)]


class _Tree(NamedTuple):
    """What the rows of a request read, by cell: cell i < T is row i of the launch, the others are those of
    the token table, line after line."""

    start: int
    """Cell of the first prefix key that all rows see; the root's where there is none."""
    shared: int
    """How many keys of the prefix they all see."""
    rows: list[int]
    """Rows of the launch, as reached."""
    indices: list[int]
    """The logical index of each."""
    lists: list[list[int]]
    """The further cells that each sees; its own comes last."""


def _tree(
    paths: Mapping[int, list[int]], index: list[int], line: int, prefix: int, window: int | None
) -> _Tree:
    """One request, whose line of the token table begins at cell `line`.

    A row at logical index t sees the keys on its path whose logical index is above t - window.
    """
    reach = window or prefix + len(paths)
    starts = [min(prefix, max(0, prefix + len(path) - reach)) for path in paths.values()]
    start = max(starts)
    return _Tree(
        line + start if start < prefix else index[0],
        prefix - start,
        [index[row] for row in paths],
        [prefix + len(path) - 1 for path in paths.values()],
        [
            [*range(line + own, line + start), *(index[row] for row in path[-reach:])]
            for own, path in zip(starts, paths.values(), strict=True)
        ],
    )


def _chunks(trees: list[_Tree], most: int) -> Iterator[list[_Tree]]:
    """Trees, ascending by shared keys, in chunks that read up to `most` when all are filled up.

    One whose prefix is much longer than the first begins another, so that less is filled up.
    """
    chunk: list[_Tree] = []
    height = longest = 0
    for tree in trees:
        height, longest = max(height, len(tree.rows)), max(longest, *map(len, tree.lists))
        full = (len(chunk) + 1) * (tree.shared + height * longest) > most
        if chunk and (full or tree.shared > 2 * chunk[0].shared + _ANY_LENGTH):
            yield chunk
            chunk, height, longest = [], len(tree.rows), max(map(len, tree.lists))
        chunk.append(tree)
    yield chunk


def _links(x: VerifyInput) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """retrieve_index, next_token and next_sibling on the host."""
    tables = (x.retrieve_index, x.retrieve_next_token, x.retrieve_next_sibling)
    if any(table is None for table in tables):
        raise ValueError(
            "retrieve_index, next_token and next_sibling are needed, one was not built"
        )
    index, down, right = torch.stack([t for t in tables if t is not None]).tolist()
    return index, down, right


def _cells(x: VerifyInput, trees: list[_Tree]) -> tuple[Tensor, Tensor | None]:
    """The slot of every cell and, where there are slopes, its logical index."""
    slots = torch.cat([x.out_cache_loc, x.req_to_token.flatten()])
    if x.alibi_slopes is None:
        return slots, None
    own = [0] * len(x.out_cache_loc)
    for tree in trees:
        for row, index in zip(tree.rows, tree.indices, strict=True):
            own[row] = index
    lines, width = x.req_to_token.shape
    columns = torch.arange(width, device=slots.device).repeat(lines)
    return slots, torch.cat([torch.tensor(own, device=slots.device), columns])


def _attend(
    x: VerifyInput,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cells: tuple[Tensor, Tensor | None],
    chunk: list[_Tree],
) -> tuple[Tensor, Tensor, Tensor]:
    """The m rows that a chunk of n trees reaches, their out (m, Hq, Dv) and their lse (m, Hq).

    Trees are filled up to the R rows of the tallest, shared keys to S, lists to L, by what is there
    anyway: a tree by its root, shared keys by the first of them, a list by the row's own.
    """
    slots, logical = cells
    heights, lists = [len(tree.rows) for tree in chunk], [one for t in chunk for one in t.lists]
    lengths = [len(one) for one in lists]
    tallest, keys, longest = max(heights), chunk[-1].shared, max(lengths)
    lines: list[int] = []
    for begin, height in zip(accumulate(heights, initial=0), heights, strict=False):
        lines += [*range(begin, begin + height)] + [begin] * (tallest - height)
    tables = (
        [tree.start for tree in chunk],
        [tree.shared for tree in chunk],
        lines,
        [row for tree in chunk for row in tree.rows],
        lengths,
        [*accumulate(lengths, initial=-1)][1:],
        [i * tallest + row for i, height in enumerate(heights) for row in range(height)],
        [*chain.from_iterable(lists)],
    )
    # Torch reads a list number by number, which for 70,000 takes as long as all else here.
    sent = torch.frombuffer(array("q", chain.from_iterable(tables)), dtype=torch.int64).to(q.device)
    start, shared, line, launched, length, last, place, listed = sent.split_with_sizes(
        [*map(len, tables)]
    )
    key, step = torch.arange(keys, device=q.device), torch.arange(longest, device=q.device)
    beyond = key >= shared[:, None]
    far = start[:, None] + key.masked_fill(beyond, 0)  # (n, S)
    common = slots[far]
    shared_k, shared_v = _read(k_cache, common, x.k_scale), _read(v_cache, common, x.v_scale)
    without = sum(not tree.shared for tree in chunk)
    if without:  # In place of a first key the root's is read, which not every row may see.
        shared_v[: without * v_cache.shape[1]].zero_()
    # A row's listed keys, or its scores: of those there may be twice as many.
    dear = max(longest * k_cache[0].numel(), (keys + longest) * q.shape[1] // 2)
    at_once = max(1, _GATHERED[q.device.type] // (len(chunk) * dear))
    parts = []
    for first in range(0, tallest, at_once):
        some = line.view(-1, tallest)[:, first : first + at_once]
        filler = step >= length[some][:, :, None]
        # A row's own key first, then up to the root.
        near = listed[last[some][:, :, None] - step.masked_fill(filler, 0)]  # (n, R, L)
        seen = slots[near]
        alike = -1, some.shape[1], -1
        distance = None
        if logical is not None:
            index = [logical[far][:, None].expand(alike), logical[near]]
            distance = logical[near[:, :, :1]] - torch.cat(index, dim=2)
        part = _softmax(
            x,
            q[launched[some]],
            (shared_k, shared_v),
            (_read(k_cache, seen, x.k_scale), _read(v_cache, seen, x.v_scale)),
            torch.cat([beyond[:, None].expand(alike), filler], dim=2),
            distance,
        )
        parts.append(part)
    out, lse = (torch.cat(part, dim=1).flatten(0, 1)[place] for part in zip(*parts, strict=True))
    return launched, out, lse


def _read(cache: Tensor, slots: Tensor, scale: Tensor | None) -> Tensor:
    """Slots (n, keys) or (n, R, keys) as (n Hkv, keys, lanes) or (n Hkv R, keys, lanes) in float32.

    What is held there, or its codes times the head's scale.
    """
    held = cache.index_select(0, slots.flatten()).float()
    if scale is not None:
        held = held * scale[:, None]
    return held.view(*slots.shape, *held.shape[1:]).movedim(-2, 1).flatten(0, -3)


def _softmax(
    x: VerifyInput,
    q: Tensor,
    shared: tuple[Tensor, Tensor],
    listed: tuple[Tensor, Tensor],
    hidden: Tensor,
    distance: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """One softmax over the shared prefix keys and each row's own list.

    `q` (n, R, Hq, D); `shared` K (n Hkv, S, D) and V, `listed` K (n Hkv R, L, D) and V, all float32;
    `hidden`, and `distance` in logical indices where there are slopes, (n, R, S + L). Out (n, R, Hq, Dv),
    natural-log lse (n, R, Hq) with the sink where there is one.
    """
    (n, rows, heads, dim), (of_all, keys, v_dim) = q.shape, shared[1].shape
    kv_heads = of_all // n
    group = heads // kv_heads
    grouped = q.float().view(n, rows, kv_heads, group, dim).transpose(1, 2).reshape(-1, group, dim)
    far = torch.bmm(grouped.view(of_all, rows * group, dim), shared[0].mT)
    near = torch.bmm(grouped, listed[0].mT)
    scores = torch.cat([far.view(*near.shape[:2], keys), near], dim=2) * x.shape.score_scale
    scores = scores.view(n, kv_heads, rows, group, -1)
    if x.shape.softcap is not None:
        scores = x.shape.softcap * (scores * (1 / x.shape.softcap)).tanh()
    if x.alibi_slopes is not None and distance is not None:
        slopes = x.alibi_slopes.view(kv_heads, 1, -1, 1)
        scores = scores - slopes * distance[:, None, :, None]
    scores = scores.masked_fill(hidden[:, None, :, None], float("-inf"))
    top = scores.amax(dim=4, keepdim=True)
    if x.sinks is not None:
        sink = x.sinks.view(kv_heads, 1, -1, 1)
        top = torch.maximum(top, sink)
    weights = (scores - top).exp_()
    total = weights.sum(dim=4, keepdim=True)
    if x.sinks is not None:
        total = total + (sink - top).exp()
    out = torch.bmm(weights.view(of_all, rows * group, -1)[:, :, :keys], shared[1])
    own = torch.bmm(weights.view(len(near), group, -1)[:, :, keys:], listed[1])
    out = (out.view_as(own) + own).view(n, kv_heads, rows, group, v_dim) / total
    lse = (top + total.log()).squeeze(4)
    out, lse = (part.transpose(1, 2).flatten(2, 3) for part in (out, lse))
    return out.to(q.dtype), lse
