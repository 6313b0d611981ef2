"""The fake checker in a worker that keeps a log of its own, and may die in the middle of a write.

TREEPROOF_TEST_LOG: a file that gets `case backend` after an event has been written down.
TREEPROOF_TEST_DIES: `line:N` or `rename:N`: this process kills its whole group in the middle of its
N-th event, or right before the N-th file gets its name.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import msgspec
from engine_fake_checker import CheckOptions as CheckOptions
from engine_fake_checker import check_case as check_case

from treeproof.contract.event import Checked, Event
from treeproof.engine import worker

WHERE, _, WHEN = os.environ.get("TREEPROOF_TEST_DIES", "").partition(":")
_write, _replace = worker.write_event, os.replace
_count = {"line": 0, "rename": 0}


def _dies(where: str) -> bool:
    _count[where] += 1
    return where == WHERE and _count[where] == int(WHEN)


def write_event(descriptor: int, path: Path, event: Event) -> None:
    if _dies("line"):
        line = msgspec.json.encode(event) + b"\n"
        os.write(descriptor, line[: len(line) // 2])
        os.killpg(0, signal.SIGKILL)
    _write(descriptor, path, event)
    if isinstance(event, Checked):
        with open(os.environ["TREEPROOF_TEST_LOG"], "a") as log:
            log.write(f"{event.case} {event.backend}\n")


def replace(source: str, target: str) -> None:
    if _dies("rename"):
        os.killpg(0, signal.SIGKILL)
    _replace(source, target)


worker.write_event = write_event
os.replace = replace  # type: ignore[assignment]
