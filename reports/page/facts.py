"""What a page says of a run, as plain data: words for the template, numbers for the drawings."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.event import Checked, Diagnosed, Shown
from treeproof.contract.failure import COLUMNS, IDENTITIES, Failure
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.wire import FileError
from treeproof.engine.failure_group import FailureGroup
from treeproof.engine.summary import Run
from treeproof.properties.expected import expected_reads
from treeproof.reports.acceptance import Accepted, accepted
from treeproof.reports.case_sheet import summary
from treeproof.reports.cause import cause_text
from treeproof.reports.failure_block import wrongly_read
from treeproof.reports.matrix import Tally, reason_lines, tallies
from treeproof.reports.page.rounds import rounds_of
from treeproof.reports.run_names import of_run, run_names
from treeproof.reports.script_lines import script_lines
from treeproof.reports.terminal import explained, figures, last_words, replay_command
from treeproof.reports.text import shown

MAX_REQUESTS = 8
"""Requests of a case that are drawn: the failing one, and those before and after it."""
MAX_OTHERS = 400
"""Violated statements of one check that are marked in its drawings."""


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
class Page:
    """Everything a page says; `drawings[i]` belongs to `blocks[i]`."""

    title: str
    verdict: str
    good: bool
    command: str
    started: str
    figures: tuple[str, ...]
    rows: tuple[Row, ...]
    accepted: tuple[tuple[str, Accepted], ...]
    """Name of the run, where there are several, and drafts accepted in one way."""
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    blocks: tuple[Block, ...]
    drawings: tuple[dict[str, Any], ...]
    identities: int = len(IDENTITIES)


def page_of(runs: Sequence[Run]) -> Page:
    """The page of one run, or of several that are shown as one."""
    blocks: list[Block] = []
    drawings: list[dict[str, Any]] = []
    named = list(zip(runs, run_names(runs), strict=True))
    for run, name in named:
        for group in run.failures:
            blocks.append(_block(run, name, group, len(blocks) + 1))
            drawings.append(_drawing(run, group))
    first = runs[0]
    words = [of_run(name, last_words(run)[-1].plain) for run, name in named]
    warnings = [
        of_run(name, line.plain.removeprefix("! "))
        for run, name in named
        for line in last_words(run)[:-1]
    ]
    return Page(
        title="treeproof: " + ", ".join(dict.fromkeys(n for run in runs for n in run.backends)),
        verdict=" · ".join(dict.fromkeys(words)),
        good=all(run.exit_code == 0 for run in runs),
        command=shlex.join(["treeproof", *first.meta.command[1:]]) if len(runs) == 1 else "",
        started=first.meta.started,
        figures=tuple(line for run, name in named for line in _figures(run, name)),
        rows=tuple(row for run, name in named for row in _rows(run, name)),
        accepted=tuple((name, one) for run, name in named for one in accepted(run)),
        reasons=tuple(_reasons(named)),
        warnings=tuple(warnings),
        blocks=tuple(blocks),
        drawings=tuple(drawings),
    )


def _figures(run: Run, name: str) -> list[str]:
    return [*([name, ""] if name else []), *figures(run), *([""] if name else [])]


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


def _block(run: Run, name: str, group: FailureGroup, number: int) -> Block:
    what, failure = explained(run, group), group.failure
    probe = f", probe {failure.probe}" if failure.probe else ""
    case = "" if what.case is None else summary(what.case)
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
        case=f"{case}; {what.reduction}" if case and what.reduction else case,
        varies=what.varies,
        replay=what.replay,
        script=tuple(script_lines(what.case)) if what.case and what.case.script else (),
        step=found.step if (found := run.shown(group.case, group.backend)) else 0,
        **_further_commands(run, group),
    )


def _cause(diagnosed: Diagnosed | None, failure: Failure) -> str:
    if diagnosed is not None:
        return cause_text(diagnosed)
    return f"likely cause: {failure.cause}" if failure.cause else ""


def _further_commands(run: Run, group: FailureGroup) -> dict[str, Any]:
    """`reduce` and `trace` of the kept case; empty while there is no file of it."""
    if group.reproducer is None:
        return {"reduce": "", "trace": ""}
    words = shlex.split(replay_command(run, group))
    failure = group.failure
    row = ["--request", str(failure.request or 0), "--row", str(failure.row or 0)]
    reference = next(m.reference for m in run.meta.backends if m.name == group.backend)
    return {
        "reduce": shlex.join(["treeproof", "reduce", *words[2:]]),
        "trace": shlex.join(["treeproof", "trace", words[2], *row, "--backend", reference]),
    }


def _drawing(run: Run, group: FailureGroup) -> dict[str, Any]:
    """What the page draws of one failure, as JSON: numbers, and words that are safe to show."""
    try:
        case = run.folder.read_case(group.case)
    except FileError as error:
        return {"missing": shown(str(error))}
    if case.script:
        return rounds_of(case, group.failure, run.shown(group.case, group.backend))
    requests, checked = _chosen(case, group.failure.request), group.checked
    ledger, window = SlotLedger.of(case), case.shape.window
    return {
        "case": case.id,
        "window": window,
        "page": case.layout.page_size,
        "at": [group.failure.request, group.failure.row, group.failure.column],
        "requests": [_request(case.requests[b], b, ledger, window) for b in requests],
        "left_out": len(case.requests) - len(requests),
        "recovered": _recovered(checked, requests),
        "marks": _marks(case, checked, requests),
        "others": _others(checked, requests),
        "seen": _seen(case, run.shown(group.case, group.backend), requests),
    }


def _seen(case: VerifyCase, found: Shown | None, requests: range) -> dict[str, Any] | None:
    """What was seen on this case, a list a request: rows are real rows, tables hold padded ones too."""
    if found is None:
        return None
    rows = [request.num_nodes for request in case.requests]
    padded = [request.num_rows for request in case.requests]

    def real(values: Sequence[Any]) -> list[Any]:
        return [list(values[sum(rows[:b]) : sum(rows[: b + 1])]) for b in requests]

    def every(values: Sequence[Any]) -> list[Any]:
        return [list(values[sum(padded[:b]) : sum(padded[:b]) + rows[b]]) for b in requests]

    return {
        "errors": real(found.errors),
        "reads": real([[read.prefix, list(read.slots)] for read in found.reads]),
        "declared": {
            form: real([[read.prefix, list(read.slots)] for read in reads])
            for form, reads in found.declared.items()
        },
        "writes": [list(write) for write in found.writes],
        "positions": every(found.positions),
        "slots": every(found.slots),
        "links": {
            name: [list(table[b]) if b < len(table) else [] for b in requests]
            for name, table in found.links.items()
        },
        "owners": _owners(case, found),
        "first": [sum(padded[:b]) for b in requests],
    }


def _owners(case: VerifyCase, found: Shown) -> dict[int, list[int]]:
    """Slots that were read or written, to the request and column that live there; absent: nobody's."""
    slots = {slot for slot, _, _ in found.writes} | set(found.slots)
    for reads in (found.reads, *found.declared.values()):
        slots |= {slot for read in reads for slot, _ in read.slots}
    owner = SlotLedger.of(case).owner
    return {slot: list(owner[slot]) for slot in sorted(slots) if slot in owner}


def _chosen(case: VerifyCase, request: int | None) -> range:
    first = max(0, min((request or 0) - MAX_REQUESTS // 2, len(case.requests) - MAX_REQUESTS))
    return range(first, min(len(case.requests), first + MAX_REQUESTS))


def _request(request: Request, b: int, ledger: SlotLedger, window: int | None) -> dict[str, Any]:
    """One request by rows; `first` and `reads` are what each row must read."""
    reads = expected_reads(request, window)
    tree, nodes = request.tree, request.node_of_row
    return {
        "b": b,
        "prefix": request.prefix_len,
        "tokens": [tree.tokens[node] for node in nodes],
        "nodes": list(nodes),
        "parents": list(request.parent_rows),
        "depths": [tree.depth[node] for node in nodes],
        "slots": list(ledger.row_slots(b)),
        "prefix_slots": list(ledger.columns[b][: request.prefix_len][-64:]),
        "first": [read.first for read in reads],
        "reads": [sorted(read.rows) for read in reads],
        "padded": request.pad_rows,
    }


def _recovered(checked: Checked, requests: range) -> list[dict[str, Any]]:
    return [
        {
            "identity": found.identity,
            "evidence": found.evidence,
            "what": found.what,
            "values": [list(found.values[b]) if b < len(found.values) else [] for b in requests],
        }
        for found in checked.recovered
    ]


def _marks(case: VerifyCase, checked: Checked, requests: range) -> list[list[Any]]:
    """Wrongly read keys: request, row, logical column, a sign of `visibility.SIGNS`, evidence."""
    failures, window = checked.failures[:MAX_OTHERS], case.shape.window
    return [
        [b, row, column, sign, failure.evidence]
        for b in requests
        for row, column, sign, failure in wrongly_read(failures, b, case.requests[b], window)
    ]


def _others(checked: Checked, requests: range) -> list[list[Any]]:
    """Every violated statement of the check about these requests, for the row tracer."""
    return [
        [f.request, f.row, f.column, f.identity, f.kind, f.evidence, shown(f.message, 300)]
        for f in checked.failures[:MAX_OTHERS]
        if f.request is None or f.request in requests
    ]
