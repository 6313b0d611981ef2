"""Files that a process has open: there may be so many, and who keeps one of each call leaves none to others."""

from __future__ import annotations

import errno
import gc
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

MOST_CALLS = 8
"""Calls in a row that may each leave one more file open. What is opened at first use, and kept for good, is
no leak."""
SHARE = 1 / 4
"""Of all files that a process may have open, what one call may leave so."""


def lowest_free() -> int:
    """The lowest descriptor that is free: it costs microseconds, and each file that stays open raises it, but
    one that was closed below them lowers it."""

    def probed() -> int:
        free = os.open(os.devnull, os.O_RDONLY)
        os.close(free)
        return free

    return _or_limit(probed)


def count() -> int:
    """Files that are open."""
    return _or_limit(lambda: len(os.listdir("/dev/fd")) - 1)  # one to look there


def _or_limit(asked: Callable[[], int]) -> int:
    """The limit where no file can be opened."""
    try:
        return asked()
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        return limit()


def limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


@dataclass
class OpenFiles:
    """Which stages of a backend keep files of their calls, on one case."""

    _open: int = field(default_factory=count)
    """So many, when they were last counted."""
    _growing: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of a stage, how many of its last calls each left one more open, and the lowest free one before these."""

    def kept(self, stage: str, before: int) -> list[str]:
        """What a call of a stage leaves open that it should not, in words. `before`: the lowest free then."""
        now = lowest_free()
        if now <= before:
            self._growing.pop(stage, None)
            return []
        if now - before > SHARE * limit():  # or the only one that was free below others
            was, self._open = self._open, count()
            if self._open - was > SHARE * limit():
                return [f"of {limit()} files that may be open, it leaves {self._open - was}"]
        calls, first = self._growing.get(stage, (0, before))
        self._growing[stage] = calls + 1, first
        if calls + 1 < MOST_CALLS:
            return []
        del self._growing[stage]
        gc.collect()  # files that nobody can reach any more are closed
        if lowest_free() - first < MOST_CALLS:
            return []
        return [f"each of {MOST_CALLS} calls leaves one more file open"]


@dataclass(frozen=True)
class Room:
    """How many files a process could open when it began. With less than half of it, it begins no check."""

    at_first: int

    @classmethod
    def now(cls) -> Room:
        return cls(limit() - count())

    @property
    def is_taken(self) -> bool:
        return 2 * (limit() - count()) < self.at_first
