"""One row of attention with rounding where a test puts it, and the bound written out once more."""

from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
import torch

from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.case import AttentionShape
from treeproof.contract.inputs import LayerParameters
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.path_naive import attend_paths_naive
from treeproof.properties.bound import error_bound

U = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11, "tf32": 2.0**-10}
HALF_SUBNORMAL = {"float32": 2.0**-150, "bfloat16": 2.0**-134, "float16": 2.0**-25}
LANES = 8


def to(dtype, x):
    """A float64 number or array rounded to nearest, ties to even."""
    return torch.as_tensor(x, dtype=torch.float64).to(getattr(torch, dtype)).double().numpy()


def cut_to_tf32(x):
    """The ten bits after the point that a matrix unit keeps of a float32, the others cut off."""
    bits = np.asarray(x, dtype=np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def dot_in_order(q, k):
    """A float32 dot product, lane after lane; products are exact, as in a fused multiply-add."""
    total = np.float32(0)
    for a, b in zip(q, k, strict=True):
        total = np.float32(float(total) + float(a) * float(b))
    return total


@dataclass(frozen=True)
class Row:
    """Keys (n, 8) and values (n,) of one row, the row's own key last; its query (8,)."""

    keys: np.ndarray
    values: np.ndarray
    query: np.ndarray
    dtype: str = "float32"
    scale: float = 1.0
    softcap: float | None = None
    slope: float | None = None
    numerics: Numerics = field(default_factory=lambda: Numerics(p="float32"))

    @property
    def shape(self):
        return AttentionShape(
            num_q_heads=1, num_kv_heads=1, head_dim=LANES, v_head_dim=LANES, dtype=self.dtype,
            scale=self.scale, softcap=self.softcap, alibi=self.slope is not None,
        )  # fmt: skip

    def exact(self):
        """The oracle's quantities, and the exact output (float)."""
        dtype, n = getattr(torch, self.dtype), len(self.values)
        keys = torch.tensor(self.keys).view(n, 1, LANES).to(dtype)
        values = torch.zeros(n, 1, LANES, dtype=torch.float64)
        values[:, 0, 0] = torch.tensor(self.values)
        values = values.to(dtype)
        assert float(values[:, 0, 0].double().sub(torch.tensor(self.values)).abs().max()) == 0
        query = torch.tensor(self.query).view(1, 1, LANES).to(dtype)
        slopes = None if self.slope is None else torch.tensor([self.slope], dtype=torch.float32)
        layer = LayerParameters(alibi_slopes=slopes)
        root = CandidateTree((0,), (-1,))
        return attend_paths_naive(
            root, n - 1, self.shape, query, keys[:-1], values[:-1], keys[-1:], values[-1:], layer
        )

    def limit(self):
        result = self.exact()
        bound = error_bound(
            **vars(result), shape=self.shape, numerics=self.numerics, capabilities=Capabilities()
        )
        return float(bound.total[0, 0, 0])

    def written_out(self, **changed):
        """The bound of the design, its constants open to change; float."""
        r, said = self.exact(), self.numerics

        def dtype_of(kept):
            return self.dtype if kept == "input" else kept

        c = {
            "u_p": U[dtype_of(said.p)],
            "eta_p": HALF_SUBNORMAL[dtype_of(said.p)] if said.p != "tf32" else 0.0,
            "u_v": 0.0 if U[dtype_of(said.v)] <= U[self.dtype] else U[said.v],
            "u_mul": 0.0 if U[dtype_of(said.mul)] <= U[self.dtype] else U[said.mul],
            "u_acc": U[dtype_of(said.acc)],
            "u_mid": U[dtype_of(said.partial)],
            "merges": said.merges,
            "u_out": U[self.dtype],
            "eta_out": HALF_SUBNORMAL[self.dtype],
            "u_tanh": {"exact": 6 * 2.0**-24, "approx": 2.0**-11 + 2 * 2.0**-24}[said.tanh],
            "twice": 2,
            "d": LANES,
            "scaled_and_shifted": 2,
            "n": len(self.values),
            "eight": 8,
            "biases": 4,
        } | changed
        score_abs, bias = float(r.score_abs), float(r.bias_abs)
        sigma = (c["d"] + c["scaled_and_shifted"]) * c["u_acc"] * score_abs
        sigma += 2 * c["u_mul"] * score_abs + c["biases"] * 2.0**-24 * bias
        sigma += 0.0 if self.softcap is None else self.softcap * c["u_tanh"]
        relative = c["u_p"] + c["u_v"] + c["twice"] * np.expm1(sigma)
        relative += (c["n"] + c["eight"]) * c["u_acc"] + c["merges"] * c["u_mid"]
        underflow = c["eta_p"] * np.exp(float(r.score_max) - float(r.lse))
        o, a, sum_v = (float(t[0, 0, 0]) for t in (r.out, r.weight, r.abs_v))
        return relative * a + underflow * sum_v + c["u_out"] * abs(o) + c["eta_out"]

    def error(self, output):
        return abs(float(output) - float(self.exact().out[0, 0, 0]))

    def with_numerics(self, **said):
        return replace(self, numerics=Numerics(**({"p": "float32"} | said)))


def lanes(*first):
    """(8,) of these numbers and then zeros."""
    return np.array([*first, *[0.0] * (LANES - len(first))])


def scored(scores, values, **more):
    """A row whose keys score exactly these numbers."""
    keys = np.stack([lanes(score) for score in scores])
    return Row(keys, np.array(values, dtype=np.float64), lanes(1.0), **more)


def exactly(weights, values):
    """Sum of weight times value over the sum of weights, in rational numbers, to a float."""
    top = sum(Fraction(float(w)) * Fraction(float(v)) for w, v in zip(weights, values, strict=True))
    return float(top / sum(Fraction(float(w)) for w in weights))
