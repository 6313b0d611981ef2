"""Where a process was when it hung or crashed, out of the traceback that faulthandler left of it."""

from __future__ import annotations

import re
from pathlib import Path

OWN = str(Path(__file__).parent)
"""The engine's folder, as tracebacks name it: what its frames call is the backend's."""
MOST = 6
"""Frames that are named; of more, the innermost ones and the outermost."""

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')


def last_frames(trace: str, own: str = OWN) -> str:
    """In words, the innermost call first: the frames of the backend, of the thread that ran it. Where
    there is none of those, treeproof's; empty where no frame was left."""
    calls = _thread(trace, own)
    depth = next((i for i, (file, _) in enumerate(calls) if _is_own(file, own)), len(calls))
    shown = calls[:depth] or calls
    words = [call for _, call in shown]
    if words[MOST:]:
        words = [*words[: MOST - 2], f"{len(words) - MOST + 1} more", words[-1]]
    return ", called by ".join(words)


def timed_out(trace: str) -> float | None:
    """Seconds without progress, where that is what ended it."""
    found = re.match(r"Timeout \((\d+):(\d\d):(\d\d(?:\.\d+)?)\)!", trace)
    if found is None:
        return None
    hours, minutes, seconds = found.groups()
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)


def cause_of_death(trace: str) -> str:
    """What faulthandler says of a signal before the frames: `Segmentation fault`."""
    head = trace.partition("\n")[0]
    return head.removeprefix("Fatal Python error: ") if head.startswith("Fatal Python") else ""


def _thread(trace: str, own: str) -> list[tuple[str, str]]:
    """File and words of each frame of the thread that our engine is in, else of the last one."""
    threads: list[list[tuple[str, str]]] = []
    for line in trace.splitlines():
        frame = _FRAME.match(line)
        if frame is None:
            if "(most recent call first)" in line:
                threads.append([])
        elif threads:
            file = frame["file"]
            words = f"{frame['function']} ({Path(file).name}, line {frame['line']})"
            threads[-1].append((file, words))
    ours = [one for one in threads if any(_is_own(file, own) for file, _ in one)]
    return (ours or threads or [[]])[-1]


def _is_own(file: str, own: str) -> bool:
    return file.startswith(own)
