"""Before the first case: which backends can be had, on what, and where the run is written."""

from __future__ import annotations

import importlib.metadata
import platform
import secrets
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pebble import ProcessExpired

import treeproof
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.registry import BackendError
from treeproof.engine import worker
from treeproof.engine.ledger import Ledger
from treeproof.engine.loss import ending
from treeproof.engine.run_folder import BackendMeta, RunFolder, RunMeta
from treeproof.engine.settings import RunSettings, SettingsError
from treeproof.engine.worker import WorkerSettings
from treeproof.engine.worker_pool import WorkerPool

IMPORT_SECONDS = 120.0
"""How long a backend may take to be imported."""


def new_folder(settings: RunSettings) -> RunFolder:
    """The run's folder, not made yet. Raises SettingsError where it already holds a run."""
    path = settings.run_dir
    if path is None:
        name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{settings.seed}-{secrets.token_hex(2)}"
        path = (settings.store or Path(".treeproof")) / "runs" / name
    folder = RunFolder(path)
    if folder.meta_path.exists():
        raise SettingsError(f"run folder {path} already holds a run: name another")
    return folder


def worker_settings(settings: RunSettings, folder: RunFolder, checker: str) -> WorkerSettings:
    return WorkerSettings(
        folder=folder.path.absolute(),
        checker=checker,
        device=settings.device,
        profile=settings.profile,
        launch_timeout=settings.launch_timeout,
        watched=settings.worker_count > 0,
    )


def begin(settings: RunSettings, folder: RunFolder, pool: WorkerPool, ledger: Ledger) -> RunMeta:
    """Load every backend in a worker, then make the run's folder.

    Raises BackendError where a backend or the device is not there, FileError where the folder
    cannot be written or the ledger names an unknown backend.
    """
    devices = device_names(pool)
    backends = load_backends(settings.backends, pool)
    if settings.ledger is not None:
        ledger.require_known_backends(settings.ledger, backends)
    meta = RunMeta(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        settings=settings.as_builtins(),
        seed=settings.seed,
        device=settings.device,
        device_name=_named(devices),
        backends=backends,
        command=tuple(sys.argv),
        versions=versions(),
        platform=platform.platform(),
        ledger=ledger.entries,
    )
    folder.create(meta)
    return meta


def device_names(pool: WorkerPool) -> list[str]:
    """What the GPU of each worker is called; nothing on the CPU. Raises BackendError where one is not there."""
    if pool.device == "cpu":
        return []
    asked = [seat.submit(worker.device_name, pool.device) for seat in pool.seats]
    return [_result(f"device {pool.device}", found) for found in asked]


def load_backends(references: Sequence[str], pool: WorkerPool) -> tuple[BackendMeta, ...]:
    """Load every backend in a worker: a file that crashes at import harms nothing else.

    Raises BackendError where one is not there, fails on import, or shares its name with another.
    """
    probes = [
        (reference, pool.seats[i % len(pool.seats)].submit(worker.probe, reference))
        for i, reference in enumerate(references)
    ]
    backends: dict[str, BackendMeta] = {}
    for reference, probe in probes:
        found: BackendMeta = _result(f"backend {reference}: its import", probe)
        if found.name in backends:
            twin = backends[found.name].reference
            raise BackendError(f"{twin} and {reference} are both the backend {found.name!r}")
        backends[found.name] = found
    return tuple(backends.values())


def load_capabilities(backends: Sequence[BackendMeta], pool: WorkerPool) -> dict[str, Capabilities]:
    """What each backend says it can do, by name; a worker imports it."""
    asked = [
        (backend, pool.seats[i % len(pool.seats)].submit(worker.capabilities, backend.reference))
        for i, backend in enumerate(backends)
    ]
    return {b.name: _result(f"backend {b.reference}: its import", found) for b, found in asked}


def _result(what: str, future: Future[Any]) -> Any:
    try:
        return future.result(IMPORT_SECONDS)
    except TimeoutError:
        raise BackendError(f"{what} took more than {IMPORT_SECONDS:g} s") from None
    except (ProcessExpired, BrokenProcessPool) as error:
        raise BackendError(f"{what}: {ending(getattr(error, 'exitcode', None))}") from None


def versions() -> dict[str, str]:
    """Versions of what decides a verdict; a package that is not installed is left out."""
    found = {"treeproof": treeproof.__version__, "python": platform.python_version()}
    for package in ("torch", "triton", "hypothesis"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _named(devices: Sequence[str]) -> str:
    """The GPUs in words, or else the CPU."""
    counts = Counter(devices)
    each = (name if count == 1 else f"{count} x {name}" for name, count in counts.items())
    return ", ".join(each) or platform.processor() or platform.machine()
