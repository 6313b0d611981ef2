"""Faults of a round that goes by the one before it: lengths, lines of the token table, or a whole plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Evidence, Identity
from treeproof.contract.inputs import Attended, Candidates, VerifyInput
from treeproof.contract.script import Admit, Prefill, Round, Turn
from treeproof.faults.fault import Applies, Fault, Plant
from treeproof.faults.plant import Around, remembering
from treeproof.faults.smallest import request, script
from treeproof.faults.tables import builds


@dataclass
class _Kept:
    """What each line of the token table had in its last round, and what it has in this one.

    A round has as many calls as there are layers; a new one has other slots or lengths.
    """

    last: dict[int, Any] = field(default_factory=dict)
    now: dict[int, Any] = field(default_factory=dict)
    seen: tuple[list[int], list[int]] = ([], [])

    def of(self, x: VerifyInput | Candidates, values: Mapping[int, Any]) -> dict[int, Any]:
        """Of each line that had a round before, what it had there."""
        here = (x.request_slots.tolist(), x.seq_lens.tolist())
        if here != self.seen:
            self.seen = here
            self.last |= self.now
            self.now = dict(values)
        return {line: self.last[line] for line in values if line in self.last}


def _lengths(x: VerifyInput | Candidates, kept: _Kept) -> Tensor:
    own = dict(zip(x.request_slots.tolist(), x.seq_lens.tolist(), strict=True))
    before = own | kept.of(x, own)
    return x.seq_lens.new_tensor(list(before.values()))


def _attends_by_old_lengths() -> Around:
    kept = _Kept()

    def around(right: Callable[..., Attended], x: VerifyInput, *tensors: Tensor) -> Attended:
        return right(replace(x, seq_lens=_lengths(x, kept)), *tensors)

    return around


def _builds_by_old_lengths() -> Around:
    kept = _Kept()

    def around(right: Callable[[Candidates], VerifyInput], c: Candidates) -> VerifyInput:
        return right(replace(c, seq_lens=_lengths(c, kept)))

    return around


def _attends_by_old_lines() -> Around:
    kept = _Kept()

    def around(right: Callable[..., Attended], x: VerifyInput, *tensors: Tensor) -> Attended:
        table = x.req_to_token.clone()
        lines = {line: table[line].clone() for line in x.request_slots.tolist()}
        for line, before in kept.of(x, lines).items():
            table[line] = before
        return right(replace(x, req_to_token=table), *tensors)

    return around


_EVERY_LAUNCH = (
    *("draft_token", "out_cache_loc", "spec_steps", "shape", "kv"),
    *("sinks", "alibi_slopes", "k_scale", "v_scale"),
)
"""What comes with each launch, and is no part of a plan."""


def _plans_where_sizes_change() -> Around:
    plan: VerifyInput | None = None

    def around(right: Callable[..., Attended], x: VerifyInput, *tensors: Tensor) -> Attended:
        nonlocal plan
        if plan is None or _size(plan) != _size(x):
            own: dict[str, Any] = {
                name: t.clone() for name, t in vars(x).items() if isinstance(t, Tensor)
            }
            plan = replace(x, **own)
        given = {name: getattr(x, name) for name in _EVERY_LAUNCH}
        return right(replace(plan, **given), *tensors)

    return around


def _size(x: VerifyInput) -> tuple[int, int]:
    return len(x.seq_lens), len(x.draft_token)


@dataclass(frozen=True)
class _Wrong:
    variant: str
    says: str
    stage: str
    verdict: tuple[Identity, Evidence]
    new: Callable[[], Around]
    applies: Applies
    smallest: VerifyCase
    cause: str = "stale-plan"


_LISTS = {"kv_indptr", "page_table", "cache_seqlens"}


def _attends_by(*names: str) -> Applies:
    """Backends whose attend has these fields, and no list or line a row that says the same."""

    def applies(backend: Backend) -> bool:
        return (
            "attend" in backend.stages
            and {"request_slots", *names} <= backend.consumes
            and not _LISTS & backend.consumes
        )

    return applies


def _attends(backend: Backend) -> bool:
    return "attend" in backend.stages and "out_cache_loc" in backend.consumes


_ROUND = Round(turns=(Turn(request=0),))
_TWO_ROUNDS = script(
    request(prefix=1), steps=(Admit(request=0), Prefill(request=0), _ROUND, _ROUND)
)

_STOPPED = Round(turns=(Turn(request=0, accept=1, stop=1),))
_TWO_LIVES = script(
    request((-1, 0), prefix=1),
    steps=(
        *(Admit(request=0), Prefill(request=0), _STOPPED),
        *(Admit(request=0), Prefill(request=0), _ROUND, _ROUND),
    ),
    spare_pages=1,
)
"""The request is stopped and comes again, to other pages, for there are few."""

_WRONG = (
    _Wrong(
        "lengths", "attend counts the keys that there were in the request's last round", "attend",
        ("output", "measured"), _attends_by_old_lengths, _attends_by("seq_lens"), _TWO_ROUNDS,
    ),
    _Wrong(
        "lines", "attend looks keys up in the token table as it was in the last round", "attend",
        ("output", "measured"), _attends_by_old_lines, _attends_by("req_to_token"), _TWO_LIVES,
        cause="unknown",
    ),
    _Wrong(
        "plan", "attend plans anew only where a round has another number of requests or rows",
        "attend", ("output", "measured"), _plans_where_sizes_change, _attends, _TWO_ROUNDS,
    ),
    _Wrong(
        "build", "tables are built for the lengths of the last round", "build",
        ("position", "declared"), _builds_by_old_lengths, builds("positions"), _TWO_ROUNDS,
    ),
)  # fmt: skip


def _planted(stage: str, new: Callable[[], Around]) -> Plant:
    return lambda backend: remembering(backend, stage, new)


FAULTS = tuple(
    Fault(
        family="last-round",
        variant=wrong.variant,
        says=wrong.says,
        sources=("B084", "B091"),
        stage=wrong.stage,
        identity=wrong.verdict[0],
        evidence=wrong.verdict[1],
        cause=wrong.cause,
        smallest=wrong.smallest,
        plant=_planted(wrong.stage, wrong.new),
        applies=wrong.applies,
    )
    for wrong in _WRONG
)
