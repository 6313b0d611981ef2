"""A run as JUnit XML: a suite a backend, a test case an identity or column."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from junitparser import Error, Skipped
from junitparser import Failure as JUnitFailure
from junitparser.xunit2 import JUnitXml, TestCase, TestSuite

from treeproof.contract.failure import COLUMNS, Identity
from treeproof.engine.failure_group import FailureGroup
from treeproof.engine.summary import Run
from treeproof.reports.case_sheet import count
from treeproof.reports.cause import cause_text
from treeproof.reports.ending import last_words, shortfall
from treeproof.reports.left_lines import left_words
from treeproof.reports.matrix import Tally, tallies
from treeproof.reports.run_names import of_run, run_names
from treeproof.reports.sanitized import sanitized_lines
from treeproof.reports.show_again import replay_command
from treeproof.reports.text import shown

_NO_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
MAX_BODY = 20_000
"""Characters of one test case's text."""


def junit_xml(runs: Sequence[Run]) -> bytes:
    """UTF-8. What fails only as the ledger says is skipped, with that for a reason, and so is what was
    not judged: a column without a verdict is no pass. Where a run is not clean and no failure says so, an
    error does: some CI services read nothing else.

    A suite takes the seconds that the checks of its backend took. A check judges all columns at once, so
    a test case has none.
    """
    suites: list[tuple[TestSuite, float]] = []
    for run, name in zip(runs, run_names(runs), strict=True):
        found = tallies(run)
        for backend in run.backends:
            suite = TestSuite(_safe(of_run(name, backend)))  # type: ignore[no-untyped-call]
            suite.timestamp = run.meta.started[:19]
            for key, value in _properties(run):
                suite.add_property(_safe(key, 80), _safe(value))
            for words in run.unexplained:
                suite.add_property("worker lost", _safe(words))
            if backend in run.left:
                suite.add_property("left unchecked", _safe(left_words(run.left[backend])))
            groups = [group for group in run.failures if group.backend == backend]
            for column in COLUMNS:
                case = TestCase(column, classname=_place(name, backend))
                case.result = _result(run, backend, column, found[backend][column], groups)
                suite.add_testcase(case)
            suites.append((suite, run.seconds_of(backend)))
        if why := shortfall(run):
            suites.append((_of_the_whole(run, name, why), 0.0))
    xml = JUnitXml("treeproof")
    for suite, _ in suites:
        xml.add_testsuite(suite)
    xml.update_statistics()  # type: ignore[no-untyped-call]
    for suite, seconds in suites:
        suite.time = round(seconds, 3)
    xml.time = round(sum(seconds for _, seconds in suites), 3)
    text: bytes = xml.tostring()  # type: ignore[no-untyped-call]
    return text


def _properties(run: Run) -> list[tuple[str, str]]:
    """What decided the verdicts, and where they are."""
    meta = run.meta
    return [
        ("seed", str(meta.seed)),
        ("profile", str(meta.settings.get("profile", ""))),
        ("device", f"{meta.device}: {meta.device_name}"),
        *meta.versions.items(),
        ("run", str(run.folder.path)),
    ]


def _result(
    run: Run, backend: str, column: Identity, tally: Tally, groups: Iterable[FailureGroup]
) -> list[Any]:
    own = [group for group in groups if group.identity == column]
    if own:
        kinds = ", ".join(group.kind for group in own)
        failure = JUnitFailure(
            _safe(f"{count(tally.cases['fail'], 'case')}: {kinds}"), _safe(own[0].kind, 80)
        )
        failure.text = _safe("\n\n".join(_said(run, group) for group in own), MAX_BODY)
        return [failure]
    if backend in run.unavailable:
        return [Skipped(_safe(f"cannot run here: {run.unavailable[backend]}"))]
    if tally.cases["known"]:
        known = count(tally.cases["known"], "case")
        return [Skipped(f"fails only as the ledger says, in {known}")]
    if not tally.cases["pass"] + tally.cases["tie"]:
        reasons = sorted({reason for _, reason in tally.gaps}) or ["no completed check"]
        return [Skipped(_safe("; ".join(reasons)))]
    return []


def _said(run: Run, group: FailureGroup) -> str:
    lines = [f"{group.kind} ({group.failure.evidence}), in {count(group.checks, 'check')}"]
    lines += [shown(group.failure.message)]
    if group.diagnosed is not None:
        lines.append(cause_text(group.diagnosed))
    if group.sanitized is not None:
        lines += map(shown, sanitized_lines(group.sanitized))
    return "\n".join([*lines, replay_command(run, group)])


def _of_the_whole(run: Run, name: str, why: str) -> TestSuite:
    suite = TestSuite(_safe(of_run(name, "treeproof")))  # type: ignore[no-untyped-call]
    case = TestCase("the run as a whole", classname=_place(name))
    error = Error(_safe(why))
    error.text = _safe("\n".join(line.plain for line in last_words(run)), MAX_BODY)
    case.result = [error]
    suite.add_testcase(case)
    return suite


def _place(name: str, *within: str) -> str:
    return _safe(".".join(filter(None, ("treeproof", name.replace(".", "-"), *within))))


def _safe(text: str, most: int = 2_000) -> str:
    """What XML can hold of it; anything else a question mark."""
    cut = text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
    return _NO_XML.sub("?", cut)
