"""Backend `swa-window`: one list a row by logical index, cut where the row's window begins.

A row's list (kv_indptr, kv_indices) is its prefix and its ancestors down to itself, so the place of
a key in the list is its logical index; `kv_start` is the first place inside the window. Without a window
the cut is at 0. Rows with about equally many keys are computed together; lists end in one column, and in
front of a shorter one stands its first key again, without weight.
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
"""Elements of K that a chunk of rows gathers: on the CPU 1 MiB in float32, which stays in a core's cache; a GPU
would wait for the host between so small ones."""


@register(
    "swa-window",
    consumes={
        "draft_token",
        "seq_lens",
        "qo_indptr",
        "out_cache_loc",
        "kv_indptr",
        "kv_indices",
        "kv_start",
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
    numerics=Numerics(p="float32", mul="float32", v="float32"),
)
class SwaWindow:
    """Tree attention as attention over T lists, each with a window of its own."""

    def build(self, c: Candidates) -> VerifyInput:
        """Depth-first from each root: the stack is the path of the row that is entered."""
        rows, nodes, prefix_lens = c.num_rows.tolist(), c.num_nodes.tolist(), c.seq_lens.tolist()
        first, width = [0, *accumulate(rows)], max(rows)
        slots, device = c.req_to_token[c.request_slots], c.seq_lens.device
        parent_lists, selected = c.parent_list.tolist(), c.selected_index.tolist()
        fronts, depths, columns, owners, real = [], [], [], [], []
        lengths, positions, parents = [], [], []
        for b, (count, prefix) in enumerate(zip(rows, prefix_lens, strict=True)):
            paths = _paths(parent_lists[b], selected[b][: nodes[b] - 1], c.topk, b)
            paths += [[0]] * (count - nodes[b])
            fronts += [slots[b, :prefix]] * count
            depths += [len(path) for path in paths]
            columns += [prefix + row for path in paths for row in path]
            owners += [b] * sum(map(len, paths))
            real += [row < nodes[b] for row in range(count)]
            lengths += [prefix + len(path) for path in paths]
            positions += [prefix + len(path) - 1 for path in paths[: nodes[b]]]
            positions += [0] * (count - nodes[b])
            parents.append([path[-2] if len(path) > 1 else -1 for path in paths])
        behind = slots[torch.tensor(owners, device=device), torch.tensor(columns, device=device)]
        pieces = [p for both in zip(fronts, torch.split(behind, depths), strict=True) for p in both]
        ends = torch.tensor(list(accumulate(depths)), device=device) - 1
        homes = behind[ends].where(torch.tensor(real, device=device), c.kv.pad_slot)
        window = c.shape.window or max(lengths)
        links = torch.tensor(_links(parents, nodes, first, width), device=device)
        return VerifyInput(
            draft_token=_tokens(c, rows, nodes),
            positions=torch.tensor(positions, device=device),
            seq_lens=c.seq_lens,
            qo_indptr=torch.tensor(first, device=device),
            out_cache_loc=homes,
            request_slots=c.request_slots,
            req_to_token=c.req_to_token,
            topk=c.topk,
            spec_steps=c.spec_steps,
            shape=c.shape,
            kv=c.kv,
            retrieve_index=links[0],
            retrieve_next_token=links[1],
            retrieve_next_sibling=links[2],
            retrieve_parent_token=links[3],
            kv_indptr=torch.tensor([0, *accumulate(lengths)], device=device),
            kv_indices=torch.cat(pieces),
            kv_start=torch.tensor([max(0, n - window) for n in lengths], device=device),
        )

    def attend(
        self, x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor
    ) -> Attended:
        """Softmax of each row over its list from `kv_start` on, in float32."""
        store_kv(x, k, v, k_cache, v_cache)
        indptr, indices, start = _lists(x)
        kept, order = (indptr.diff() - start).sort()
        last, queries, sizes = indptr[1:][order] - 1, q[order], kept.tolist()
        # A key costs its lanes of K, or a score of each query head.
        keys = _GATHERED[q.device.type] // max(k_cache.shape[1:].numel(), q.shape[1])
        # Once, and not for each row that reads a key.
        held = [cache.float().contiguous() for cache in (k_cache, v_cache)]
        parts = []
        for rows in _alike(sizes, keys):
            shortest, longest = sizes[rows.start], sizes[rows.stop - 1]
            before = torch.arange(longest - 1, -1, -1, device=q.device)
            size = kept[rows, None]
            slots = indices[last[rows, None] - before.minimum(size - 1)]
            hidden = before >= size if shortest < longest else None
            parts.append(_attend_lists(x, queries[rows], slots, hidden, *held))
        place = order.argsort()
        out, lse = (torch.cat(part)[place] for part in zip(*parts, strict=True))
        declared = {"kv_indptr": indptr, "kv_indices": indices, "kv_start": start}
        return Attended(out=out, lse=lse, declared=declared)

    def accept(self, x: VerifyInput, target_predict: Tensor) -> Accepted:
        """Shortest list first, a row lives if it continues a living path with the predicted token."""
        predicted, drafted = target_predict.tolist(), x.draft_token.tolist()
        indptr, indices, _ = _lists(x)
        lengths = (indptr[1:] - indptr[:-1]).tolist()
        own = indices[indptr[1:] - 1].tolist()
        above = indices[(indptr[1:] - 2).clamp(min=0)].tolist()
        width, paths = x.spec_steps + 1, []
        for first, end in pairwise(x.qo_indptr.tolist()):
            alive = {own[first]: [first]}
            # Padded rows hold the root's list, which is as long as no child's.
            below = [row for row in range(first + 1, end) if lengths[row] > lengths[first]]
            for row in sorted(below, key=lengths.__getitem__):
                path = alive.get(above[row], [])
                if 0 < len(path) < width and predicted[path[-1]] == drafted[row]:
                    alive.setdefault(own[row], [*path, row])
            paths.append(max(alive.values(), key=len))
        device = target_predict.device
        emitted = [[predicted[row] for row in path] for path in paths]
        return Accepted(
            accept_index=torch.tensor([p + [-1] * (width - len(p)) for p in paths], device=device),
            accept_len=torch.tensor([len(path) for path in paths], device=device),
            tokens=torch.tensor([t + [-1] * (width - len(t)) for t in emitted], device=device),
        )

    def commit(
        self, x: VerifyInput, accepted: Accepted, k_cache: Tensor, v_cache: Tensor
    ) -> Committed:
        """Request after request: gather the accepted rows, then write them over the first ones."""
        lengths = accepted.accept_len.tolist()
        for b, (first, length) in enumerate(zip(x.qo_indptr.tolist(), lengths, strict=False)):
            sources = x.out_cache_loc[accepted.accept_index[b, :length]]
            targets = x.out_cache_loc[first : first + length]
            for cache in (k_cache, v_cache):
                cache[targets] = cache.index_select(0, sources)
        requests = torch.arange(len(lengths), device=x.seq_lens.device)
        return Committed(
            seq_lens=x.seq_lens + accepted.accept_len,
            next_root=accepted.tokens[requests, accepted.accept_len - 1],
        )


def _paths(parents: list[int], selected: list[int], topk: int, b: int) -> list[list[int]]:
    """Rows from the root to each row of request b, by row."""
    root, nobody, real = -1, -2, len(selected) + 1
    parent_of_beam = {**dict(enumerate(parents)), 0: root}
    children: dict[int, list[tuple[int, int]]] = {}
    for row, pool in enumerate(selected, start=1):
        children.setdefault(parent_of_beam.get(pool // topk, nobody), []).append((row, pool))
    paths: list[list[int]] = [[] for _ in range(real)]
    entered, waiting = 0, [(0, root, 0)]
    stack: list[int] = []
    while waiting:
        row, pool, depth = waiting.pop()
        del stack[depth:]
        stack.append(row)
        paths[row], entered = stack.copy(), entered + 1
        waiting += [(child, under, depth + 1) for child, under in children.pop(pool, [])]
    if entered < real:
        row = next(row for row in range(1, real) if not paths[row])
        raise ValueError(
            f"selected_index[{b}, {row - 1}] is {selected[row - 1]}: row {row} is not "
            "connected to the root"
        )
    return paths


def _tokens(c: Candidates, rows: list[int], nodes: list[int]) -> Tensor:
    tokens: list[int] = []
    drafted = zip(c.bonus_tokens.tolist(), c.draft_token.tolist(), rows, nodes, strict=True)
    for root, below, count, real in drafted:
        tokens += [root, *below[: real - 1], *[0] * (count - real)]
    return torch.tensor(tokens, device=c.draft_token.device)


def _links(
    parents: list[list[int]], nodes: list[int], first: list[int], width: int
) -> list[list[list[int]]]:
    """(4, B, Nmax) index, first child, next sibling (ascending) and parent, -1 padded."""
    index, down, right, up = tables = [[[-1] * width for _ in parents] for _ in range(4)]
    for b, of_row in enumerate(parents):
        index[b][: nodes[b]] = range(first[b], first[b] + nodes[b])
        up[b][: len(of_row)] = of_row
        children: dict[int, list[int]] = {}
        for row, parent in enumerate(of_row):
            if parent >= 0:
                children.setdefault(parent, []).append(row)
        for parent, brood in children.items():
            down[b][parent] = brood[0]
            for elder, younger in pairwise(brood):
                right[b][elder] = younger
    return tables


def _lists(x: VerifyInput) -> tuple[Tensor, Tensor, Tensor]:
    if x.kv_indptr is None or x.kv_indices is None or x.kv_start is None:
        raise ValueError("kv_indptr, kv_indices and kv_start are needed, and were not built")
    return x.kv_indptr, x.kv_indices, x.kv_start


def _alike(sizes: list[int], keys: int) -> Iterator[slice]:
    """Slices of ascending `sizes`: at most `keys` keys with what pads them, or one row; hardly padded."""
    first = 0
    for row, size in enumerate(sizes):
        if row > first and (size * (row + 1 - first) > keys or size > sizes[first] * 5 // 4 + 64):
            yield slice(first, row)
            first = row
    yield slice(first, len(sizes))


def _attend_lists(
    x: VerifyInput,
    q: Tensor,
    slots: Tensor,
    hidden: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
) -> tuple[Tensor, Tensor]:
    """`q` (n, Hq, D), `slots` (n, L), all read where `hidden` (n, L) is not, of caches in float32: out
    (n, Hq, Dv), lse (n, Hq).

    The lse is the natural log of the keys alone.
    """
    (rows, heads, dim), kv_heads, length = q.shape, k_cache.shape[1], slots.shape[1]
    # A (slot, head) pair is one line of the flattened cache: one gather serves all heads.
    head = torch.arange(kv_heads, device=q.device)[:, None]
    lines = torch.add(head, slots[:, None], alpha=kv_heads).view(-1)
    keys = _lines(k_cache, lines, x.k_scale).view(rows * kv_heads, length, dim)
    values = _lines(v_cache, lines, x.v_scale).view(rows * kv_heads, length, -1)
    queries = q.reshape(rows * kv_heads, heads // kv_heads, dim).float()
    scores = torch.bmm(queries, keys.transpose(1, 2)) * x.shape.score_scale  # (n * Hkv, G, L)
    scores = scores.view(rows, heads, length)
    cap = x.shape.softcap
    if cap is not None:
        scores = scores.div(cap).tanh().mul(cap)
    if x.alibi_slopes is not None:
        # A list ends in the row itself, so the distance is the place from behind.
        scores = scores - torch.outer(x.alibi_slopes, torch.arange(length, device=q.device)).flip(1)
    if hidden is not None:
        scores = scores.masked_fill(hidden[:, None], float("-inf"))
    top = scores.amax(dim=-1, keepdim=True)
    if x.sinks is not None:
        top = top.maximum(x.sinks[:, None])
    weights = (scores - top).exp()
    total = weights.sum(dim=-1, keepdim=True)
    lse = (top + total.log()).view(rows, heads)
    if x.sinks is not None:
        total = total + (x.sinks[:, None] - top).exp()
    out = torch.bmm(weights.view(rows * kv_heads, -1, length), values).view(rows, heads, -1)
    return (out / total).to(q.dtype), lse


def _lines(cache: Tensor, lines: Tensor, scale: Tensor | None) -> Tensor:
    """(lines, lanes) of the cache with slot and head flattened; codes times their scale."""
    held = cache.flatten(0, 1).index_select(0, lines)
    return held if scale is None else held * scale[lines % len(scale), None]
