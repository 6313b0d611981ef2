"""Cases by hand for the backend tests, with data by logical token and a dense reference."""

from dataclasses import dataclass, replace

import torch

from treeproof.contract.case import MaskLayout, MaskMode, Request, VerifyCase
from treeproof.contract.layout import KVLayout
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.shape import AttentionShape, Full, Window
from treeproof.contract.tree import CandidateTree
from treeproof.generate.pool import candidates

BACKENDS = ("direct-mask", "cascade", "page-table", "swa-window", "topology")
FORK = ((-1, 0, 0, 1, 2, 1, 4), (0, 5, 2, 1, 6, 3, 4))  # child before parent: node 3 is row 1
CHAIN = ((-1, 0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5))
STAR = ((-1, 0, 0, 0, 0), (0, 4, 3, 2, 1))
ROOT = ((-1,), (0,))
DEEP = ((-1, 0, 0, 1, 1, 3, 3, 5, 2, 8, 9, 10), (0, 11, 1, 10, 2, 9, 3, 8, 4, 7, 5, 6))

TOLERANCE = {"float32": 3e-6, "bfloat16": 1.2e-2, "float16": 1.5e-3}
"""Above rounding of the output (|out| stays below 3), below one key's weight in these cases."""


@dataclass(frozen=True)
class Situation:
    trees: tuple = (FORK, CHAIN, STAR)
    prefixes: tuple = (9, 0, 4)
    pads: tuple = (0, 0, 0)
    heads: tuple = (4, 2)
    dims: tuple = (16, 16)
    dtype: str = "float32"
    window: int | None = None
    mode: MaskMode = MaskMode.QLEN_ONLY
    fill_prefix: bool = False
    page: int = 1
    order: str = "shuffled"
    pad_slot: int = 0
    table_pad: int = 0
    shared: int = 0
    evicted: bool = False
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    alibi: bool = False
    kv_dtype: str | None = None


EVERYTHING = Situation(
    window=6, prefixes=(30, 12, 7), page=4, heads=(6, 2), scale=0.6,
    softcap=4.0, sinks=True, alibi=True, kv_dtype="float8_e4m3fn",
)  # fmt: skip
SITUATIONS = {
    "ragged-batch": Situation(),
    "full-mask": Situation(mode=MaskMode.FULL_MASK, page=2),
    "bit-packed": Situation(mode=MaskMode.QLEN_ONLY_BITPACKING),
    "bit-packed-wide": Situation(
        trees=(DEEP, FORK), prefixes=(5, 3), pads=(8, 0), mode=MaskMode.QLEN_ONLY_BITPACKING
    ),
    "pages-of-16": Situation(page=16, prefixes=(33, 16, 15), order="interleaved"),
    "pages-of-64-reversed": Situation(page=64, prefixes=(63, 64, 1), order="reversed"),
    "bfloat16": Situation(dtype="bfloat16", mode=MaskMode.FULL_MASK),
    "float16": Situation(dtype="float16", page=4),
    "values-narrower-than-keys": Situation(dims=(32, 8)),
    "values-wider-than-keys": Situation(dims=(8, 24), dtype="bfloat16"),
    "one-kv-head": Situation(heads=(6, 1)),
    "as-many-kv-heads": Situation(heads=(3, 3)),
    "padded-rows": Situation(pads=(3, 1, 0), mode=MaskMode.FULL_MASK, prefixes=(9, 0, 0)),
    "padded-rows-without-a-slot": Situation(pads=(2, 0, 5), pad_slot=-1, table_pad=-1, page=2),
    "root-alone": Situation(trees=(ROOT, ROOT), prefixes=(0, 7), pads=(0, 2)),
    "one-deep-tree": Situation(trees=(DEEP,), prefixes=(20,), scale=0.5),
    "shared-prefix": Situation(shared=8, prefixes=(9, 8, 11), page=4),
    "window-of-one": Situation(window=1),
    "window-inside-the-tree": Situation(window=3, table_pad=-1, mode=MaskMode.FULL_MASK),
    "window-inside-the-prefix": Situation(window=6, prefixes=(30, 12, 7), page=4),
    "window-as-long-as-all": Situation(window=200, page=2),
    "evicted-pages": Situation(
        window=5, prefixes=(30, 17, 40), page=4, evicted=True, table_pad=3, pads=(1, 0, 0)
    ),
    "evicted-pages-holding-minus-one": Situation(
        trees=(DEEP, CHAIN), prefixes=(31, 18), pads=(0, 0), window=4, evicted=True, table_pad=-1
    ),
    "softcap": Situation(softcap=2.0, scale=0.7, pads=(2, 0, 0)),
    "sinks": Situation(sinks=True, heads=(6, 2), page=2, mode=MaskMode.FULL_MASK),
    "sinks-window-bfloat16": Situation(sinks=True, window=4, prefixes=(30, 0, 4), dtype="bfloat16"),
    "alibi": Situation(alibi=True, heads=(6, 3), page=4),
    "alibi-window": Situation(alibi=True, window=5, prefixes=(30, 12, 3), pads=(1, 0, 2), page=4),
    "alibi-window-inside-the-tree": Situation(alibi=True, window=2, prefixes=(9, 0, 4)),
    "alibi-deep": Situation(trees=(DEEP,), prefixes=(40,), pads=(2,), alibi=True, softcap=3.0),
    "float8-cache": Situation(kv_dtype="float8_e4m3fn", dtype="bfloat16", heads=(6, 3), page=2),
    "int8-cache": Situation(kv_dtype="int8", dims=(32, 8), pads=(2, 0, 0)),
    "int8-cache-float16": Situation(kv_dtype="int8", dtype="float16", pad_slot=-1, pads=(0, 3, 0)),
    "everything": EVERYTHING,
    "everything-in-int8": replace(EVERYTHING, kv_dtype="int8", window=None, dtype="bfloat16"),
}


def case_of(s):
    requests = []
    for b, (parents, rows) in enumerate(s.trees):
        tree = CandidateTree(tuple(range(100 * b, 100 * b + len(parents))), parents)
        requests.append(
            Request(tree=tree, row_of_node=rows, prefix_len=s.prefixes[b], pad_rows=s.pads[b])
        )
    shape = AttentionShape(
        num_q_heads=s.heads[0], num_kv_heads=s.heads[1], head_dim=s.dims[0], v_head_dim=s.dims[1],
        dtype=s.dtype, scale=s.scale, visibility=Full() if s.window is None else Window(width=s.window),
        softcap=s.softcap, sinks=s.sinks, alibi=s.alibi, kv_dtype=s.kv_dtype,
    )  # fmt: skip
    layout = KVLayout(
        page_size=s.page, num_slots=256 if min(s.dims) == 8 else 512, order=s.order, pad_slot=s.pad_slot,
        page_table_pad=s.table_pad, shared_prefix=s.shared, evicted=s.evicted,
    )  # fmt: skip
    mask = MaskLayout(mode=s.mode, slack=5, fill_prefix=s.fill_prefix)
    return VerifyCase(requests=tuple(requests), shape=shape, layout=layout, mask=mask, seed=3)


class Scene:
    """A case with its data, by logical token and scattered over the cache."""

    def __init__(self, situation, nobody=1e4):
        self.case = case_of(situation)
        self.ledger = SlotLedger.of(self.case)
        shape, dtype = self.case.shape, getattr(torch, situation.dtype)
        draw = torch.Generator().manual_seed(11)

        def normal(*size):
            return torch.randn(*size, generator=draw).to(dtype)

        kv, d, dv = shape.num_kv_heads, shape.head_dim, shape.v_head_dim
        self.k_scale = 0.02 + 0.03 * torch.rand(kv, generator=torch.Generator().manual_seed(12))
        self.v_scale = self.k_scale.flip(0) * 0.7
        self.sinks = torch.arange(shape.num_q_heads) * 1.25 - 1
        self.slopes = 0.7 / (1 + torch.arange(shape.num_q_heads))
        self.q, self.k, self.v = [], [], []  # by request: prefix and then nodes, in logical order
        self.k_cache = torch.full((self.case.layout.num_slots, kv, d), nobody, dtype=dtype)
        self.v_cache = torch.full((self.case.layout.num_slots, kv, dv), nobody, dtype=dtype)
        rows = ([], [], [])
        for b, request in enumerate(self.case.requests):
            p, n = request.prefix_len, request.num_nodes
            self.q.append(normal(n, shape.num_q_heads, d))
            self.k.append(normal(p + n, kv, d))
            self.v.append(normal(p + n, kv, dv))
            for tensors in (self.k, self.v):
                tensors[b][: situation.shared] = tensors[0][: situation.shared]
            for column, slot in enumerate(self.ledger.columns[b][:p]):
                if slot >= 0:
                    self.k_cache[slot], self.v_cache[slot] = self.k[b][column], self.v[b][column]
            nodes = list(request.node_of_row)
            for part, tensor in zip(rows, (self.q[b], self.k[b][p:], self.v[b][p:]), strict=True):
                part += [tensor[nodes], tensor.new_ones(request.pad_rows, *tensor.shape[1:])]
        self.rows_q, self.rows_k, self.rows_v = (torch.cat(part) for part in rows)
        if shape.kv_dtype is not None:
            nan = 0.0 if shape.kv_dtype == "int8" else nobody  # int8 has no NaN
            self.k_cache = self._codes(self.k_cache.nan_to_num(nan), self.k_scale)
            self.v_cache = self._codes(self.v_cache.nan_to_num(nan), self.v_scale)

    def _codes(self, t, scale):
        """torch's own conversion: round half to even, and the largest code beyond the largest code."""
        wide = t.double() / scale.double()[:, None]
        if self.case.shape.kv_dtype == "int8":
            return wide.round().clamp(-127, 127).to(torch.int8)
        return wide.clamp(-448, 448).to(torch.float8_e4m3fn)

    def _held(self, t, scale):
        """What the cache gives back for `t` (n, Hkv, lanes), in float64."""
        if self.case.shape.kv_dtype is None:
            return t.double()
        return self._codes(t, scale).double() * scale.double()[:, None]

    def built(self, backend):
        """What the backend builds, with the parameters of the layer."""
        shape = self.case.shape
        quantised = shape.kv_dtype is not None
        return replace(
            backend.build(self.candidates()),
            sinks=self.sinks if shape.sinks else None,
            alibi_slopes=self.slopes if shape.alibi else None,
            k_scale=self.k_scale if quantised else None,
            v_scale=self.v_scale if quantised else None,
        )

    def candidates(self):
        return candidates(self.case, self.ledger)

    def attend(self, backend, x, k=None, v=None):
        return backend.attend(
            x, self.rows_q.clone(), self.rows_k if k is None else k, self.rows_v if v is None else v,
            self.k_cache.clone(), self.v_cache.clone(),
        )  # fmt: skip

    def real_rows(self):
        for b, request in enumerate(self.case.requests):
            for node in range(request.num_nodes):
                yield b, node, self.case.qo_indptr[b] + request.row_of_node[node]

    def dense(self, b, node, lse_includes_sink=False):
        """(out (Hq, Dv), lse (Hq,)) in float64: softmax over the node's own list of keys."""
        request, shape = self.case.requests[b], self.case.shape
        path = [node]
        while path[0] > 0:
            path.insert(0, request.tree.parents[path[0]])
        keys = [*range(request.prefix_len), *(request.prefix_len + v for v in path)]
        if shape.window is not None:
            keys = keys[-shape.window :]
        held_k, held_v = (
            self._held(part, scale)
            for part, scale in ((self.k[b][keys], self.k_scale), (self.v[b][keys], self.v_scale))
        )
        outs, lses = [], []
        for head in range(shape.num_q_heads):
            kv_head = head // (shape.num_q_heads // shape.num_kv_heads)
            k = held_k[:, kv_head]
            score = k @ self.q[b][node, head].double() * shape.score_scale
            if shape.softcap is not None:
                e = (2 * score / shape.softcap).exp()
                score = shape.softcap * (e - 1) / (e + 1)
            if shape.alibi:
                steps_back = torch.tensor([float(len(keys) - 1 - i) for i in range(len(keys))])
                score = score - self.slopes[head].double() * steps_back
            mass = score.exp().sum()
            whole = mass + self.sinks[head].double().exp() if shape.sinks else mass
            outs.append((score.exp() / whole) @ held_v[:, kv_head])
            lses.append((whole if lse_includes_sink else mass).log())
        return torch.stack(outs), torch.stack(lses)

    def wrong_rows(self, attended, lse_includes_sink=False):
        """Real rows whose output or lse is off."""
        wrong, tolerance = set(), TOLERANCE[self.case.shape.dtype]
        for b, node, row in self.real_rows():
            out, lse = self.dense(b, node, lse_includes_sink)
            close = torch.allclose(attended.out[row].double(), out, rtol=tolerance, atol=tolerance)
            if not (close and torch.allclose(attended.lse[row].double(), lse, atol=1e-5)):
                wrong.add(row)
        return wrong
