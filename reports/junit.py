"""A run as JUnit XML: a suite a backend, a test case an identity or column."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from junitparser import Error, JUnitXml, Skipped, TestCase, TestSuite
from junitparser import Failure as JUnitFailure

from treeproof.contract.failure import COLUMNS, Identity
from treeproof.engine.failure_group import FailureGroup
from treeproof.engine.summary import Run
from treeproof.reports.case_sheet import count
from treeproof.reports.cause import cause_text
from treeproof.reports.matrix import Tally, tallies
from treeproof.reports.terminal import replay_command
from treeproof.reports.text import shown

_NO_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
MAX_BODY = 20_000
"""Characters of one test case's text."""


def junit_xml(runs: Sequence[Run]) -> bytes:
    """UTF-8. What fails only as the ledger says is skipped, with that for a reason, and so is what was
    not judged: a column without a verdict is no pass."""
    xml = JUnitXml("treeproof")
    for run in runs:
        found = tallies(run)
        for name in run.backends:
            suite = TestSuite(_safe(name))
            suite.timestamp = run.meta.started[:19]
            groups = [group for group in run.failures if group.backend == name]
            for column in COLUMNS:
                suite.add_testcase(_case(run, name, column, found[name][column], groups))
            xml.add_testsuite(suite)
        if run.exit_code == 4 and run.finished is not None:
            xml.add_testsuite(_own_fault(run.finished.reason))
    text: bytes = xml.tostring()  # type: ignore[no-untyped-call]
    return text


def _case(
    run: Run, backend: str, column: Identity, tally: Tally, groups: Iterable[FailureGroup]
) -> TestCase:
    case = TestCase(column, classname=f"treeproof.{_safe(backend)}")
    own = [group for group in groups if group.identity == column]
    if own:
        kinds = ", ".join(group.kind for group in own)
        failure = JUnitFailure(_safe(f"{count(tally.cases['fail'], 'case')}: {kinds}"), own[0].kind)
        failure.text = _safe("\n\n".join(_said(run, group) for group in own), MAX_BODY)
        case.result = [failure]
    elif backend in run.unavailable:
        case.result = [Skipped(_safe(f"cannot run here: {run.unavailable[backend]}"))]
    elif tally.cases["known"]:
        known = count(tally.cases["known"], "case")
        case.result = [Skipped(f"fails only as the ledger says, in {known}")]
    elif not tally.cases["pass"] + tally.cases["tie"]:
        reasons = sorted({reason for _, reason in tally.gaps}) or ["no completed check"]
        case.result = [Skipped(_safe("; ".join(reasons)))]
    return case


def _said(run: Run, group: FailureGroup) -> str:
    lines = [f"{group.kind} ({group.failure.evidence}), in {count(group.checks, 'check')}"]
    lines += [shown(group.failure.message)]
    if group.diagnosed is not None:
        lines.append(cause_text(group.diagnosed))
    return "\n".join([*lines, replay_command(run, group)])


def _own_fault(reason: str) -> TestSuite:
    suite, case = TestSuite("treeproof"), TestCase("treeproof itself", classname="treeproof")
    case.result = [Error(_safe(reason))]
    suite.add_testcase(case)
    return suite


def _safe(text: str, most: int = 2_000) -> str:
    """What XML can hold of it; anything else a question mark."""
    cut = text if len(text) <= most else f"{text[:most]}… ({len(text):,} characters)"
    return _NO_XML.sub("?", cut)
