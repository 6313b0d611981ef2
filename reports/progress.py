"""A live line while a run goes on: what is tried, how much was, what failed, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from treeproof.contract.event import (
    Began,
    CaseDrawn,
    Checked,
    Event,
    Tolerated,
    Underway,
    WorkerLost,
)
from treeproof.engine.completed import COMPLETED, REDUCED_UNIT
from treeproof.reports.case_sheet import count
from treeproof.reports.drawing import plain

EVERY = 60.0
"""Seconds between two lines where there is no terminal."""
_ENOUGH = 0.03
"""Share of a run that must have been tried before the rest of it is estimated."""


class Progress:
    """A context manager that is called with each event. On a terminal it keeps two lines up to date;
    elsewhere it prints one, plain, from time to time."""

    def __init__(
        self,
        console: Console,
        *,
        time_limit: float | None = None,
        endless: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`time_limit`: seconds after which nothing more is begun. `endless`: nothing else ends it."""
        self._console = console
        self._limit, self._endless, self._clock = time_limit, endless, clock
        self._lines = 0
        self._live = Live(self, console=console, transient=True) if console.is_terminal else None
        self._unicode = console.encoding.lower().startswith("utf")
        self._started = clock()
        self._cases = self._rows = self._checks = self._lost = 0
        self._trees: set[str] = set()
        self._unnamed = 0
        """Trees of cases that name none."""
        self._now = "starting workers"
        self._checking = True
        self._share = 0.0
        self._measured: tuple[float, float] | None = None
        """Time and share at the first verdict: what it took until then says nothing of the rest."""
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
            self._measured = self._measured or (self._clock(), self._share)
            self._failures |= {
                (event.backend, *failure.key)
                for failure in event.failures
                if (event.case, event.backend, *failure.key) not in self._known
            }
        elif isinstance(event, Tolerated):  # it comes before the check that it is about
            self._known.add((event.case, event.backend, event.identity, event.kind))
        elif isinstance(event, Began):
            self._now, self._checking = event.what, False
        elif isinstance(event, Underway):
            self._share = event.share
        elif isinstance(event, WorkerLost):
            self._lost += 1
        if self._live is None and self._seconds > (self._lines + 1) * EVERY:
            self._lines = int(self._seconds / EVERY)
            self._console.print(plain(f"{self._counts().plain}  {self._now}"), soft_wrap=True)

    @property
    def _seconds(self) -> float:
        return self._clock() - self._started

    @property
    def _left(self) -> float | None:
        """Seconds until everything has been tried; None where that is not known."""
        if not self._checking:
            return None
        until_limit = None if self._limit is None else max(0.0, self._limit - self._seconds)
        if self._endless or self._measured is None:
            return until_limit
        since, before = self._measured
        done = self._share - before
        if done < _ENOUGH:
            return until_limit
        rest = (self._clock() - since) * (1.0 - self._share) / done
        return rest if until_limit is None else min(rest, until_limit)

    def _tried(self, event: CaseDrawn) -> None:
        rows = "+".join(map(str, event.rows[:4])) + ("+…" if event.rows[4:] else "")
        if event.unit == REDUCED_UNIT:
            self._now = f"reducing failures, down to {rows} rows"
            return
        self._cases += 1
        self._trees.update(event.trees)
        self._unnamed += 0 if event.trees else len(event.rows)
        self._rows += sum(event.rows)
        self._now = f"{event.unit}, {rows} rows"

    def __rich__(self) -> Text:
        """Two lines, neither wider than the terminal."""
        text = self._counts()
        text.append(f"\n{self._now}", style="dim")
        return text if self._unicode else Text(plain(text.plain), no_wrap=True)

    def _counts(self) -> Text:
        left = self._left
        parts = [_clock_face(self._seconds)]
        parts += [f"{_clock_face(left)} left"] if left is not None and left >= 1 else []
        parts += [count(self._cases, "case"), count(len(self._trees) + self._unnamed, "tree")]
        parts += [count(self._rows, "row"), count(self._checks, "check")]
        text = Text("  ".join(parts), no_wrap=True, overflow="ellipsis")
        failed = len(self._failures)
        text.append(f"  {count(failed, 'failure')}", style="bold red" if failed else "green")
        if self._lost:
            text.append(f"  {count(self._lost, 'worker')} lost", style="red")
        return text


def _clock_face(seconds: float) -> str:
    """`1:05`, `2:00:00`."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
