"""One report a pytest session: matrix, distinct failures, and no pass where all was skipped."""

from __future__ import annotations

import platform
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from treeproof.contract.event import Finished
from treeproof.contract.wire import write_atomically
from treeproof.engine.run_folder import BackendMeta, RunMeta
from treeproof.plugin.run import PytestRun

ATTRIBUTE = "treeproof"
"""Of the reports of our items: what they say to the process that reports."""

VIOLATED = "treeproof_violated"
"""Of the reports of other items that raised: whether it was a TreeAttentionError."""

ALL_SKIPPED = "all treeproof tests were skipped, so nothing was checked"


@dataclass
class Reporter:
    """Lives in the process that reports: the only one, or the one that distributes the tests."""

    run: PytestRun
    ran: int = 0
    """Items marked `treeproof` that were not skipped."""
    skipped: dict[str, int] = field(default_factory=dict)
    """Reasons, and how many items gave them."""
    backends: dict[str, BackendMeta] = field(default_factory=dict)
    """By name. A `reference` is empty where no command line finds the backend."""
    failed: dict[str, str] = field(default_factory=dict)
    """First failing item of each backend."""
    beside: list[str] = field(default_factory=list)
    """Items that no made test is behind and that raised a TreeAttentionError: the run knows nothing of
    them."""
    over: bool = False
    """A known failure does not fail any more."""
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def nothing_checked(self) -> bool:
        return bool(self.skipped) and not self.ran

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if getattr(report, VIOLATED, False):
            self.beside.append(report.nodeid)
        names = getattr(report, ATTRIBUTE, None)
        if names is None:
            return
        self._count(report)
        if not set(names) <= set(self.backends):
            self._write_meta()  # early: a session that is killed leaves a run that reads
        for name in names if report.failed else ():
            self.failed.setdefault(name, report.nodeid)

    def _count(self, report: pytest.TestReport) -> None:
        if (
            report.failed
            or (report.when == "call" and not report.skipped)
            or (report.skipped and hasattr(report, "wasxfail"))
        ):
            self.ran += 1
        elif report.skipped:
            where = report.longrepr
            reason = str(where[2] if isinstance(where, tuple) else where)
            reason = reason.removeprefix("Skipped: ")
            self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def _write_meta(self) -> None:
        from treeproof.engine.beginning import versions

        for path in sorted(self.run.backends.glob("*.json")):
            backend = msgspec.json.decode(path.read_bytes(), type=BackendMeta)
            self.backends[backend.name] = backend
        settings = self.run.settings()
        meta = RunMeta(
            started=self.started.isoformat(timespec="seconds"),
            settings={**settings.as_builtins(), "backends": list(self.backends)},
            seed=settings.seed,
            device=settings.device,
            device_name=platform.processor() or platform.machine(),
            backends=tuple(
                msgspec.structs.replace(backend, reference=backend.reference or backend.name)
                for backend in self.backends.values()
            ),
            command=tuple(sys.argv),
            versions=versions(),
            platform=platform.platform(),
            ledger=self.run.ledger.entries,
        )
        self.run.folder.make()
        body = msgspec.json.format(msgspec.json.encode(meta))
        write_atomically(self.run.folder.meta_path, body + b"\n")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.run.backends.exists():
            self._finish()
        if (self.nothing_checked or self.over) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _finish(self) -> None:
        """Blame what was at work in processes that died, keep each failure, and close the run."""
        from treeproof.engine.representatives import keep_failures
        from treeproof.engine.summary import Run
        from treeproof.plugin.losses import events_of_losses

        self._write_meta()
        settings = self.run.settings()
        losses = events_of_losses(self.run.folder, settings.columns)
        self.ran += bool(losses)
        self.run.record(*losses, *self.run.ledger.counts())
        found = Run.read(self.run.folder.path)
        self.over = bool(found.unexpected_passes)
        keep_failures(found, store=None, saved=())
        seconds = time.monotonic() - self.run.started
        written = self.run.folder.written()
        self.run.record(Finished(exit_code=found.verdict, seconds=seconds, written=written))
        if settings.report_dir or settings.junit:
            from treeproof.reports.files import write_reports

            done = Run.read(self.run.folder.path)
            write_reports([done], folder=settings.report_dir, junit=settings.junit)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        from treeproof.engine.summary import Run

        if not self.backends and not self.nothing_checked:
            return
        terminalreporter.section("treeproof")
        if self.backends:
            unfound = {n: item for n, item in self.failed.items() if not self.backends[n].reference}
            for line in summary_lines(Run.read(self.run.folder.path), unfound, self.beside):
                terminalreporter.write_line(line)
        if self.nothing_checked:
            for reason, count in self.skipped.items():
                terminalreporter.write_line(f"{count} skipped: {reason}")
            terminalreporter.write_line(f"✗ {ALL_SKIPPED}", red=True, bold=True)


def summary_lines(run: Any, failed: Mapping[str, str], beside: Sequence[str] = ()) -> Iterator[str]:
    """The matrix, what was not judged and why, the figures, and each distinct failure once.

    `failed` has the failing item of backends that can be run again in no other way. `beside` are items
    that found violations of their own, and of which the run has no record.
    """
    from treeproof.reports.console import MAX_LINE
    from treeproof.reports.ending import last_words
    from treeproof.reports.ledger_lines import ledger_lines
    from treeproof.reports.matrix import matrix_lines, reason_lines
    from treeproof.reports.show_again import replay_command
    from treeproof.reports.terminal import figures
    from treeproof.reports.text import printable, shown

    for line in (*matrix_lines(run), *reason_lines(run), *ledger_lines(run)):
        yield shown(line.plain, MAX_LINE)
    yield from (shown(line, MAX_LINE) for line in figures(run) if not line.startswith("events"))
    for group in run.failures:
        yield ""
        yield shown(
            f"✗ {group.backend}  {group.identity}: {shown(group.kind, 80)}: {group.failure.message}"
        )
        item = failed.get(group.backend)
        yield printable(
            replay_command(run, group) if item is None else shlex.join(["pytest", item])
        )
    words = [shown(line.plain, MAX_LINE) for line in last_words(run)]
    if beside:
        clean = "✓ no identity violated in "
        words = [
            f"in made tests: {line.removeprefix('✓ ')}" if line.startswith(clean) else line
            for line in words
        ]
        words.append(f"✗ identities violated in other tests: {', '.join(beside)}")
    yield from words
