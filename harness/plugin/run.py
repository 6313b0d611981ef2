"""The run that one pytest session is: settings, seed, and the folder its processes share."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from treeproof.config import read_folder, run_settings
from treeproof.contract.event import Event
from treeproof.contract.wire import write_atomically
from treeproof.engine.in_flight import Entering, InFlight, InFlightFile
from treeproof.engine.ledger import Ledger
from treeproof.engine.run_folder import BackendMeta, RunFolder, append_event, file_name
from treeproof.generate.profiles import PROFILES

if TYPE_CHECKING:
    from treeproof.contract.case import VerifyCase
    from treeproof.engine.settings import RunSettings

current: ContextVar[PytestRun | None] = ContextVar("current", default=None)
"""Set by the plug-in for the length of a session; None where it is switched off."""


@dataclass
class PytestRun:
    """Settings come in layers, later ones win: defaults, configuration file, ini, the arguments of
    `make_tests`, command line. `name` and `new_seed` are the same in all processes of a session."""

    root: Path
    """Where the run's folder goes, unless `run_dir` is given."""
    below: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the configuration file and the ini file set."""
    above: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the command line sets."""
    name: str = ""
    new_seed: int = field(default_factory=lambda: secrets.randbits(32))
    writer: str = "pytest"
    """Process, in the name of its events file; empty: events are not written down."""
    marks: bool = True
    """The plug-in is there and has registered its marker."""
    started: float = field(default_factory=time.monotonic)
    ledger: Ledger = field(default_factory=Ledger)
    """Known failures; those of the file once `read_ledger` was called."""
    noted: list[str] = field(default_factory=list)
    """Names of the backends that the test at hand has tried to load."""

    def __post_init__(self) -> None:
        self.name = self.name or f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"

    def settings(self, made: Mapping[str, Any] | None = None) -> RunSettings:
        """Settings of a test that `make_tests` was given `made` for. Backends are its own affair."""
        layers = [self.below, made or {}, self.above, {"backends": ("pytest",)}]
        settings = run_settings(*layers)
        if PROFILES[settings.profile].fixed_seed is None and not any("seed" in x for x in layers):
            return replace(settings, seed=self.new_seed)  # one for the whole session
        return settings

    def read_ledger(self) -> None:
        """Raises FileError where the ledger's file cannot be used."""
        settings = self.settings()
        self.ledger = Ledger.read(settings.ledger, settings.device, datetime.now(UTC).date())

    @property
    def folder(self) -> RunFolder:
        """Not made before something is written into it."""
        given = self.settings().run_dir
        return RunFolder(given or self.root / ".treeproof" / "runs" / self.name)

    def record(self, *events: Event) -> None:
        if self.writer:
            folder = self.folder
            folder.make()
            for event in events:
                append_event(folder.events_path(f"{self.writer}-{os.getpid()}"), event)

    def note(self, backend: BackendMeta) -> None:
        """Say which backend is tried, so that the process that reports knows it whatever happens."""
        self.noted.append(backend.name)
        if self.writer:
            path = self.backends / f"{file_name(backend.name, 'loaded')}"
            write_atomically(path, msgspec.json.encode(backend))

    @property
    def backends(self) -> Path:
        """One file a backend that was tried. A `reference` is empty where no command line finds it."""
        return self.folder.path / "backends"

    @contextmanager
    def at_work(self, case: VerifyCase, backend: str) -> Iterator[Entering]:
        """Write down the case and then each stage it is in: a process that dies leaves both behind."""
        if not self.writer:
            yield lambda stage, probe="": None
            return
        folder = self.folder
        folder.make()
        if not folder.case_path(case.id).exists():
            folder.write_case(case)
        record = InFlight(task=os.getpid(), pid=os.getpid(), case=case.id)
        in_flight = InFlightFile(folder.in_flight, record)
        try:
            yield partial(in_flight.update, backend)
        finally:
            in_flight.close()


def current_run() -> PytestRun:
    """The session's run; one of its own, which writes no events, where the plug-in is off."""
    run = current.get()
    if run is None:
        run = PytestRun(Path.cwd(), below=read_folder(Path.cwd()), writer="", marks=False)
        run.read_ledger()
        current.set(run)
    return run
