"""Backend `topology`: walks first-child and next-sibling links; it never sees a mask or a list.

From the links it finds parents, from parents the path of each row, and with the path the row's
logical index, which is where its window is cut. Prefix slots come from the request's token table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

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
"""Elements of K that a chunk of rows gathers: on the CPU 1 MiB in float32, which stays in a core's cache; a GPU
would wait for the host between so small ones."""


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
        qo_indptr, width = [0, *accumulate(rows)], max(rows)
        links = [_hang(c, b, real, width) for b, real in enumerate(nodes)]
        index, up, positions = [], [], []
        tokens, slots = [], []
        for b, (count, real, prefix) in enumerate(zip(rows, nodes, prefix_lens, strict=True)):
            paths = _paths(*links[b])
            if len(paths) < real:
                raise ValueError(f"selected_index[{b}] has rows that no parent leads to")
            blank = [-1] * (width - real)
            index.append([*range(qo_indptr[b], qo_indptr[b] + real), *blank])
            up.append([-1, *(paths[row][-2] for row in range(1, real)), *blank])
            positions += [prefix + len(paths[row]) - 1 for row in range(real)]
            positions += [0] * (count - real)
            tokens += [c.bonus_tokens[b : b + 1], c.draft_token[b, : real - 1]]
            tokens.append(c.draft_token.new_zeros(count - real))
            slots.append(c.req_to_token[c.request_slots[b], prefix : prefix + real])
            slots.append(slots[-1].new_full((count - real,), c.kv.pad_slot))
        next_token, next_sibling = torch.tensor(links, device=c.seq_lens.device).unbind(1)
        return VerifyInput(
            draft_token=torch.cat(tokens),
            positions=torch.tensor(positions, device=c.seq_lens.device),
            seq_lens=c.seq_lens,
            qo_indptr=torch.tensor(qo_indptr, device=c.seq_lens.device),
            out_cache_loc=torch.cat(slots),
            request_slots=c.request_slots,
            req_to_token=c.req_to_token,
            topk=c.topk,
            spec_steps=c.spec_steps,
            shape=c.shape,
            kv=c.kv,
            retrieve_index=torch.tensor(index, device=c.seq_lens.device),
            retrieve_next_token=next_token,
            retrieve_next_sibling=next_sibling,
            retrieve_parent_token=torch.tensor(up, device=c.seq_lens.device),
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
        table_rows, parents = x.request_slots.tolist(), []
        for b, prefix in enumerate(x.seq_lens.tolist()):
            paths = _paths(down[b], right[b])
            parents.append(_last_but_one(paths, len(down[b])))
            rows = torch.tensor([index[b][row] for row in paths], device=q.device)
            start, lists = _columns(list(paths.values()), prefix, x.shape.window)
            columns = x.req_to_token[table_rows[b], :prefix]
            shared = columns[start:]
            columns = torch.cat([columns, x.out_cache_loc[rows.sort().values]])
            far = _read(k_cache, shared, x.k_scale), _read(v_cache, shared, x.v_scale)
            # Logical index of every column: its own number, or P and the row's depth.
            depth = torch.tensor([len(paths[row]) - 1 for row in sorted(paths)], device=q.device)
            logical = torch.cat([torch.arange(prefix, device=q.device), prefix + depth])
            longest = max(map(len, lists))
            chunk = max(1, _GATHERED[q.device.type] // (longest * k_cache[0].numel()))
            for first in range(0, len(lists), chunk):
                own = slice(first, first + chunk)
                # A list is filled up in front with the row's own column, its last, at weight 0.
                padding = [longest - len(listed) for listed in lists[own]]
                filled = [
                    listed[-1:] * n + listed for n, listed in zip(padding, lists[own], strict=True)
                ]
                listed = torch.tensor(filled, device=q.device)
                seen = columns[listed]
                out[rows[own]], lse[rows[own]] = _softmax(
                    x,
                    q[rows[own]],
                    far,
                    (_read(k_cache, seen, x.k_scale), _read(v_cache, seen, x.v_scale)),
                    torch.tensor(padding, device=q.device),
                    (logical[start:prefix], logical[listed]),
                )
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


def _hang(c: Candidates, b: int, real: int, width: int) -> tuple[list[int], list[int]]:
    """(next_token, next_sibling) of request b, -1 padded to `width`; siblings in row order."""
    selected = c.selected_index[b, : real - 1].tolist()
    parent_of_beam = dict(enumerate(c.parent_list[b].tolist()))
    row_of_pool = {pool: row for row, pool in enumerate(selected, start=1)}
    down, right = [-1] * width, [-1] * width
    for row in range(real - 1, 0, -1):  # the head of a chain is the row hung last
        beam = selected[row - 1] // c.topk
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


def _columns(
    paths: list[list[int]], prefix: int, window: int | None
) -> tuple[int, list[list[int]]]:
    """First prefix column that all rows see, and the further columns that each row sees.

    Row r's column is `prefix + r`. A row at logical index t sees the columns on its path whose
    logical index is above t - window; the row's own column comes last.
    """
    reach = window or prefix + len(paths)
    starts = [min(prefix, max(0, prefix + len(path) - reach)) for path in paths]
    shared = max(starts)
    lists = [
        [*range(start, shared), *(prefix + row for row in path[-reach:])]
        for start, path in zip(starts, paths, strict=True)
    ]
    return shared, lists


def _links(x: VerifyInput) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """retrieve_index, next_token and next_sibling on the host."""
    tables = (x.retrieve_index, x.retrieve_next_token, x.retrieve_next_sibling)
    if any(table is None for table in tables):
        raise ValueError(
            "retrieve_index, next_token and next_sibling are needed, one was not built"
        )
    index, down, right = torch.stack([t for t in tables if t is not None]).tolist()
    return index, down, right


def _read(cache: Tensor, slots: Tensor, scale: Tensor | None) -> Tensor:
    """(*slots, Hkv, lanes) in float32: what is held there, or its codes times the head's scale."""
    held = cache[slots].float()
    return held if scale is None else torch.einsum("...hd,h->...hd", held, scale)


def _softmax(
    x: VerifyInput,
    q: Tensor,
    prefix: tuple[Tensor, Tensor],
    listed: tuple[Tensor, Tensor],
    padding: Tensor,
    index: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """One softmax over the shared prefix keys and each row's own list.

    `q` (n, Hq, D); `prefix` K (P, Hkv, D) and V, `listed` K (n, L, Hkv, D) and V, all float32, and
    their logical indices (P,) and (n, L). The first `padding[i]` entries of list i do not count, its
    last is the row itself. Out (n, Hq, Dv), natural-log lse (n, Hq) with the sink where there is one.
    """
    (rows, heads, _), (keys, kv_heads, v_dim) = q.shape, prefix[1].shape
    grouped = (
        q.float().reshape(rows, kv_heads, heads // kv_heads, -1).transpose(0, 1)
    )  # (Hkv, n, G, D)
    far = grouped.flatten(1, 2) @ prefix[0].permute(1, 2, 0)
    near = grouped @ listed[0].permute(2, 0, 3, 1)
    scores = torch.cat([far.view(*near.shape[:3], keys), near], dim=3) * x.shape.score_scale
    if x.shape.softcap is not None:
        scores = x.shape.softcap * (scores * (1 / x.shape.softcap)).tanh()
    if x.alibi_slopes is not None:
        own = index[1][:, -1:]
        distance = torch.cat([own - index[0], own - index[1]], dim=1)  # (n, P + L)
        slopes = x.alibi_slopes.view(kv_heads, 1, -1, 1)
        scores = scores - slopes * distance[:, None]
    filler = torch.arange(-keys, listed[0].shape[1], device=q.device)
    filler = (filler >= 0) & (filler < padding[:, None])
    scores = scores.masked_fill(filler[:, None], float("-inf"))
    top = scores.amax(dim=3, keepdim=True)
    if x.sinks is not None:
        sink = x.sinks.view(kv_heads, 1, -1, 1)
        top = torch.maximum(top, sink)
    weights = (scores - top).exp()
    total = weights.sum(dim=3, keepdim=True)
    if x.sinks is not None:
        total = total + (sink - top).exp()
    out = (weights[..., :keys].flatten(1, 2) @ prefix[1].transpose(0, 1)).view(
        *near.shape[:3], v_dim
    )
    out = (out + weights[..., keys:] @ listed[1].permute(2, 0, 1, 3)) / total
    lse = (top + total.log()).squeeze(3)
    out = out.transpose(0, 1).reshape(rows, heads, v_dim).to(q.dtype)
    return out, lse.transpose(0, 1).reshape(rows, heads)
