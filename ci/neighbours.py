"""Right backends beside bad neighbours: two checks of the same cases, without these and with them.

Each bad one must fail on the case that brings its harm on (`harm.HARMFUL`) and on no other, in its own way,
and leave the case on disk; the verdicts on the right ones must be those of the check without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harm import HARMFUL

from treeproof.contract.event import Checked
from treeproof.contract.wire import FileError
from treeproof.engine.summary import Run

TREE = [-1, 0, 0, 1, 1, 2, 4]
PREFIXES = (HARMFUL, 6)
SEED = 156
"""Of a harmful case with two requests, that looks for memory, too."""


@dataclass(frozen=True)
class Expected:
    """Identity and kind of the failure that must be among those found, and words of its message."""

    identity: str
    kind: str
    words: str = ""


@dataclass(frozen=True)
class Beside:
    """Right backends, and bad ones of one file that are checked between the first of them and the rest."""

    right: tuple[str, ...]
    file: Path
    bad: Mapping[str, Expected]
    options: tuple[str, ...]
    """Of both checks."""
    seconds: Mapping[str, float]
    """Until a check, `without` and `with`, has to be over."""
    hangs: Mapping[str, float]
    """After how long a launch counts as hung."""

    def tried(self, folder: Path) -> tuple[dict[str, Any], Run | None]:
        """What came of it, and the check with bad neighbours."""
        first, *rest = self.right
        between = [f"{self.file}:{name}" for name in self.bad]
        start = time.perf_counter()
        alone, alone_said = self._check("without", self.right, folder)
        until = time.perf_counter()
        run, said = self._check("with", [first, *between, *rest], folder)
        end = time.perf_counter()
        result: dict[str, Any] = {
            "state": "tried" if alone is not None and run is not None else "could not run",
            "said": {"without": alone_said, "with": said},
            "seconds": {"without": round(until - start, 1), "with": round(end - until, 1)},
        }
        if alone is None or run is None:
            return result, None
        result["right"] = [_beside(alone, run, name) for name in self.right]
        result["bad"] = [_found(run, name, expected) for name, expected in self.bad.items()]
        result["losses"] = [f"{lost.backend}: {lost.how}" for lost in run.losses]
        return result, run

    def _check(self, name: str, backends: Sequence[str], folder: Path) -> tuple[Run | None, str]:
        """The run, or why there is none."""
        shapes = folder / "tree.json"
        shapes.write_text(json.dumps(TREE))
        command = [sys.executable, "-m", "treeproof", "check", *backends, *self.options]
        command += ["--trees", str(shapes), "--seed", str(SEED), "-n", "1", "--no-reduce"]
        for prefix in PREFIXES:
            command += ["--prefix", str(prefix)]
        command += ["--launch-timeout", f"{self.hangs[name]}s", "--run-dir", str(folder / name)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=self.seconds[name], check=False,
                cwd=folder, env=environment(),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None, f"did not end in {self.seconds[name]:g} s"
        (folder / f"{name}.txt").write_text(done.stdout + done.stderr)
        try:
            return Run.read(folder / name), f"exit code {done.returncode}"
        except FileError:
            return None, f"exit code {done.returncode}: {(done.stdout + done.stderr)[-1500:]}"


def environment() -> dict[str, str]:
    """This one, for a process in another folder: none of `.treeproof` here is replayed."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    absolute = os.pathsep.join(str(Path(part).absolute()) for part in path if part)
    return {**os.environ, "PYTHONPATH": absolute}


def _beside(alone: Run, run: Run, backend: str) -> dict[str, Any]:
    """A right backend by itself, and whether it was judged so beside bad neighbours, too."""
    return {
        "backend": backend,
        "checks": alone.completed_checks(backend),
        "failures": sum(len(c.failures) for c in alone.checks if c.backend == backend),
        "intact": _verdicts(alone, backend) == _verdicts(run, backend),
    }


def _verdicts(run: Run, backend: str) -> dict[str, Any]:
    """Case to all that is said of it, but how long it took."""

    def said(check: Checked) -> Any:
        whole = run.whole(check)
        return [repr(cell) for cell in whole.cells], [repr(failure) for failure in whole.failures]

    return {check.case: said(check) for check in run.checks if check.backend == backend}


def _found(run: Run, backend: str, expected: Expected) -> dict[str, Any]:
    """What was seen of a bad neighbour, and what of it is not as it must be."""
    checks = [run.whole(check) for check in run.checks if check.backend == backend]
    blamed = [check.case for check in checks if check.failures]
    failures = [failure for check in checks for failure in check.failures]
    key = (expected.identity, expected.kind)
    alike = [f for f in failures if f.key == key and expected.words in f.message]
    guilty = next(case.case for case in run.cases if case.prefixes[0] == HARMFUL)
    wrong = []
    if not alike:
        wrong.append(f"not found as {' '.join(key)} {expected.words}".strip())
    if blamed != [guilty]:
        wrong.append(f"blamed on cases {', '.join(blamed) or 'none'}, expected {guilty}")
    if len(checks) != len(PREFIXES):
        wrong.append(f"judged on {len(checks)} cases, expected {len(PREFIXES)}")
    if not run.folder.reproducer_path(backend, *key).exists():
        wrong.append("its case is not on disk")
    return {
        "backend": backend,
        "expected": " ".join(key),
        "found": sorted({f"{f.identity} {f.kind}" for f in failures}),
        "says": alike[0].message if alike else "",
        "blamed": blamed,
        "wrong": wrong,
    }


def wrong(result: dict[str, Any]) -> list[str]:
    """What is not as it must be."""
    said = []
    for one in result["right"]:
        if one["checks"] != len(PREFIXES) or one["failures"]:
            said.append(
                f"{one['backend']} alone: {one['checks']} checks, {one['failures']} failures"
            )
        if not one["intact"]:
            said.append(f"{one['backend']}: other verdicts beside bad neighbours")
    return said + [f"{one['backend']}: {text}" for one in result["bad"] for text in one["wrong"]]
