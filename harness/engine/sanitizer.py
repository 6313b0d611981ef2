"""NVIDIA's compute-sanitizer: failing cases run again under it, and what it says of their kernels.

The process under it checks one case by the probes that saw the failure, and has each tensor in memory of its
own: torch's allocator would hand out parts of one block, whose bounds the tool does not know.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from treeproof.contract.event import Event, Sanitized
from treeproof.engine.failure_group import FailureGroup
from treeproof.engine.gpus import ANY, VISIBLE, pins
from treeproof.engine.run_folder import RunFolder
from treeproof.engine.sanitizer_text import complaint, errors, findings
from treeproof.engine.settings import RunSettings, SettingsError
from treeproof.engine.summary import Run

TOOL = "compute-sanitizer"
HOMES = ("CUDA_HOME", "CUDA_PATH")
USUAL_HOME = "/usr/local/cuda"
CASE_SECONDS, ALL_SECONDS = 120.0, 600.0
"""For one case, and for all of a run. Kernels run some ten times as long as without."""
OPTIONS = ("--tool", "memcheck", "--padding", "512", "--target-processes", "all")
"""With room behind each allocation, so that the next one is not taken for its end."""
MOST_READ = 4 << 20
"""Bytes of its output that are read."""
CHILD = "treeproof.engine.sanitized_case"


def sanitizer() -> str | None:
    """Where compute-sanitizer is: in PATH, or with the CUDA toolkit. None: not on this machine."""
    homes = [*(os.environ.get(name) for name in HOMES), USUAL_HOME]
    places = [None, *(str(Path(home) / "bin") for home in homes if home)]
    return next((found for place in places if (found := shutil.which(TOOL, path=place))), None)


def require_sanitizer(settings: RunSettings) -> None:
    """Raises SettingsError where a run is asked for what cannot be had."""
    if not settings.sanitize:
        return
    if settings.device_kind != "cuda":
        raise SettingsError(
            f"sanitize: {TOOL} watches kernels on CUDA, and the device is {settings.device}"
        )
    if sanitizer() is None:
        raise SettingsError(
            f"sanitize: there is no {TOOL} in PATH, {' or '.join(HOMES)}; it comes with the CUDA toolkit"
        )


def sanitize_failures(run: Run, settings: RunSettings, emit: Callable[[Event], None]) -> None:
    """Run each failing case of the run's reproducers again, once a case and backend, worst first."""
    together: dict[tuple[str, str], list[FailureGroup]] = {}
    for group in run.failures:
        together.setdefault((group.case, group.backend), []).append(group)
    until = time.monotonic() + ALL_SECONDS
    references = {meta.name: meta.reference for meta in run.meta.backends}
    for (case, backend), groups in together.items():
        left = until - time.monotonic()
        if any(group.failure.severity == "hang" for group in groups):
            emit(_unseen(case, backend, "a launch that hangs was not tried"))
        elif left <= 0:
            emit(_unseen(case, backend, f"not tried: {ALL_SECONDS:g} s were over"))
        else:
            probes = _probes(groups)
            command = _command(run.folder, case, references[backend], probes)
            seconds = min(CASE_SECONDS, left)
            emit(sanitized(run.folder, case, backend, command, settings.device, seconds))


def _unseen(case: str, backend: str, why: str) -> Sanitized:
    return Sanitized(case=case, backend=backend, findings=(), said=why)


def _probes(groups: Iterable[FailureGroup]) -> list[str]:
    """That saw the failures; none where it takes all of them."""
    probes = {group.failure.probe for group in groups}
    return [] if "" in probes else sorted(probes)


def _command(folder: RunFolder, case: str, reference: str, probes: Sequence[str]) -> list[str]:
    path = str(folder.case_path(case).absolute())
    return [sys.executable, "-m", CHILD, path, reference, *probes]


def sanitized(
    folder: RunFolder,
    case: str,
    backend: str,
    command: Sequence[str],
    device: str,
    seconds: float,
) -> Sanitized:
    """What the tool says of one process; its words are kept in the run's folder."""
    tool = sanitizer()
    assert tool is not None
    output = folder.output(f"{TOOL}-{backend}-{case}")
    start = time.monotonic()
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [tool, *OPTIONS, *command],
            stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
            env=_environment(device), start_new_session=True,
        )  # fmt: skip
        code: int | None = None
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end(process)
    with output.open("rb") as stream:
        text = stream.read(MOST_READ).decode("utf-8", "replace")
    found = findings(text)
    said = "" if found else _why_nothing(text, code, seconds)
    took = time.monotonic() - start
    return Sanitized(case=case, backend=backend, findings=found, said=said, seconds=took)


def _environment(device: str) -> dict[str, str]:
    pin = pins(device)[0]
    own = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own, **({} if pin == ANY else {VISIBLE: pin})}


def _end(process: subprocess.Popen[bytes]) -> None:
    """And all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _why_nothing(text: str, code: int | None, seconds: float) -> str:
    if code is None:
        return f"did not end in {seconds:.0f} s, and had found nothing until then"
    if errors(text) == 0:
        return "found no invalid access"
    last = text.strip().splitlines()[-1:] or ["without a word"]
    return f"ended with exit code {code}: {complaint(text) or last[0]}"
