"""A live line while a run goes on: what is tried, how much was, and what failed so far."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from treeproof.contract.event import Began, CaseDrawn, Checked, Event, Tolerated, WorkerLost
from treeproof.engine.completed import COMPLETED, REDUCED_UNIT
from treeproof.reports.case_sheet import count
from treeproof.reports.drawing import plain


class Progress:
    """A context manager that is called with each event; silent where there is no terminal, but for
    a line `every` so many seconds where that is given."""

    def __init__(self, console: Console, every: float | None = None) -> None:
        self._console = console
        self._every = None if console.is_terminal else every
        self._lines = 0
        self._live = Live(self, console=console, transient=True) if console.is_terminal else None
        self._unicode = console.encoding.lower().startswith("utf")
        self._started = time.monotonic()
        self._cases = self._rows = self._checks = self._lost = 0
        self._now = "starting workers"
        self._failures: set[tuple[str, str, str]] = set()
        self._known: set[tuple[str, str, str, str]] = set()

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        if isinstance(event, CaseDrawn):
            self._tried(event)
        elif isinstance(event, Checked):
            self._checks += any(cell.status in COMPLETED for cell in event.cells)
            self._failures |= {
                (event.backend, *failure.key)
                for failure in event.failures
                if (event.case, event.backend, *failure.key) not in self._known
            }
        elif isinstance(event, Tolerated):  # it comes before the check that it is about
            self._known.add((event.case, event.backend, event.identity, event.kind))
        elif isinstance(event, Began):
            self._now = event.what
        elif isinstance(event, WorkerLost):
            self._lost += 1
        if self._every is not None and self._seconds > (self._lines + 1) * self._every:
            self._lines = int(self._seconds / self._every)
            self._console.print(self._counts(), soft_wrap=True)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _tried(self, event: CaseDrawn) -> None:
        rows = "+".join(map(str, event.rows[:4])) + ("+…" if event.rows[4:] else "")
        if event.unit == REDUCED_UNIT:
            self._now = f"reducing failures, down to {rows} rows"
            return
        self._cases += 1
        self._rows += sum(event.rows)
        self._now = f"{event.unit}, {rows} rows"

    def __rich__(self) -> Text:
        """Two lines, neither wider than the terminal."""
        text = self._counts()
        text.append(f"\n{self._now}", style="dim")
        return text if self._unicode else Text(plain(text.plain), no_wrap=True)

    def _counts(self) -> Text:
        minutes, seconds = divmod(int(self._seconds), 60)
        parts = [f"{minutes}:{seconds:02}", count(self._cases, "case"), count(self._rows, "row")]
        parts.append(count(self._checks, "check"))
        text = Text("  ".join(parts), no_wrap=True, overflow="ellipsis")
        failed = len(self._failures)
        text.append(f"  {count(failed, 'failure')}", style="bold red" if failed else "green")
        if self._lost:
            text.append(f"  {count(self._lost, 'worker')} lost", style="red")
        return text
