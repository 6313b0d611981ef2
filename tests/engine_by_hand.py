"""The small model as an engine that goes token by token, and steps of it that a test overrides."""

import torch

from treeproof.contract.backend import describe
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.target_model import NORM_FLOOR, TargetModel, weights


class Engine:
    """A token's key is named (request, column); rows lie behind the prefix of their request."""

    model = TargetModel()

    def __init__(self):
        self.w = {name: torch.tensor(values) for name, values in weights(TargetModel()).items()}

    def forward(self, x, prefixes):
        place, tokens, positions, of_row = [], [], [], {}
        for b, given in enumerate(prefixes):
            prefix = self.prefix_tokens(b, given)
            place += [(b, c) for c in range(len(prefix))]
            tokens += prefix
            positions += range(len(prefix))
            for row in range(self.nodes(x, b)):
                flat = int(x.qo_indptr[b]) + row
                of_row[len(place)] = b, row, flat
                place.append((b, int(x.seq_lens[b]) + row))
                tokens.append(int(x.draft_token[flat]))
                positions.append(self.position(x, b, row))
        hidden = self.w["embed"][tokens]
        for layer in range(TargetModel().layers):
            seen = self.seen(x, layer, place, of_row)
            hidden = self.layer(layer, hidden, torch.tensor(positions), seen)
        logits = torch.zeros(int(x.qo_indptr[-1]), TargetModel().vocab_size)
        for i, (_, _, flat) in of_row.items():
            logits[flat] = (norm(hidden[i]) * self.w["norm"] @ self.w["head"]).float()
        return logits

    def seen(self, x, layer, place, of_row):
        """Of each token, heads and the tokens that they read."""
        number = {one: i for i, one in enumerate(place)}
        every = list(range(TargetModel().heads))
        found = []
        for i, (b, c) in enumerate(place):
            if i not in of_row:
                found.append([(every, [number[b, before] for before in range(c + 1)])])
                continue
            lists = [self.keys(x, *of_row[i][:2], layer, head) for head in every]
            groups = [every] if lists[:1] * len(lists) == lists else [[head] for head in every]
            found.append(
                [
                    (heads, [number[one] for one in lists[heads[0]] if one in number])
                    for heads in groups
                ]
            )
        return found

    def layer(self, layer, hidden, positions, seen):
        w, heads = self.w, TargetModel().heads
        q, k, v = (
            (norm(hidden) * w[f"attend_norm{layer}"] @ w[f"{name}{layer}"]).view(
                len(hidden), heads, -1
            )
            for name in "qkv"
        )
        q, k = turned(q, positions), turned(k, positions)
        out = torch.zeros_like(q)
        for i, parts in enumerate(seen):
            for of, keys in parts:
                if keys:
                    scores = (
                        torch.einsum("hd,nhd->hn", q[i, of], k[keys][:, of]) * q.shape[2] ** -0.5
                    )
                    out[i, of] = torch.einsum("hn,nhd->hd", scores.softmax(1), v[keys][:, of])
        hidden = hidden + out.flatten(1) @ w[f"o{layer}"]
        inner = norm(hidden) * w[f"inner_norm{layer}"]
        gate = inner @ w[f"gate{layer}"]
        return hidden + (gate * gate.sigmoid() * (inner @ w[f"up{layer}"])) @ w[f"down{layer}"]

    # --- what a test overrides ---------------------------------------------------------------

    def prefix_tokens(self, b, prefix):
        return prefix.tolist()

    def position(self, x, b, row):
        return int(x.seq_lens[b]) + len(up(x, b, row)) - 1

    def keys(self, x, b, row, layer, head):
        p = int(x.seq_lens[b])
        return [*self.prefix(x, b, row), *((b, p + r) for r in self.rows(x, b, row, layer, head))]

    def prefix(self, x, b, row):
        return [(b, c) for c in range(int(x.seq_lens[b]))]

    def rows(self, x, b, row, layer, head):
        return up(x, b, row)

    def nodes(self, x, b):
        return int((x.retrieve_index[b] >= 0).sum())


def norm(x):
    return x / (x.square().mean(-1, keepdim=True) + NORM_FLOOR).sqrt()


def turned(x, index):
    """(n, heads, lanes), each token by its index."""
    half = x.shape[2] // 2
    angle = index[:, None, None] * TargetModel().rotary ** (-torch.arange(half).double() / half)
    low, high = x[..., :half], x[..., half:]
    return torch.cat(
        [low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()], 2
    )


def up(x, b, row):
    """Rows from the root down to this one."""
    found = [row]
    while found[-1] > 0:
        found.append(int(x.retrieve_parent_token[b, found[-1]]))
    return found[::-1]


def engine_of(implementation, **capabilities):
    """A class as a backend that is registered nowhere."""
    return describe(
        implementation,
        "engine",
        stages={"forward"},
        consumes={
            "draft_token",
            "positions",
            "seq_lens",
            "qo_indptr",
            "retrieve_index",
            "retrieve_parent_token",
        },
        capabilities=Capabilities(
            vocab_size=TargetModel().vocab_size, windows=False, **capabilities
        ),
    )
