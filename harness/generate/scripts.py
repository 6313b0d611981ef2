"""Hypothesis strategies for scripts: a machine whose next step is drawn among those it is ready for."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import cycle, islice

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from treeproof.contract.case import (
    KVLayout,
    MaskLayout,
    MaskMode,
    Order,
    Request,
    VerifyCase,
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
from treeproof.generate.script_groups import ScriptGroup
from treeproof.generate.trees import row_orders, trees

MOST_NODES = 9

_ROUNDS = st.sampled_from((2, 3, 3, 4, 6, 10))
_REQUESTS = st.sampled_from((1, 2, 2, 3))
_PROMPT = st.integers(1, 14)
_ORDER: st.SearchStrategy[Order] = st.sampled_from(("contiguous", "reversed", "shuffled"))
_YES = st.booleans()
_RARELY = st.integers(0, 9).map(lambda number: number == 9)
_NOW_AND_THEN = st.integers(0, 2).map(lambda number: number == 2)
_SELDOM = st.integers(0, 3).map(lambda number: number == 3)
_SAMPLED = st.sampled_from((1, 1, 3))
"""Of four rounds so many are sampled: in most scripts few, in some one after another."""
_TOKEN = st.integers(0, 60)
_REPEATED = st.lists(_TOKEN, min_size=1, max_size=2)
_SEED = st.integers(0, 2**63 - 1)
_IDLE = st.sampled_from((0, 0, 1, 2))
_NO_LIMIT = 1 << 20

# A strategy takes longer to make than to draw from, and there are few of each kind.
_one_of, _between = lru_cache(st.sampled_from), lru_cache(st.integers)


@st.composite
def _params(draw: DrawFn, *, ends: bool = False) -> Params:
    """What a request asks for; stop tokens are so many that one of them is now and then emitted. `ends`: at
    a limit that it soon reaches, or at a token that it soon emits."""
    limited = ends and draw(_YES)
    limit = draw(st.integers(2, 6)) if limited else draw(st.none() | st.integers(1, 12))
    stops: tuple[int, ...] = ()
    if (ends and not limited) or draw(_YES):
        first = draw(st.integers(0, 48))
        stops = tuple(range(first, first + draw(st.integers(1, 7)) + 6 * ends))
    if ends and draw(_YES):
        return Params(limit=limit, stop_tokens=stops)
    return Params(
        limit=limit,
        stop_tokens=stops,
        temperature=draw(st.sampled_from((1.0, 0.5, 2.0))),
        frequency=draw(st.sampled_from((0.0, 0.5, -0.25))),
        presence=draw(st.sampled_from((0.0, 0.75))),
        repetition=draw(st.sampled_from((1.0, 1.5))),
        bias=_biases(draw(st.integers(0, 48))) if draw(_YES) else (),
        min_p=draw(st.sampled_from((0.0, 0.0, 2.0**-3, 2.0**-5))),
        grammar=draw(_YES),
    )


def _biases(first: int) -> tuple[tuple[int, float], ...]:
    """Some tokens are asked for, and some are kept away."""
    return tuple((first + 3 * i, more) for i, more in enumerate((2.0, -3.0, 1.5, -12.0)))


_PARAMS, _ENDING = _params(), _params(ends=True)


@st.composite
def scripts(draw: DrawFn, group: ScriptGroup, rounds: int | None = None) -> VerifyCase:
    """Cases with a script of `rounds` rounds, or of 2 to 10. Everything shrinks to fewer steps."""
    page = group.page_size
    shared = page * draw(st.integers(0, max(1, 8 // page))) if draw(_YES) else 0
    repeated = draw(_REPEATED) if draw(_NOW_AND_THEN) else []
    requests = tuple(_request(draw, shared, repeated) for _ in range(draw(_REQUESTS)))
    shared = 0 if repeated else shared
    wanted = draw(_ROUNDS) if rounds is None else rounds
    machine = _Machine(requests, group.ends, together=draw(_YES), sampled=draw(_SAMPLED))
    while machine.rounds < wanted:
        machine.take(draw)
    return VerifyCase(
        requests=requests,
        shape=group.shape,
        layout=_layout(draw, group, requests, machine, shared),
        mask=_mask(draw),
        seed=draw(_SEED),
        script=tuple(machine.steps),
    )


def _request(draw: DrawFn, shared: int, repeated: list[int]) -> Request:
    """`repeated`: tokens that its prompt consists of, again and again: pages in several places, and of several
    requests, hold the same ones then, behind the same others and behind different ones."""
    tree, length = draw(trees(1, MOST_NODES)), shared + draw(_PROMPT)
    first = draw(st.integers(0, len(repeated) - 1)) if repeated else 0
    return Request(
        tree=tree,
        row_of_node=draw(row_orders(tree)),
        prefix_len=length,
        prefix_tokens=tuple(islice(cycle(repeated), first, first + length)),
        pad_rows=draw(st.sampled_from((0, 0, 0, 1, 3))),
    )


def _layout(
    draw: DrawFn,
    group: ScriptGroup,
    requests: tuple[Request, ...],
    machine: _Machine,
    shared: int,
) -> KVLayout:
    """A pool with room for all requests at their longest, or for most of them."""
    page = group.page_size
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
        evicted=group.evicted,
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
    ends: bool
    together: bool
    """Requests come in early and stay; or late, when others have been served, and leave to come again."""
    sampled: int
    """Rounds that are sampled, of four."""
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
        kinds += ["admit"] * (3 if self.together else 1) * bool(absent)
        if self.rounds:
            kinds += ["finish"] * (1 if self.together else 2) * bool(self.left) + ["evict"]
        kind = draw(_one_of(tuple(kinds)))
        if kind == "admit":
            b = draw(_one_of(tuple(absent)))
            self.left[b] = self.requests[b].prefix_len
            params = (
                draw(_ENDING if self.ends else _PARAMS) if self.ends or draw(_SELDOM) else Params()
            )
            self.budget[b] = params.limit or _NO_LIMIT
            self.steps.append(Admit(request=b, params=params))
        elif kind == "prefill":
            b = draw(_one_of(tuple(waiting)))
            chunk = draw(_between(1, self.left[b])) if draw(_YES) else self.left[b]
            self.left[b] -= chunk
            self.steps.append(Prefill(request=b, tokens=chunk))
            if not self.left[b]:
                self._emit(b, 0)
        elif kind == "round":
            self._round(draw, running)
        elif kind == "finish":
            b = draw(_one_of(tuple(sorted(self.left))))
            self._end(b)
            self.steps.append(Finish(request=b))
        else:
            self.steps.append(Evict())

    def _round(self, draw: DrawFn, running: list[int]) -> None:
        if len(running) > 1 and draw(_YES):
            running = sorted(running, key=lambda b: (b + self.rounds) % len(self.requests))
            running = running[: draw(_between(1, len(running)))]
        turns = []
        for b in running:
            most = self.requests[b].num_nodes
            nodes = draw(_between(1, most)) if draw(_YES) else most
            accept = draw(_between(0, nodes - 1))
            depth, stop = self.requests[b].tree.depth[accept], None
            if depth and draw(_RARELY):
                stop = draw(_between(1, depth))
            cut = None if nodes == most else nodes
            turns.append(Turn(request=b, accept=accept, nodes=cut, stop=stop))
        idle, rule = draw(_IDLE), self._rule(draw, turns)
        self.steps.append(Round(turns=tuple(turns), idle=idle, sample=rule))
        self.rounds += 1
        for turn in turns:
            of_node = self.requests[turn.request].tree.depth
            deepest = of_node[turn.accept] if rule is None else max(of_node[: turn.nodes])
            self._emit(turn.request, deepest + 1)
            if turn.stop is not None:
                self._end(turn.request)

    def _rule(self, draw: DrawFn, turns: list[Turn]) -> SampledBy | None:
        if draw(_between(0, 3)) < 4 - self.sampled:
            return None
        rules: tuple[SampledBy, ...] = ("target-only", "target-only", "typical")
        for turn in turns:
            parents = self.requests[turn.request].tree.parents[: turn.nodes]
            if parents != tuple(range(-1, len(parents) - 1)):
                return draw(_one_of(rules))
        return draw(_one_of((*rules, "chain")))

    def _emit(self, b: int, most: int) -> None:
        """One token at least; with the last one of its limit the request is over."""
        self.grown[b] += most
        self.budget[b] -= 1
        if not self.budget[b]:
            self._end(b)

    def _end(self, b: int) -> None:
        self.left.pop(b, None)
        self.grown[b] = 0
