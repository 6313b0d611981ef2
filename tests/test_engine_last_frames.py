"""Where a process hung or crashed, out of what faulthandler writes."""

from __future__ import annotations

import pytest

from treeproof.engine.last_frames import cause_of_death, last_frames, timed_out

OWN = "/site/treeproof/engine"


def trace(*frames: str, head: str = "Timeout (0:00:02)!") -> str:
    lines = [f'  File "{file}", line {n} in {name}' for file, n, name in map(split, frames)]
    return "\n".join([head, "Thread 0x00007f (most recent call first):", *lines])


def split(frame: str) -> list[str]:
    return frame.split(":")


ENGINE = (
    "/site/treeproof/engine/checks/trial.py:125:call",
    "/site/treeproof/engine/worker.py:9:check",
)


def test_the_frames_of_the_backend_are_named_and_those_that_call_it_are_not() -> None:
    text = trace(
        "/lib/torch/cuda.py:3:synchronize",
        "/me/kernel.py:9:launch",
        "/me/kernel.py:7:attend",
        *ENGINE,
    )
    assert last_frames(text, OWN) == (
        "synchronize (cuda.py, line 3), called by launch (kernel.py, line 9), "
        "called by attend (kernel.py, line 7)"
    )


def test_a_built_in_backend_has_frames_of_its_own() -> None:
    text = trace("/site/treeproof/backends/cascade.py:7:attend", *ENGINE)
    assert last_frames(text, OWN) == "attend (cascade.py, line 7)"


def test_where_treeproof_itself_hangs_its_own_frames_are_named() -> None:
    assert last_frames(trace(*ENGINE), OWN) == (
        "call (trial.py, line 125), called by check (worker.py, line 9)"
    )


def test_of_many_frames_the_innermost_and_the_entry_are_named() -> None:
    text = trace(*(f"/lib/deep.py:{n}:f{n}" for n in range(9)), "/me/kernel.py:7:attend", *ENGINE)
    calls = last_frames(text, OWN).split(", called by ")
    assert calls == [
        "f0 (deep.py, line 0)", "f1 (deep.py, line 1)", "f2 (deep.py, line 2)", "f3 (deep.py, line 3)",
        "5 more", "attend (kernel.py, line 7)",
    ]  # fmt: skip


def test_the_thread_that_the_check_runs_in_is_the_one_that_counts() -> None:
    idle = trace("/lib/threading.py:5:wait")
    busy = trace("/me/kernel.py:7:attend", *ENGINE).partition("\n")[2]
    other = trace("/lib/pool.py:1:run").partition("\n")[2]
    assert last_frames("\n\n".join([idle, busy, other]), OWN) == "attend (kernel.py, line 7)"


def test_a_trace_without_frames_says_nothing() -> None:
    assert last_frames("", OWN) == last_frames("Timeout (0:00:02)!", OWN) == ""


@pytest.mark.parametrize(
    ("head", "seconds", "cause"),
    [
        ("Timeout (0:00:02)!", 2.0, ""),
        ("Timeout (1:02:03.500000)!", 3723.5, ""),
        ("Fatal Python error: Segmentation fault", None, "Segmentation fault"),
        ("anything else", None, ""),
    ],
)
def test_the_first_line_says_how_it_ended(head: str, seconds: float | None, cause: str) -> None:
    text = trace("/me/kernel.py:7:attend", head=head)
    assert (timed_out(text), cause_of_death(text)) == (seconds, cause)
