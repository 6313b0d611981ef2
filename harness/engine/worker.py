"""The process side: everything that touches a backend happens here, and may die here."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from treeproof.contract.backend import Backend
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked, Diagnosed, Shown
from treeproof.contract.failure import PROBES
from treeproof.contract.known_failure import KnownFailure
from treeproof.contract.registry import BackendError, BackendUnavailable
from treeproof.contract.registry import load as load_here
from treeproof.engine.gpus import ANY, VISIBLE, own_device
from treeproof.engine.in_flight import Entering, InFlight, InFlightFile, trace_path
from treeproof.engine.open_files import Room
from treeproof.engine.process_state import restored
from treeproof.engine.run_folder import BackendMeta, RunFolder, open_events, write_event
from treeproof.engine.source_digest import source_digest
from treeproof.engine.watchdog import Watch, watchdog
from treeproof.properties.exception_text import words_of

SPENT = 86
"""Exit code of a worker that gives up its place between two checks: its device takes no more work, or it
cannot open many more files."""
NO_FILES = 87
"""Exit code of a worker that can open no file any more in the middle of a check."""

CHECKER = "treeproof.engine.check"
EXPLAINER = "treeproof.engine.look"
"""The module that finds causes; it loads torch."""
TRACER = "treeproof.engine.known_cause"
"""The module that tells whether a failure of ours has the cause that a ledger names; so does it."""

AFTERWARDS = "afterwards"
"""In place of a stage: the check is over, and its process lives on."""

SURVIVED, FAULTY = 84, 85
"""Exit codes of a child of `outlive`: the check ended well, or treeproof itself failed."""

_room: list[Room] = []
"""For open files, when this process began its first task."""

_suspected: set[str] = set()
"""Devices on which something failed in this process: looked at before each further check."""


class InternalError(Exception):
    """treeproof itself failed; the message is its traceback. Exit code 4."""


@dataclass(frozen=True)
class WorkerSettings:
    """What stays the same for all tasks of a run.

    `checker` is the module that holds `check_case` and `CheckOptions`. `watched`: the process is
    ours to end, so a stage that takes longer than `launch_timeout` seconds ends it.
    """

    folder: Path
    checker: str
    device: str
    profile: str
    launch_timeout: float
    watched: bool
    linger: float = 0.0
    """Seconds that are waited after each check for what it may have left behind to end the process."""


@dataclass(frozen=True)
class Task:
    """One case on some backends, by these probes. `writer` names the events file; empty: nothing is
    recorded. From `until` on (seconds of `time.time()`) no further backend is begun. `known`: entries
    of a ledger that name a cause, by backend."""

    number: int
    case: VerifyCase
    backends: tuple[BackendMeta, ...]
    identities: frozenset[str]
    writer: str = ""
    probes: frozenset[str] = frozenset(PROBES)
    until: float | None = None
    known: Mapping[str, tuple[KnownFailure, ...]] = field(default_factory=dict)


def initialize(device_kind: str, output: Path | None = None, gpu: str = ANY) -> None:
    """Set up a worker process, before anything imports torch or triton: from then on it sees `gpu` alone.

    What is printed in it goes to the file `output`: a backend's words must not reach the terminal, nor
    the CI service that reads commands there.
    """
    if output is not None:
        file = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        for stream in (1, 2):
            os.dup2(file, stream)
        os.close(file)
    os.environ["OMP_NUM_THREADS"] = "1"
    if gpu != ANY:
        os.environ[VISIBLE] = gpu
    if device_kind == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"


def load(reference: str) -> Backend:
    """A backend. Others run in this process, too: what its import does to it is put back."""
    with restored():
        return load_here(reference)


def probe(reference: str) -> BackendMeta:
    """Load a backend. Raises BackendError where there is no such thing."""
    try:
        backend = load(reference)
    except BackendUnavailable as error:
        return BackendMeta(reference=reference, name=reference, unavailable=words_of(error))
    except BackendError:
        raise
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise BackendError(
            f"backend {reference} fails on import: {type(error).__name__}: {words_of(error)} "
            f"({last.filename}, line {last.lineno})"
        ) from None
    return described(reference, backend)


def described(reference: str, backend: Backend) -> BackendMeta:
    """What a run says of a backend that is loaded here."""
    digests = source_digest(backend.source)
    return BackendMeta(
        reference=reference,
        name=backend.name,
        stages=tuple(sorted(backend.stages)),
        kernels=tuple(sorted(backend.kernels)),
        cache_layouts=tuple(sorted(backend.capabilities.cache_layouts)),
        source=digests.source,
        compiled=digests.compiled,
    )


def capabilities(reference: str) -> Capabilities:
    """What a backend that can be loaded says it can do."""
    return load(reference).capabilities


def device_name(device: str) -> str:
    """The device in words. Raises BackendError where it is not there, or is several."""
    import torch

    own_device(device)

    if not torch.cuda.is_available():
        raise BackendError(
            f"device {device}: torch {torch.__version__} sees no CUDA device; "
            "treeproof doctor --device cuda says what to do"
        )
    index = int(device.partition(":")[2] or 0)
    if index >= torch.cuda.device_count():
        raise BackendError(f"device {device}: there are {torch.cuda.device_count()} CUDA devices")
    return torch.cuda.get_device_name(index)


@dataclass(frozen=True)
class _Work:
    """One task under way: what it says of itself to the controller, and its watchdog."""

    task: Task
    settings: WorkerSettings
    events: Path
    opened: int | None
    """Descriptor of that file, where events are written."""
    in_flight: InFlightFile
    watch: Watch

    def entering(self, backend: str) -> Entering:
        """For the stages of this backend."""

        def enter(stage: str, probe: str = "") -> None:
            self.in_flight.update(backend, stage, probe)
            self.watch.arm(stage)

        return enter

    def rest(self) -> None:
        """The backend has given back control."""
        self.watch.disarm()
        self.in_flight.update("", "")


def check(task: Task, settings: WorkerSettings) -> list[Checked]:
    """Check the case on its backends, one after another, so that its oracle runs once.

    Raises InternalError for whatever else happens: exceptions travel badly between processes.
    """
    with _working(task, settings, settings.checker) as work:
        in_time = (meta for meta in task.backends if task.until is None or time.time() < task.until)
        return [_check_one(work, meta) for meta in in_time]


def explain(task: Task, settings: WorkerSettings) -> tuple[tuple[Diagnosed, ...], Shown | None]:
    """The cause of what the task's one backend does wrong on the case, as `look_and_show` gives it; nothing
    where the device breaks down over it.

    Raises InternalError as `check` does.
    """
    (meta,) = task.backends
    with _working(task, settings, EXPLAINER) as work, _one_thread(settings.device):
        _leave_spent(settings)
        from treeproof.engine.checks.device_fault import is_device_fault

        looker: Any = importlib.import_module(EXPLAINER)
        options = looker.CheckOptions(
            device=settings.device,
            profile=settings.profile,
            identities=task.identities,
            in_flight=work.entering(meta.name),
        )
        found: tuple[tuple[Diagnosed, ...], Shown | None] = (), None
        try:
            found = looker.look_and_show(task.case, load(meta.reference), options)
        except RuntimeError as error:
            if not is_device_fault(error):
                raise
            _suspected.add(settings.device)
        work.rest()
        return found


@contextmanager
def _working(task: Task, settings: WorkerSettings, module: str) -> Iterator[_Work]:
    """Say which task this process is at, and end it where a stage takes too long."""
    _leave_spent(settings)
    folder = RunFolder(settings.folder)
    events = folder.events_path(f"{task.writer}-{os.getpid()}")
    record = InFlight(
        task=task.number,
        pid=os.getpid(),
        case=task.case.id,
        events=events.name if task.writer else "",
        offset=events.stat().st_size if events.exists() else 0,
    )
    in_flight = InFlightFile(folder.in_flight, record)
    opened = open_events(events) if task.writer else None
    seconds = settings.launch_timeout if settings.watched else None
    in_flight.update("", "load")
    importlib.import_module(module)  # torch takes seconds, and is no backend's fault
    in_flight.update("", "")
    try:
        with watchdog(seconds, trace_path(folder.in_flight, task.number)) as watch:
            yield _Work(task, settings, events, opened, in_flight, watch)
    except (Exception, SystemExit) as error:
        if getattr(error, "errno", None) == errno.EMFILE and settings.watched and _room[0].is_taken:
            os._exit(NO_FILES)
        at = f"checking {in_flight.backend or 'nothing yet'} on case {task.case.id}"
        raise InternalError(f"{at}: {traceback.format_exc()}") from None
    finally:
        in_flight.close()
        if opened is not None:
            os.close(opened)


def outlive(task: Task, settings: WorkerSettings) -> int:
    """Check in a forked child, which may die at a fiftieth of what a worker's death costs.

    Returns the child's exit code, negative for a signal; SURVIVED where the check came to its end.
    Not for CUDA, whose contexts do not survive a fork.
    """
    _leave_spent(settings)
    importlib.import_module(settings.checker)  # before the fork, so that no child has to
    for meta in task.backends:
        load(meta.reference)
    child = os.fork()
    if child == 0:
        code = FAULTY
        try:
            check(task, settings)
            code = SURVIVED
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == FAULTY:
        check(task, settings)  # to say what it was
    return code


def _check_one(work: _Work, meta: BackendMeta) -> Checked:
    settings = work.settings
    _leave_spent(settings)
    enter = work.entering(meta.name)
    enter("load")
    checker: Any = importlib.import_module(settings.checker)
    options = checker.CheckOptions(
        device=settings.device,
        profile=settings.profile,
        identities=work.task.identities,
        probes=work.task.probes,
        in_flight=enter,
    )
    backend, known = load(meta.reference), work.task.known.get(meta.name, ())
    with _one_thread(settings.device):
        checked: Checked = checker.check_case(work.task.case, backend, options)
        if checked.failures and known and settings.checker == CHECKER:  # no other shows evidence
            tracer: Any = importlib.import_module(TRACER)
            checked = tracer.traced(work.task.case, backend, checked, options, known)
    if settings.linger:
        enter(AFTERWARDS)
        time.sleep(min(settings.linger, settings.launch_timeout / 2))  # that is no hang
    work.watch.disarm()
    if work.opened is not None:
        write_event(work.opened, work.events, checked)
    work.in_flight.update("", "")
    if checked.failures and settings.device != "cpu":
        _suspected.add(settings.device)
    return checked


@contextmanager
def _one_thread(device: str) -> Iterator[None]:
    """On the CPU a check runs on one thread, so that its sums are the same in every process."""
    torch = sys.modules.get("torch")
    if torch is None or device != "cpu":
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _leave_spent(settings: WorkerSettings) -> None:
    """End this process where it is of no more use; another takes its place."""
    if not settings.watched:
        return
    if not _room:
        _room.append(Room.now())
    dead = settings.device in _suspected and _context_is_dead(settings.device)
    if dead or _room[0].is_taken:
        os._exit(SPENT)


def _context_is_dead(device: str) -> bool:
    """Whether the device takes no more work: an illegal access spoils a process for good."""
    import torch

    try:
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
