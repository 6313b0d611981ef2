"""A small kernel that is plain to break: each step is one method that a test replaces.

Build, attend, accept and commit chase parents row by row, in loops over Python integers. `Plain` is
right. It shares nothing with the backends of the package.
"""

from __future__ import annotations

import math

import torch

from treeproof.contract.backend import describe
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.inputs import Accepted, Attended, Committed


class Plain:
    """`build` describes the tree by links and parents; `attend` follows parents up."""

    # --- build -------------------------------------------------------------------------------

    def build(self, c):
        rows, nodes, prefix = c.num_rows.tolist(), c.num_nodes.tolist(), c.seq_lens.tolist()
        starts = [sum(rows[:b]) for b in range(len(rows) + 1)]
        trees = [self.parents(c, b) for b in range(len(rows))]
        tokens, positions, slots = [], [], []
        for b, count in enumerate(rows):
            for row in range(count):
                real = row < nodes[b]
                tokens.append(self.token(c, b, row) if real else 0)
                positions.append(
                    self.position(c, trees, b, row) if real else self.pad_position(c, b, row)
                )
                slots.append(self.slot(c, trees, b, row) if real else self.pad_target(c, b, row))
        tables = self.links(trees, rows, starts)
        names = ("next_token", "next_sibling", "parent_token", "index")
        made = {f"retrieve_{n}": torch.tensor(t) for n, t in zip(names, tables, strict=True)}
        return {
            "draft_token": torch.tensor(tokens),
            "positions": torch.tensor(positions),
            "seq_lens": torch.tensor([self.length(prefix, b) for b in range(len(rows))]),
            "out_cache_loc": torch.tensor(slots),
            **made,
        }

    def parents(self, c, b):
        selected = c.selected_index[b].tolist()[: int(c.num_nodes[b]) - 1]
        found = [-1]
        for pool in selected:
            level = pool // c.topk
            found.append(0 if level == 0 else 1 + selected.index(int(c.parent_list[b, level])))
        return found

    def token(self, c, b, row):
        return int(c.draft_token[b, row - 1]) if row else int(c.bonus_tokens[b])

    def position(self, c, trees, b, row):
        return int(c.seq_lens[b]) + depth_of(trees[b], row)

    def pad_position(self, c, b, row):
        return 0

    def column(self, c, b, column):
        return int(c.req_to_token[c.request_slots[b], column])

    def slot(self, c, trees, b, row):
        return self.column(c, b, int(c.seq_lens[b]) + row)

    def pad_target(self, c, b, row):
        return c.kv.pad_slot

    def length(self, prefix, b):
        return prefix[b]

    def links(self, trees, rows, starts):
        width = max(rows)
        down, right, up, index = ([[-1] * width for _ in rows] for _ in range(4))
        for b, tree in enumerate(trees):
            for row, parent in enumerate(tree):
                index[b][row] = starts[b] + row
                up[b][row] = parent
                children = [r for r, p in enumerate(tree) if p == row]
                for i, child in enumerate(children):
                    if i == 0:
                        down[b][row] = child
                    right[b][child] = children[i + 1] if i + 1 < len(children) else -1
        return down, right, up, index

    # --- attend ------------------------------------------------------------------------------

    def attend(self, x, q, k, v, k_cache, v_cache):
        self.write(x, k, v, k_cache, v_cache)
        out = torch.zeros(*q.shape[:2], v.shape[2], dtype=q.dtype)
        lse = torch.zeros(q.shape[:2])
        group = q.shape[1] // k_cache.shape[1]
        for b, (lo, hi) in enumerate(
            zip(x.qo_indptr.tolist(), x.qo_indptr.tolist()[1:], strict=False)
        ):
            for row in range(hi - lo):
                if row and int(x.retrieve_parent_token[b, row]) < 0:
                    continue  # padding
                for head in range(q.shape[1]):
                    prefix, path = self.keys(x, b, row, head)
                    index = {v: i for i, _, v in (*prefix, *path)}
                    query = self.query(x, q[lo + row, head].double())
                    parts = []
                    for pairs in self.cut(x, b, row, prefix, path):
                        k_scale, v_scale = self.scales(x, head // group)
                        keys = k_cache[[a for a, _ in pairs], head // group].double() * k_scale
                        values = v_cache[[z for _, z in pairs], head // group].double() * v_scale
                        back = [self.back(x, b, row, index[z], z) for _, z in pairs]
                        scores = self.capped(x, keys @ query)
                        parts.append((scores - self.slope(x, head) * torch.tensor(back), values))
                    result, total = self.combine(x, *parts)
                    result = result * self.beside_sink(x, head, total)
                    out[lo + row, head], lse[lo + row, head] = result.to(q.dtype), total
        return Attended(out=out, lse=self.returned(lse))

    def write(self, x, k, v, k_cache, v_cache):
        for row, slot in enumerate(x.out_cache_loc.tolist()):
            if slot >= 0:
                k_cache[slot], v_cache[slot] = self.encoded(x, k[row], v[row], k_cache.dtype)

    def encoded(self, x, k, v, dtype):
        """What a cache of codes holds of a row."""
        if x.k_scale is None:
            return k, v
        codes = [t.double() / s.double()[:, None] for t, s in ((k, x.k_scale), (v, x.v_scale))]
        return tuple((c.round() if dtype == torch.int8 else c).to(dtype) for c in codes)

    def path(self, x, b, row):
        """Rows from the root down to this one."""
        up = [row]
        while up[-1] > 0:
            up.append(int(x.retrieve_parent_token[b, up[-1]]))
        return up[::-1]

    def nodes(self, x, b):
        return int((x.retrieve_index[b] >= 0).sum())

    def prefix_slots(self, x, b, row):
        """(logical index, slot) of the prefix keys that a row reads."""
        return [(c, self.column(x, b, c)) for c in range(int(x.seq_lens[b]))]

    def own_slot(self, x, b, row):
        return int(x.out_cache_loc[int(x.qo_indptr[b]) + row])

    def keys(self, x, b, row, head):
        """(index, K slot, V slot) of prefix and path."""
        prefix = [(i, s, s) for i, s in self.prefix_slots(x, b, row)]
        p = int(x.seq_lens[b])
        path = [
            (p + len(self.path_of(x, b, r)) - 1, self.own_slot(x, b, r), self.own_slot(x, b, r))
            for r in self.path(x, b, row)
        ]
        return prefix, path

    def path_of(self, x, b, row):
        return Plain.path(self, x, b, row)

    def cut(self, x, b, row, prefix, path):
        window = x.shape.window
        at = self.query_index(x, b, row)
        kept = [
            [(k, v) for i, k, v in keys if window is None or at - window < i]
            for keys in (prefix, path)
        ]
        return kept[0], kept[1]

    def query_index(self, x, b, row):
        return int(x.seq_lens[b]) + len(self.path_of(x, b, row)) - 1

    def query(self, x, q):
        return q * x.shape.score_scale

    def scales(self, x, kv_head):
        if x.k_scale is None:
            return 1.0, 1.0
        return float(x.k_scale[kv_head]), float(x.v_scale[kv_head])

    def capped(self, x, scores):
        cap = x.shape.softcap
        return scores if cap is None else cap * (scores / cap).tanh()

    def slope(self, x, head):
        return 0.0 if x.alibi_slopes is None else float(x.alibi_slopes[head])

    def back(self, x, b, row, index, slot):
        """How far a key lies behind its query."""
        return float(int(x.seq_lens[b]) + len(self.path_of(x, b, row)) - 1 - index)

    def beside_sink(self, x, head, lse):
        """Share of the weight that a sink leaves to the keys."""
        if x.sinks is None:
            return 1.0
        return 1 / (1 + math.exp(float(x.sinks[head]) - float(lse)))

    def combine(self, x, a, b):
        """(out, lse) of two parts, each of scores and values."""
        scores, values = torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])
        if not len(scores):
            return values.new_zeros(values.shape[1]), -math.inf
        return scores.softmax(0) @ values, scores.logsumexp(0)

    def returned(self, lse):
        return lse

    # --- accept ------------------------------------------------------------------------------

    def accept(self, x, target_predict):
        width = x.spec_steps + 1
        index, lengths, tokens = [], [], []
        for b, start in enumerate(x.qo_indptr.tolist()[:-1]):
            predicted = target_predict.tolist()[start:]
            drafted = x.draft_token.tolist()[start:]
            rows = self.walk(x, b, predicted, drafted)
            emitted = self.emit(x, b, rows, predicted, drafted)
            index.append(([start + r for r in rows] + [-1] * width)[:width])
            lengths.append(self.accept_len(rows))
            tokens.append((emitted + [-1] * width)[:width])
        return Accepted(
            accept_index=torch.tensor(index),
            accept_len=torch.tensor(lengths),
            tokens=torch.tensor(tokens),
        )

    def children(self, x, b, row):
        up = x.retrieve_parent_token[b].tolist()
        return [r for r, parent in enumerate(up) if parent == row]

    def walk(self, x, b, predicted, drafted):
        rows = [0]
        while len(rows) <= x.spec_steps:
            match = self.step(x, b, rows, predicted, drafted)
            if match is None:
                break
            rows.append(match)
        return rows

    def step(self, x, b, rows, predicted, drafted):
        return next(
            (r for r in self.children(x, b, rows[-1]) if drafted[r] == predicted[rows[-1]]), None
        )

    def emit(self, x, b, rows, predicted, drafted):
        return [predicted[r] for r in rows]

    def accept_len(self, rows):
        return len(rows)

    # --- commit ------------------------------------------------------------------------------

    def commit(self, x, accepted, k_cache, v_cache):
        moves = []
        lengths = accepted.accept_len.tolist()
        for b, (start, length) in enumerate(zip(x.qo_indptr.tolist(), lengths, strict=False)):
            slots = x.out_cache_loc.tolist()
            path = accepted.accept_index[b, :length].tolist()
            moves += self.moves(
                x, b, [slots[r] for r in path], [slots[start + j] for j in range(length)]
            )
        self.move(moves, k_cache, v_cache)
        roots = [accepted.tokens[b, n - 1].item() for b, n in enumerate(lengths)]
        ends = [self.boundary(x, b, n) for b, n in enumerate(lengths)]
        return Committed(
            seq_lens=torch.tensor(ends), next_root=torch.tensor(self.roots(x, accepted, roots))
        )

    def moves(self, x, b, sources, targets):
        return list(zip(sources, targets, strict=True))

    def move(self, moves, k_cache, v_cache):
        for cache in (k_cache, v_cache):
            held = [cache[source].clone() for source, _ in moves]
            for (_, target), content in zip(moves, held, strict=True):
                cache[target] = content

    def boundary(self, x, b, length):
        return int(x.seq_lens[b]) + length

    def roots(self, x, accepted, roots):
        return roots


def depth_of(parents, row):
    depth = 0
    while row > 0:
        row, depth = parents[row], depth + 1
    return depth


CONSUMES = {
    "draft_token", "positions", "seq_lens", "qo_indptr", "out_cache_loc", "request_slots", "req_to_token",
    "retrieve_index", "retrieve_next_token", "retrieve_next_sibling", "retrieve_parent_token",
    "sinks", "alibi_slopes", "k_scale", "v_scale",
}  # fmt: skip


def backend_of(implementation, *, stages=None, numerics=None, **capabilities):
    """A class as a backend that is registered nowhere."""
    return describe(
        implementation,
        "broken",
        stages=stages,
        consumes=CONSUMES,
        capabilities=Capabilities(
            **{
                "nan_safe": True,
                "softcap": True,
                "sinks": True,
                "alibi": True,
                "kv_dtypes": {None, "int8", "float8_e4m3fn"},
                **capabilities,
            }
        ),
        numerics=numerics or Numerics(p="float32"),
    )
