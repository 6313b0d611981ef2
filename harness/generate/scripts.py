"""Hypothesis strategies for scripts: a machine whose next step is drawn among those it is ready for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, seed
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from msgspec.structs import replace

from treeproof.contract.case import (
    AttentionShape,
    KVLayout,
    MaskLayout,
    MaskMode,
    Order,
    Request,
    VerifyCase,
    Window,
)
from treeproof.contract.script import (
    Admit,
    Evict,
    Finish,
    Params,
    Prefill,
    Round,
    SampledBy,
    Step,
    Turn,
)
from treeproof.generate.drafting import served_columns
from treeproof.generate.profiles import settings_of
from treeproof.generate.trees import row_orders, trees

LAYERS: tuple[dict[str, Any], ...] = (
    {"num_q_heads": 2, "num_kv_heads": 2, "head_dim": 16, "v_head_dim": 16},
    {"num_q_heads": 4, "num_kv_heads": 1, "head_dim": 16, "v_head_dim": 16},
    {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 16, "v_head_dim": 24, "softcap": 4.0},
    {"num_q_heads": 2, "num_kv_heads": 2, "head_dim": 16, "v_head_dim": 16, "visibility": 5},
)
"""Layers of the small models that scripts are served with: few, for their weights are kept. A number is
the width of a window."""
MOST_NODES = 9
_ROTARY = 100.0

_ROUNDS = st.sampled_from((2, 3, 3, 4, 6, 10))
_REQUESTS = st.sampled_from((1, 2, 2, 3))
_PROMPT = st.integers(1, 14)
_PAGE = st.sampled_from((1, 2, 4, 4, 16))
_ORDER: st.SearchStrategy[Order] = st.sampled_from(("contiguous", "reversed", "shuffled"))
_DTYPE = st.sampled_from(("float32", "float32", "bfloat16", "float16"))
_YES = st.booleans()
_RARELY = st.integers(0, 9).map(lambda number: number == 9)
_SELDOM = st.integers(0, 3).map(lambda number: number == 3)
_SEED = st.integers(0, 2**63 - 1)
_NO_LIMIT = 1 << 20


@st.composite
def _params(draw: DrawFn) -> Params:
    """What a request asks for; stop tokens are so many that one of them is now and then emitted."""
    stops: tuple[int, ...] = ()
    if draw(_YES):
        first = draw(st.integers(0, 54))
        stops = tuple(range(first, first + draw(st.integers(1, 7))))
    return Params(
        limit=draw(st.none() | st.integers(1, 12)),
        stop_tokens=stops,
        temperature=draw(st.sampled_from((1.0, 0.5, 2.0))),
        frequency=draw(st.sampled_from((0.0, 0.5, -0.25))),
        presence=draw(st.sampled_from((0.0, 0.75))),
        repetition=draw(st.sampled_from((1.0, 1.5))),
        grammar=draw(_YES),
    )


_PARAMS = _params()


@st.composite
def scripts(draw: DrawFn, rounds: int | None = None) -> VerifyCase:
    """Cases with a script of `rounds` rounds, or of 2 to 10. Everything shrinks to fewer steps."""
    page = draw(_PAGE)
    shared = page * draw(st.integers(0, 8 // page)) if draw(_YES) else 0
    requests = tuple(_request(draw, shared) for _ in range(draw(_REQUESTS)))
    wanted = draw(_ROUNDS) if rounds is None else rounds
    machine = _Machine(requests)
    while machine.rounds < wanted:
        machine.take(draw)
    shape = _shape(draw)
    return VerifyCase(
        requests=requests,
        shape=shape,
        layout=_layout(draw, shape, requests, machine, page, shared),
        mask=_mask(draw),
        seed=draw(_SEED),
        script=tuple(machine.steps),
    )


def _shape(draw: DrawFn) -> AttentionShape:
    layer = dict(draw(st.sampled_from(LAYERS)))
    if "visibility" in layer:
        layer["visibility"] = Window(width=layer["visibility"])
    return AttentionShape(rotary=_ROTARY, dtype=draw(_DTYPE), **layer)


def _request(draw: DrawFn, shared: int) -> Request:
    tree = draw(trees(1, MOST_NODES))
    return Request(
        tree=tree,
        row_of_node=draw(row_orders(tree)),
        prefix_len=shared + draw(_PROMPT),
        pad_rows=draw(st.sampled_from((0, 0, 0, 1, 3))),
    )


def _layout(
    draw: DrawFn,
    shape: AttentionShape,
    requests: tuple[Request, ...],
    machine: _Machine,
    page: int,
    shared: int,
) -> KVLayout:
    """A pool with room for all requests at their longest, or for most of them."""
    grown = [machine.grown[b] for b in range(len(requests))]
    pages = _pages(requests, grown, page)
    if draw(_YES):  # now and then a request has to wait, and cached pages have to go
        pages = max(_pages(requests, [0] * len(requests), page), pages * 3 // 4)
    return KVLayout(
        page_size=page,
        num_slots=pages * page,
        order=draw(_ORDER),
        pad_slot=draw(st.sampled_from((0, -1))),
        page_table_pad=draw(st.sampled_from((0, -1, pages * page - 1))),
        shared_prefix=shared,
        evicted=shape.window is not None and draw(_YES),
    )


def _pages(requests: tuple[Request, ...], grown: list[int], page: int) -> int:
    """Pages for all of them, each grown by so many columns, while they draft or are verified."""
    pages = 3
    for request, by in zip(requests, grown, strict=True):
        ready = request.prefix_len + by
        columns = max(ready + request.num_nodes, served_columns(requests, ready, page))
        pages += -(-columns // page)
    return pages


def _mask(draw: DrawFn) -> MaskLayout:
    mode = draw(st.sampled_from(tuple(MaskMode)))
    return MaskLayout(mode=mode, fill_prefix=mode is not MaskMode.FULL_MASK or not draw(_YES))


@dataclass
class _Machine:
    """What is drawn so far, and what each request is ready for."""

    requests: tuple[Request, ...]
    steps: list[Step] = field(default_factory=list)
    rounds: int = 0
    left: dict[int, int] = field(default_factory=dict)
    """Prompt tokens that each admitted request has still to compute."""
    grown: dict[int, int] = field(default_factory=dict)
    """Columns that each has been given by rounds since it came in, at most."""
    budget: dict[int, int] = field(default_factory=dict)
    """Tokens that each may still be served."""

    def __post_init__(self) -> None:
        self.grown = dict.fromkeys(range(len(self.requests)), 0)

    def take(self, draw: DrawFn) -> None:
        """One more step. Rounds come most often, and what leads to one before what leads away."""
        absent = [b for b in range(len(self.requests)) if b not in self.left]
        waiting = [b for b, left in self.left.items() if left]
        running = [b for b, left in self.left.items() if not left]
        kinds = ["round"] * 5 * bool(running) + ["prefill"] * 3 * bool(waiting)
        kinds += ["admit"] * 3 * bool(absent)
        if self.rounds:
            kinds += ["finish"] * bool(self.left) + ["evict"]
        kind = draw(st.sampled_from(kinds))
        if kind == "admit":
            b = draw(st.sampled_from(absent))
            self.left[b] = self.requests[b].prefix_len
            params = draw(_PARAMS) if draw(_SELDOM) else Params()
            self.budget[b] = params.limit or _NO_LIMIT
            self.steps.append(Admit(request=b, params=params))
        elif kind == "prefill":
            b = draw(st.sampled_from(waiting))
            chunk = draw(st.integers(1, self.left[b])) if draw(_YES) else self.left[b]
            self.left[b] -= chunk
            self.steps.append(Prefill(request=b, tokens=chunk))
            if not self.left[b]:
                self._emit(b, 0)
        elif kind == "round":
            self._round(draw, running)
        elif kind == "finish":
            b = draw(st.sampled_from(sorted(self.left)))
            self._end(b)
            self.steps.append(Finish(request=b))
        else:
            self.steps.append(Evict())

    def _round(self, draw: DrawFn, running: list[int]) -> None:
        if len(running) > 1 and draw(_YES):
            running = sorted(running, key=lambda b: (b + self.rounds) % len(self.requests))
            running = running[: draw(st.integers(1, len(running)))]
        turns = []
        for b in running:
            most = self.requests[b].num_nodes
            nodes = draw(st.integers(1, most)) if draw(_YES) else most
            accept = draw(st.integers(0, nodes - 1))
            depth, stop = self.requests[b].tree.depth[accept], None
            if depth and draw(_RARELY):
                stop = draw(st.integers(1, depth))
            cut = None if nodes == most else nodes
            turns.append(Turn(request=b, accept=accept, nodes=cut, stop=stop))
        idle, rule = draw(st.sampled_from((0, 0, 1, 2))), self._rule(draw, turns)
        self.steps.append(Round(turns=tuple(turns), idle=idle, sample=rule))
        self.rounds += 1
        for turn in turns:
            of_node = self.requests[turn.request].tree.depth
            deepest = of_node[turn.accept] if rule is None else max(of_node[: turn.nodes])
            self._emit(turn.request, deepest + 1)
            if turn.stop is not None:
                self._end(turn.request)

    def _rule(self, draw: DrawFn, turns: list[Turn]) -> SampledBy | None:
        if not draw(_SELDOM):
            return None
        rules: list[SampledBy] = ["target-only"]
        for turn in turns:
            parents = self.requests[turn.request].tree.parents[: turn.nodes]
            if parents != tuple(range(-1, len(parents) - 1)):
                return rules[0]
        return draw(st.sampled_from([*rules, "chain"]))

    def _emit(self, b: int, most: int) -> None:
        """One token at least; with the last one of its limit the request is over."""
        self.grown[b] += most
        self.budget[b] -= 1
        if not self.budget[b]:
            self._end(b)

    def _end(self, b: int) -> None:
        self.left.pop(b, None)
        self.grown[b] = 0


BLOCK = 12
"""Scripts of a full unit."""


@dataclass(frozen=True)
class ScriptUnit:
    """`count` scripts; the same ones whenever and wherever it is drawn. `rounds` None: drawn."""

    profile: str
    seed: int
    """Seed of the run."""
    block: int
    count: int
    rounds: int | None = None
    dtype: str | None = None
    """Of every script; None: drawn."""

    @property
    def name(self) -> str:
        fixed = "" if self.rounds is None else f"{self.rounds}-"
        return f"{self.profile}-{self.seed}-rounds-{fixed}{self.block}"


def script_units(
    profile: str, run_seed: int, cases: int, dtype: str | None = None
) -> list[ScriptUnit]:
    """The units of a run of so many scripts, in a fixed order."""
    return [
        ScriptUnit(profile, run_seed, block, min(BLOCK, cases - block * BLOCK), dtype=dtype)
        for block in range(-(-cases // BLOCK))
    ]


def draw_scripts(unit: ScriptUnit) -> list[VerifyCase]:
    """The cases of a unit. Hypothesis only generates: it neither mutates, shrinks nor saves."""
    found: list[VerifyCase] = []

    @seed(int.from_bytes(hashlib.blake2b(unit.name.encode(), digest_size=8).digest(), "big"))
    @settings_of(unit.profile, examples=unit.count + 1)
    @given(scripts(unit.rounds))
    def collect(case: VerifyCase) -> None:
        found.append(case)

    collect()
    # The first example is the simplest there is, whatever the seed.
    kept = found[-unit.count :]
    if unit.dtype is None:
        return kept
    return [replace(case, shape=replace(case.shape, dtype=unit.dtype)) for case in kept]
