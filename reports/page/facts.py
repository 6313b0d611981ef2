"""What a page says of a run, as plain data: words for the template, numbers for the drawings."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Diagnosed
from treeproof.contract.failure import COLUMNS, IDENTITIES, Failure
from treeproof.contract.wire import FileError
from treeproof.engine.failure_group import FailureGroup
from treeproof.engine.gathered import Key
from treeproof.engine.summary import Run
from treeproof.reports.acceptance import Accepted, accepted
from treeproof.reports.case_sheet import summary
from treeproof.reports.cause import cause_text, shared
from treeproof.reports.console import MAX_LINE
from treeproof.reports.ending import last_words
from treeproof.reports.ledger_lines import entry_words, linked
from treeproof.reports.left_lines import left_parts
from treeproof.reports.matrix import Tally, column_name, reason_lines, tallies
from treeproof.reports.page.drawing import drawing_of
from treeproof.reports.page.original import original_drawn, original_of
from treeproof.reports.page.rounds import rounds_of
from treeproof.reports.run_names import of_run, run_names
from treeproof.reports.sanitized import sanitized_lines
from treeproof.reports.script_lines import script_lines
from treeproof.reports.show_again import reduce_command, replay_command, trace_command
from treeproof.reports.terminal import figures, reduction
from treeproof.reports.text import printable, shown
from treeproof.reports.varies import varies_freely


@dataclass(frozen=True)
class Block:
    """One distinct failure, in words; its drawings are `drawing`."""

    number: int
    run: str
    """Name of its run, where there are several."""
    backend: str
    identity: str
    kind: str
    severity: str
    where: str
    """Evidence, stage and probe."""
    message: str
    expected: str
    actual: str
    checks: int
    cause: str
    sanitized: tuple[str, ...]
    """What compute-sanitizer said."""
    case: str
    """Size of the case, and how it was reduced."""
    varies: str
    replay: str
    reduce: str
    trace: str
    script: tuple[str, ...] = ()
    """The steps of a case that is a script."""
    step: int = 0
    """The one, from 1, in which it went wrong; 0: not known."""

    @property
    def anchor(self) -> str:
        return f"failure-{self.number}"


@dataclass(frozen=True)
class Cause:
    """One cause of several failures of a backend."""

    run: str
    """Name of its run, where there are several."""
    backend: str
    name: str
    says: str
    failures: tuple[tuple[str, str], ...]
    """Anchor of each block, and its identity and kind."""


@dataclass(frozen=True)
class Column:
    """One cell of the matrix."""

    name: str
    status: str
    """fail, known, tie, pass or none."""
    count: int
    measured: bool


@dataclass(frozen=True)
class Row:
    """One backend in the matrix."""

    run: str
    """Name of its run, where there are several."""
    backend: str
    columns: tuple[Column, ...]
    exercised: int
    checks: int
    margin: float | None
    unavailable: str


@dataclass(frozen=True)
class Known:
    """One entry of a ledger after the run."""

    run: str
    """Name of its run, where there are several."""
    state: str
    words: tuple[tuple[str, str], ...]
    """In pieces, each with the address that it leads to, or none."""


@dataclass(frozen=True)
class Page:
    """Everything a page says; `drawings[i]` belongs to `blocks[i]`."""

    title: str
    verdict: str
    tone: str
    """Of the verdict: good, bad, or plain where nothing was checked and nothing is wrong."""
    command: str
    made: tuple[str, ...]
    """Seed, machine, versions and time, where the page is of one run."""
    started: str
    figures: tuple[str, ...]
    rows: tuple[Row, ...]
    accepted: tuple[tuple[str, Accepted], ...]
    """Name of the run, where there are several, and drafts accepted in one way."""
    known: tuple[Known, ...]
    reasons: tuple[str, ...]
    left: tuple[str, ...]
    """What was not come to, part by part."""
    warnings: tuple[str, ...]
    causes: tuple[Cause, ...]
    blocks: tuple[Block, ...]
    drawings: tuple[dict[str, Any], ...]
    identities: int = len(IDENTITIES)


def page_of(runs: Sequence[Run]) -> Page:
    """The page of one run, or of several that are shown as one."""
    blocks: list[Block] = []
    drawings: list[dict[str, Any]] = []
    causes: list[Cause] = []
    named = list(zip(runs, run_names(runs), strict=True))
    for run, name in named:
        anchors = {}
        for group in run.failures:
            block, drawing = _failure(run, name, group, len(blocks) + 1)
            anchors[group.key] = block.anchor
            blocks.append(block)
            drawings.append(drawing)
        causes += _causes(run, name, anchors)
    first = runs[0]
    words = [of_run(name, shown(last_words(run)[-1].plain)) for run, name in named]
    warnings = [
        of_run(name, shown(line.plain.removeprefix("! ")))
        for run, name in named
        for line in last_words(run)[:-1]
    ]
    return Page(
        title=shown(
            "treeproof: " + ", ".join(dict.fromkeys(n for run in runs for n in run.backends))
        ),
        verdict=" · ".join(dict.fromkeys(words)),
        tone=_tone(runs),
        command=shown(shlex.join(["treeproof", *first.meta.command[1:]])) if len(runs) == 1 else "",
        made=_made(first) if len(runs) == 1 else (),
        started=first.meta.started,
        figures=tuple(line for run, name in named for line in _figures(run, name)),
        rows=tuple(row for run, name in named for row in _rows(run, name)),
        accepted=tuple((name, one) for run, name in named for one in accepted(run)),
        known=tuple(
            Known(name, state.state, tuple(linked(shown(entry_words(state)))))
            for run, name in named
            for state in run.ledger
        ),
        reasons=tuple(_reasons(named)),
        left=tuple(
            of_run(name, shown(line, 200_000)) for run, name in named for line in left_parts(run)
        ),
        warnings=tuple(warnings),
        causes=tuple(causes),
        blocks=tuple(blocks),
        drawings=tuple(drawings),
    )


def _tone(runs: Sequence[Run]) -> str:
    if any(run.exit_code for run in runs):
        return "bad"
    return "plain" if all(run.vacuous for run in runs) else "good"


def _causes(run: Run, name: str, anchors: Mapping[Key, str]) -> list[Cause]:
    return [
        Cause(
            run=name,
            backend=shown(one.backend, 80),
            name=shown(one.name),
            says=shown(one.says),
            failures=tuple(
                (anchors[group.key], f"{column_name(group.identity)} {shown(group.kind, 80)}")
                for group in one.groups
            ),
        )
        for one in shared(run.failures)
    ]


def _made(run: Run) -> tuple[str, ...]:
    named = {line.split()[0]: line for line in figures(run)}
    names = ("seed", "machine", "versions", "time")
    return tuple(shown(" ".join(named[name].split())) for name in names if name in named)


def _figures(run: Run, name: str) -> list[str]:
    lines = [shown(line, MAX_LINE) for line in figures(run)]
    return [*([name, ""] if name else []), *lines, *([""] if name else [])]


def _rows(run: Run, of: str) -> list[Row]:
    found = tallies(run)
    return [
        Row(
            run=of,
            backend=shown(name, 80),
            columns=tuple(_column(column, found[name][column]) for column in COLUMNS),
            exercised=len(run.exercised[name]),
            checks=run.completed_checks(name),
            margin=run.margins.get(name),
            unavailable=shown(run.unavailable.get(name, "")),
        )
        for name in run.backends
    ]


def _column(name: str, tally: Tally) -> Column:
    for status in ("fail", "known", "tie", "pass"):
        if tally.cases[status]:
            return Column(name, status, tally.cases[status], tally.measured)
    return Column(name, "none", 0, tally.measured)


def _reasons(runs: Iterable[tuple[Run, str]]) -> list[str]:
    return [
        of_run(name, shown(line.plain.strip()))
        for run, name in runs
        for line in reason_lines(run, most=1000)
    ]


def _failure(run: Run, name: str, group: FailureGroup, number: int) -> tuple[Block, dict[str, Any]]:
    """In words, and drawn."""
    try:
        case = run.folder.read_case(group.case)
    except FileError as error:
        return _block(run, name, group, number), {"missing": shown(str(error))}
    original, found = original_of(run, group), run.shown(group.case, group.backend)
    step = 0 if found is None else found.step
    block = _block(run, name, group, number, case, original, step)
    if case.script:
        drawing = rounds_of(case, group.failure, found)
    else:
        drawing = drawing_of(case, group.failure, group.checked, found)
    return block, {**drawing, "original": original and original_drawn(original)}


def _block(
    run: Run,
    name: str,
    group: FailureGroup,
    number: int,
    case: VerifyCase | None = None,
    original: VerifyCase | None = None,
    step: int = 0,
) -> Block:
    failure = group.failure
    probe = f", probe {shown(failure.probe, 40)}" if failure.probe else ""
    size = "" if case is None else f"{summary(case)}; {reduction(run, group)}"
    return Block(
        number=number,
        run=name,
        backend=shown(group.backend, 80),
        identity=group.identity,
        kind=shown(group.kind, 80),
        severity=failure.severity,
        where=f"{failure.evidence}, stage {shown(failure.stage, 40)}{probe}",
        message=shown(failure.message),
        expected=shown(failure.expected),
        actual=shown(failure.actual),
        checks=group.checks,
        cause=shown(_cause(group.diagnosed, failure)),
        sanitized=_sanitized(group),
        case=size,
        varies=varies_freely(original, case) if original and case else "",
        replay=printable(replay_command(run, group)),
        script=tuple(script_lines(case)) if case and case.script else (),
        step=step,
        reduce=printable(reduce_command(run, group)),
        trace=printable(trace_command(run, group)),
    )


def _cause(diagnosed: Diagnosed | None, failure: Failure) -> str:
    if diagnosed is not None:
        return cause_text(diagnosed)
    return f"likely cause: {failure.cause}" if failure.cause else ""


def _sanitized(group: FailureGroup) -> tuple[str, ...]:
    lines = [] if group.sanitized is None else sanitized_lines(group.sanitized)
    return tuple(map(shown, lines))
