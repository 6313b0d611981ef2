"""The steps of the small language model in float64, each as far off as working precision may be.

Tensors start with (runs, ...): the first run has no errors, every other one has errors of random
sign. What a token reads is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from treeproof.contract.target_model import NORM_FLOOR, TargetModel, weights
from treeproof.oracles.codes import kept, kept_off
from treeproof.oracles.target_errors import FLOAT32, Errors, angle_share

_RUNS = 4
"""Runs with errors, beside the one without."""

_ALLOWED = 3.0


@dataclass(frozen=True)
class Memory:
    """Keys (runs, kv_heads, n, head_dim) and values (runs, kv_heads, n, v_head_dim) of one layer."""

    keys: Tensor
    values: Tensor

    def __add__(self, more: Memory) -> Memory:
        keys, values = ((self.keys, more.keys), (self.values, more.values))
        return Memory(torch.cat(keys, 2), torch.cat(values, 2))

    def __len__(self) -> int:
        return self.keys.shape[2]

    def of(self, tokens: slice | Tensor) -> Memory:
        """Of some tokens; of lists (m, n) of equal length, (runs, kv_heads, m, n, lanes)."""
        return Memory(self.keys[:, :, tokens], self.values[:, :, tokens])


Turns = Mapping[float | None, tuple[Tensor, Tensor] | None]
"""By base of the rotation: what a pair of lanes, as a complex number, is multiplied by, (n, pairs), and how
far that may be off."""


_SIGNS = 16
"""Signs of a run before they begin again, as a power of two."""


@lru_cache(maxsize=4)
def _signs(seed: int, count: int) -> Tensor:
    """(runs, count) random signs, 0 in the run without errors."""
    drawn = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (1 + _RUNS, count), generator=drawn).double() * 2 - 1
    signs[0] = 0.0
    return signs


def _weights(model: TargetModel) -> dict[str, Tensor]:
    return _of_bare(model.bare)


@lru_cache(maxsize=16)
def _of_bare(model: TargetModel) -> dict[str, Tensor]:
    return {name: torch.tensor(values) for name, values in weights(model).items()}


class Steps:
    """What a layer does, but for which keys are read. One object draws the errors of its runs.

    `errors` None: there is the run without errors only, and no limit can be asked for. `given`: weights
    of these names and shapes in place of those that the model's seed draws. Raises ValueError where
    one is missing or of another shape.
    """

    def __init__(
        self,
        model: TargetModel,
        errors: Errors | None = FLOAT32,
        given: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.model, self._errors = model, errors or Errors()
        self.runs = 1 if errors is None else 1 + _RUNS
        self._w = _weights(model) if given is None else _checked(model, given)
        self._used = 0

    @property
    def nothing(self) -> Memory:
        """What is kept of no token."""
        model = self.model
        return Memory(
            *(
                torch.zeros(self.runs, model.kv_heads, 0, lanes, dtype=torch.float64)
                for lanes in (model.head_dim, model.v_head_dim)
            )
        )

    def embedded(self, tokens: Sequence[int]) -> Tensor:
        """(runs, n, width). Raises ValueError where a token is outside the vocabulary."""
        for token in tokens:
            if not 0 <= token < self.model.vocab_size:
                raise ValueError(f"token {token}: accepted are 0 to {self.model.vocab_size - 1}")
        return self._w["embed"][list(tokens)].expand(self.runs, -1, -1)

    def turns(self, index: Sequence[int]) -> Turns:
        """How far queries and keys at these logical indices are turned, in every layer."""
        return _turns(self.model.bare, tuple(index))

    def projected(self, layer: int, x: Tensor, turns: Turns) -> tuple[Tensor, Memory]:
        """Queries (runs, heads, n, lanes) and what a layer keeps of n tokens."""
        model, h = self.model, self._norm(x, f"attend_norm{layer}")
        q, k, v = (self._head_by_head(layer, name, h) for name in "qkv")
        if model.qk_norm:
            q, k = self._norm(q, f"q_norm{layer}"), self._norm(k, f"k_norm{layer}")
        turn = turns[model.base(layer)]
        if turn is not None:
            q, k = self._turned(q, *turn), self._turned(k, *turn)
        codes, handed = model.codes, self._errors.handed
        if handed:
            q = self._off(q, q.abs, handed)
        if codes is not None:
            k, v = (
                self._kept(k, codes.k_scale, codes.dtype),
                self._kept(v, codes.v_scale, codes.dtype),
            )
        elif handed:
            k, v = (self._off(one, one.abs, handed) for one in (k, v))
        return q, Memory(k, v)

    def _kept(self, x: Tensor, scales: Sequence[float], dtype: str) -> Tensor:
        """(runs, kv_heads, n, lanes) as codes keep them."""
        scale = torch.tensor(scales, dtype=torch.float64)[:, None, None]
        near = kept(x[:1], scale, dtype)
        if self.runs == 1:
            return near
        # As far as any number of a token is off: few runs do not find how far each may be.
        off = _ALLOWED * (x[1:] - x[0]).abs().amax(dim=(0, 1, 3))[:, None]
        signs = self._sign(x[0].numel())[1::2].view(-1, *x.shape[1:])
        return torch.cat((near, kept_off(x[0], scale, dtype, off, signs)))

    def attended(self, q: Tensor, shared: Memory, own: Memory | None = None) -> Tensor:
        """Queries (runs, heads, m, lanes) that each read all of `shared`, and of `own` their own
        (runs, kv_heads, m, n, lanes): (runs, heads, m, v_head_dim). Keys come in the order of their
        logical indices, the query's own last."""
        model, u, m = self.model, self._errors, q.shape[2]
        # Query heads of a group side by side: (runs, kv_heads, m, group, lanes).
        group = q.view(q.shape[0], shared.keys.shape[1], -1, m, q.shape[3]).transpose(2, 3)

        def scores(q: Tensor, shared: Tensor, own: Tensor | None) -> Tensor:
            found = (q.flatten(2, 3) @ shared.mT).view(*q.shape[:4], -1)
            return found if own is None else torch.cat((found, q @ own.mT), -1)

        def means(p: Tensor, shared: Tensor, own: Tensor | None) -> Tensor:
            count = shared.shape[2]
            found = (p[..., :count].flatten(2, 3) @ shared).view(*p.shape[:4], -1)
            return found if own is None else found + p[..., count:] @ own

        keys = shared.keys, None if own is None else own.keys
        values = shared.values, None if own is None else own.values
        s = scores(group, *keys) * model.score_scale
        share = (q.shape[3] + 2) * u.acc + 2 * u.mul
        s = self._off(s, lambda: scores(group.abs(), *_sizes(keys)) * model.score_scale, share)
        if model.softcap is not None:
            s = model.softcap * (s / model.softcap).tanh()
            s = self._off(s, lambda: torch.ones_like(s), u.tanh * model.softcap)
        s, sink = self._biased(s)
        p = torch.cat((s, sink), -1).softmax(dim=-1)[..., : s.shape[-1]]
        share = (s.shape[-1] + sink.shape[-1] + 8) * u.acc + u.p + u.v + u.merged
        out = self._off(means(p, *values), lambda: means(p, *_sizes(values)), share)
        if u.out:
            out = self._off(out, out.abs, u.out)
        return out.transpose(2, 3).flatten(1, 2)

    def _biased(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (runs, kv_heads, m, group, n) with what their distance takes off, and those of the sinks
        (runs, kv_heads, m, group, 1, or 0 where there are none): each carries four roundings."""
        model, share = self.model, 4 * FLOAT32.unit
        of_head = 1, s.shape[1], 1, s.shape[3], 1
        if model.slopes:
            slope = torch.tensor(model.slopes, dtype=torch.float64).view(of_head)
            bias = slope * torch.arange(s.shape[-1] - 1, -1, -1)
            s = self._off(s - bias, lambda: bias.expand_as(s), share)
        if not model.sinks:
            return s, s[..., :0]
        sink = torch.tensor(model.sinks, dtype=torch.float64).view(of_head).expand_as(s[..., :1])
        return s, self._off(sink, sink.abs, share)

    def carried(self, layer: int, x: Tensor, attended: Tensor) -> Tensor:
        """x (runs, n, width) behind a layer whose heads gave (runs, heads, n, v_head_dim)."""
        unit = self._errors.unit
        added = self._times(attended.transpose(1, 2).flatten(2), f"o{layer}")
        x = self._added(x, added, f"attended_norm{layer}")
        h = self._norm(x, f"inner_norm{layer}")
        gate, up = self._times(h, f"gate{layer}"), self._times(h, f"up{layer}")
        if self.model.activation == "gelu":
            act = gelu(gate, approximate="tanh")
            size = gate  # its 1 + tanh cancels below 0: the error goes by the argument
        else:
            act = size = silu(gate)
        inner = self._off(act * up, lambda: (size * up).abs(), 8 * unit)
        return self._added(x, self._times(inner, f"down{layer}"), f"carried_norm{layer}")

    def logits(self, x: Tensor) -> Tensor:
        """(runs, n, vocabulary)."""
        found, cap = self._times(self._norm(x, "norm"), "head"), self.model.final_softcap
        if cap is None:
            return found
        found = cap * (found / cap).tanh()
        return self._off(found, lambda: torch.full_like(found, cap), 6 * self._errors.unit)

    def _off(self, exact: Tensor, magnitude: Callable[[], Tensor], share: float) -> Tensor:
        """`exact` (runs, ...) with an error of `share` times `magnitude`."""
        if self.runs == 1:
            return exact
        sign = self._sign(exact[0].numel()).view(exact.shape)
        return torch.addcmul(exact, magnitude(), sign, value=share)

    def _sign(self, count: int) -> Tensor:
        """(runs, count) signs that were not used just now."""
        signs = _signs(self.model.seed, 1 << max(_SIGNS, (count - 1).bit_length()))
        if self._used + count > signs.shape[1]:
            self._used = 0
        self._used += count
        return signs[:, self._used - count : self._used]

    def _times(self, x: Tensor, name: str) -> Tensor:
        """A product with a matrix: as many roundings as it has terms, and two."""
        matrix = self._w[name]
        share = (len(matrix) + 2) * self._errors.unit
        return self._off(x @ matrix, lambda: x.abs() @ matrix.abs(), share)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        """Along the last axis. Half the mean's roundings, for it stands under a root; six others."""
        lanes = x.shape[-1]
        normed = x / (x.square().mean(dim=-1, keepdim=True) + NORM_FLOOR).sqrt() * self._w[name]
        return self._off(normed, normed.abs, (lanes // 2 + 7) * self._errors.unit)

    def _added(self, x: Tensor, added: Tensor, norm: str) -> Tensor:
        x = x + (self._norm(added, norm) if self.model.post_norm else added)
        return self._off(x, x.abs, 2 * self._errors.unit)

    def _head_by_head(self, layer: int, name: str, h: Tensor) -> Tensor:
        """Of q, k or v, (runs, heads, n, lanes)."""
        x, model = self._times(h, f"{name}{layer}"), self.model
        if model.qkv_bias:
            x = x + self._w[f"{name}_bias{layer}"]
            x = self._off(x, x.abs, self._errors.unit)
        heads = model.heads if name == "q" else model.kv_heads
        return x.view(*x.shape[:2], heads, -1).transpose(1, 2)

    def _turned(self, x: Tensor, turn: Tensor, off: Tensor) -> Tensor:
        """(runs, heads, n, lanes), each pair multiplied by its turn (n, pairs)."""
        lanes, side_by_side = self.model.turned_lanes, self.model.interleaved
        own, rest = x[..., :lanes], x[..., lanes:]
        a, b = (own[..., 0::2], own[..., 1::2]) if side_by_side else own.chunk(2, -1)

        def laid(a: Tensor, b: Tensor, rest: Tensor) -> Tensor:
            own = (torch.stack((a, b), -1).flatten(-2),) if side_by_side else (a, b)
            return torch.cat((*own, rest), -1)

        z = torch.complex(a, b) * turn
        size = ((a.abs() + b.abs()) * (4 * self._errors.unit + off),) * 2
        return self._off(laid(z.real, z.imag, rest), lambda: laid(*size, 0 * rest), 1.0)


@lru_cache(maxsize=1024)
def _turns(model: TargetModel, index: tuple[int, ...]) -> Turns:
    found: dict[float | None, tuple[Tensor, Tensor] | None] = {None: None}
    exponent = torch.arange(0, model.turned_lanes, 2, dtype=torch.float64) / -model.turned_lanes
    at = torch.tensor(index, dtype=torch.float64)[:, None]
    for base in filter(None, map(model.base, range(model.layers))):
        angle = at * base**exponent
        off = angle_share(base) if model.angles == "float32" else 0.0
        found[base] = torch.complex(angle.cos(), angle.sin()), angle * off
    return found


def _sizes(pair: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    return pair[0].abs(), None if pair[1] is None else pair[1].abs()


def _checked(model: TargetModel, given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    for name, shape in model.shapes.items():
        found = tuple(given[name].shape) if name in given else None
        if found != shape:
            raise ValueError(f"weight {name} has shape {found}: accepted is {shape}")
    return {name: given[name].detach().double().cpu() for name in model.shapes}


def with_limit(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (runs, n, vocabulary) to those without errors (n, vocabulary) and the limit (n, 1)."""
    change = (logits[1:] - logits[0]).abs().amax(dim=(0, 2))
    return logits[0], _ALLOWED * change[:, None]
