"""How many trees a backend the gate gets through in two minutes, once kernels are compiled.

    python ci/bench/gate.py [BACKEND...] [--seconds 120] [--warm-up 240] [--at-least 2000]

Starts `treeproof check` as `gate.sh` does, over every installed backend that attends unless some are named, and
follows its run folder. A gate begins with launches of 128 requests, in two dtypes and two layouts of the mask in
turn: warm-up is over when every backend has been checked on one of each kind. From then on distinct trees are
counted for so many seconds. Prints them by backend, the seconds that its checks took, and failures. Exits 1 where a backend
has fewer than `--at-least`, 2 where the warm-up did not end.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from treeproof.contract.backend import BackendUnavailable
from treeproof.contract.event import CaseDrawn, Checked, Event
from treeproof.contract.registry import BackendError, entry_points, load
from treeproof.engine.run_folder import each_event
from treeproof.generate.bulk import SHAPES

KINDS = 2 * len(SHAPES)
"""Of launches of many requests: each shape under two layouts of the mask."""


def attending() -> list[str]:
    """Names of the installed backends that attend on CUDA and can run here."""
    found = []
    for name in entry_points():
        try:
            backend = load(name)
        except (BackendUnavailable, BackendError) as error:
            print(f"left out: {name}: {str(error).splitlines()[0]}")
            continue
        if "attend" in backend.stages and "cuda" in backend.capabilities.devices:
            found.append(name)
    return found


@dataclass
class Followed:
    """What a run has written so far."""

    folder: Path
    cases: dict[str, CaseDrawn] = field(default_factory=dict)
    read: dict[Path, int] = field(default_factory=dict)
    """The place of the last event that was read of each file."""

    def new(self) -> Iterator[Event]:
        for path in sorted(self.folder.glob("events-*.ndjson")):
            before = self.read.get(path)
            for offset, event in each_event(path, before or 0):
                self.read[path] = offset
                if offset != before:
                    yield event


@dataclass
class Backend:
    """What one has been checked on. `seconds` are of its checks after warm-up."""

    warm: set[int] = field(default_factory=set)
    """Kinds of launches of many requests."""
    trees: set[str] = field(default_factory=set)
    seconds: float = 0.0
    checks: int = 0


def follow(
    given: argparse.Namespace, names: list[str], folder: Path, check: subprocess.Popen[bytes]
) -> int:
    run, backends = Followed(folder), {name: Backend() for name in names}
    waiting: dict[str, list[Checked]] = defaultdict(list)
    began, warm, failed = time.monotonic(), None, []
    while warm is None or time.monotonic() - warm < given.seconds:
        time.sleep(0.1)
        if check.poll() is not None:
            print(f"the check ended before, with exit code {check.returncode}")
            return 2
        if warm is None and time.monotonic() - began > given.warm_up:
            slow = [name for name, backend in backends.items() if len(backend.warm) < KINDS]
            print(f"warm-up did not end in {given.warm_up:g} s: {', '.join(slow)}")
            return 2
        for event in run.new():
            if isinstance(event, CaseDrawn):
                run.cases[event.case] = event
            # A case may be told after its check: they are in files of different writers.
            elif isinstance(event, Checked):
                waiting[event.case].append(event)
        for case in waiting.keys() & run.cases.keys():
            for checked in waiting.pop(case):
                failed += [f"{checked.backend}: {f.message}" for f in checked.failures]
                judged = any(cell.status == "pass" for cell in checked.cells)
                backend, drawn = backends[checked.backend], run.cases[case]
                if warm is None:
                    if "-bulk-" in drawn.unit:
                        backend.warm.add(int(drawn.unit.rpartition("-")[2]) % KINDS)
                elif judged:
                    backend.trees.update(drawn.trees)
                    backend.seconds += sum(checked.seconds.values())
                    backend.checks += 1
        if warm is None and all(len(backend.warm) == KINDS for backend in backends.values()):
            warm = time.monotonic()
            print(f"warm after {warm - began:.0f} s", flush=True)
    for name, backend in backends.items():
        print(
            f"  {name:26} {len(backend.trees):6,} trees  {backend.checks:4} checks  "
            f"{backend.seconds:6.1f} s"
        )
    least = min(len(backend.trees) for backend in backends.values())
    print(
        f"{len(backends)} backends, {given.seconds:g} s after warm-up: at least {least:,} trees each"
    )
    print(f"{len(failed)} failures", *failed[:5], sep="\n  ")
    return int(least < given.at_least)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("backends", nargs="*", metavar="BACKEND")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--warm-up", type=float, default=240.0, help="at most so many seconds")
    parser.add_argument("--at-least", type=int, default=2000)
    given = parser.parse_args()
    names = given.backends or attending()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        command = [sys.executable, "-m", "treeproof", "check", *names, "--profile", "gpu"]
        command += ["--device", "cuda", "--time", "10m", "--run-dir", str(run)]
        check = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder)
        try:
            return follow(given, names, run, check)
        finally:
            check.send_signal(signal.SIGINT)
            check.wait()


if __name__ == "__main__":
    raise SystemExit(main())
