"""A soak in parts: run anywhere, lost and run again, left off and gone on with, and one run in the end.

Part p of a campaign is units [p * UNITS, (p + 1) * UNITS) of its soak, the same wherever and whenever it
is run. What a part found comes back as one file and lies in the campaign's folder from then on:

campaign.json      what is drawn, and on what
parts/000012/      a run folder, whole
run/               the union of all parts
"""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec

from treeproof.contract.event import Event
from treeproof.contract.registry import BackendError
from treeproof.contract.wire import FileError, read_bytes, write_atomically
from treeproof.engine.merge import merge
from treeproof.engine.representatives import keep_failures
from treeproof.engine.runner import ignore, run
from treeproof.engine.settings import RunSettings, SettingsError
from treeproof.engine.store import FailureStore
from treeproof.engine.summary import Run
from treeproof.engine.worker import CHECKER

UNITS = 8
"""Units of a part: a minute or so on one core, of which its start takes three seconds."""
MOST_TRIES = 3
AHEAD = 2
"""Parts handed out for each place, so that none waits for the next."""
_DRAWN = ("backends", "identities", "profile", "seed", "dtype", "device")
"""Settings that an earlier sitting of the same campaign must have had as well."""


class PartLost(Exception):
    """A part did not come back, and why: its place died, or was taken away."""


class Places(Protocol):
    """Where parts are run."""

    count: int
    """Parts that run at once."""

    def submit(self, settings: RunSettings, checker: str) -> Future[bytes]:
        """Run one part; `run_part`, somewhere. The future raises PartLost where it did not come back."""

    def stop(self) -> None: ...


def run_part(settings: RunSettings, checker: str = CHECKER) -> bytes:
    """Run one part here, in a folder of its own; the run folder as a compressed tar file."""
    with tempfile.TemporaryDirectory(prefix="treeproof-part-") as folder:
        found = run(replace(settings, run_dir=Path(folder) / "run"), checker=checker)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
            archive.add(found.folder.path, arcname=".")
    return packed.getvalue()


def campaign(
    settings: RunSettings,
    folder: Path,
    places: Places,
    on_event: Callable[[Event], None] = ignore,
    *,
    cases: int | None = None,
    checker: str = CHECKER,
) -> Run:
    """Run parts until the time of `settings` is over, or about `cases` cases have been drawn; the union.

    Parts that an earlier sitting left in `folder` are not run again, and count. A part that is lost is
    run again, MOST_TRIES times at most, and so is one whose place cannot load a backend that others
    could. Raises SettingsError where the folder holds another campaign, and what `run` raises where no
    part can be run.
    """
    _begin(settings, folder)
    sitting = _Sitting(settings, folder, places, on_event, cases, checker)
    try:
        sitting.go_on()
    except KeyboardInterrupt:
        sitting.lost.append("interrupted")
        sitting.keep_what_is_there()
    return sitting.union()


def _begin(settings: RunSettings, folder: Path) -> None:
    path = folder / "campaign.json"
    drawn: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode({name: settings.as_builtins()[name] for name in _DRAWN})
    )
    try:
        (folder / "parts").mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomically(path, msgspec.json.format(msgspec.json.encode(drawn)) + b"\n")
    except OSError as error:
        raise FileError(f"{folder}: {error.strerror or error}") from error
    known = _read(path)
    for name, value in drawn.items():
        if known.get(name) != value:
            raise SettingsError(
                f"{path} is a campaign of {name} {known.get(name)!r}, not {value!r}: "
                "name another folder, or ask for the same"
            )


def units_of(cases: int) -> tuple[int, int]:
    """The units, from the first on, of the whole parts in which so many cases are drawn."""
    from treeproof.generate.units import BLOCK

    return 0, -(-cases // (UNITS * BLOCK)) * UNITS


def seed_of(folder: Path) -> int | None:
    """The seed of the campaign in a folder; None where there is none yet."""
    path = folder / "campaign.json"
    seed = _read(path).get("seed") if path.exists() else None
    return seed if isinstance(seed, int) else None


def _read(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(read_bytes(path), type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise FileError(f"{path}: {error}") from error


@dataclass
class _Sitting:
    """A campaign in progress."""

    settings: RunSettings
    folder: Path
    places: Places
    on_event: Callable[[Event], None]
    cases: int | None
    checker: str
    started: float = field(default_factory=time.monotonic)
    failed: bool = False
    came: bool = False
    """A part has come back."""
    tries: Counter[int] = field(default_factory=Counter)
    waiting: dict[Future[bytes], int] = field(default_factory=dict)
    """Parts under way."""
    lost: list[str] = field(default_factory=list)
    """What should be in the union and is not, in words."""

    def go_on(self) -> None:
        waiting, parts = self.waiting, self._parts()
        again: list[int] = []
        while True:
            while len(waiting) < AHEAD * self.places.count and not self._over:
                part = again.pop() if again else next(parts, None)
                if part is None:
                    break
                waiting[self._submit(part)] = part
            if not waiting:
                self.lost += [f"part {part} was lost, and the time was over" for part in again]
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                part = waiting.pop(future)
                try:
                    self._keep(part, future.result())
                except (PartLost, BackendError) as error:
                    if isinstance(error, BackendError) and not self.came:
                        raise  # it can be loaded nowhere, for all that is known
                    self.tries[part] += 1
                    if self.tries[part] < MOST_TRIES:
                        again.append(part)
                    else:
                        self.lost.append(f"part {part} did not come back: {error}")

    def keep_what_is_there(self) -> None:
        """Of the parts under way, those that have come back."""
        for future, part in self.waiting.items():
            if future.done() and future.exception() is None:
                self._keep(part, future.result())

    def _parts(self) -> Iterator[int]:
        """Those that are not there yet, in order."""
        most = None if self.cases is None else units_of(self.cases)[1] // UNITS
        part = 0
        while most is None or part < most:
            if not self._path(part).exists():
                yield part
            part += 1

    @property
    def _over(self) -> bool:
        limit = self.settings.time_limit
        late = limit is not None and time.monotonic() - self.started >= limit
        return late or (self.failed and self.settings.fail_fast)

    def _submit(self, part: int) -> Future[bytes]:
        own = replace(
            self.settings,
            units=(part * UNITS, UNITS),
            time_limit=None,
            store=None,
            run_dir=None,
            # One smallest case of each failure is enough.
            reduce=self.settings.reduce and not self.failed,
        )
        return self.places.submit(own, self.checker)

    def _path(self, part: int) -> Path:
        return self.folder / "parts" / f"{part:06}"

    def _keep(self, part: int, packed: bytes) -> None:
        with tempfile.TemporaryDirectory(dir=self.folder) as unpacked:
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                archive.extractall(unpacked, filter="data")
            Path(unpacked).rename(self._path(part))
            Path(unpacked).mkdir()  # which it cleans up
        found = Run.read(self._path(part))
        self.came = True
        self.failed |= bool(found.failures)
        for event in found.events:
            self.on_event(event)

    def union(self) -> Run:
        """All parts that there are as one run; what is lost is said, and is no pass."""
        runs = [Run.read(path) for path in sorted((self.folder / "parts").iterdir())]
        if not runs:
            raise SettingsError(": ".join(["no part of the campaign was run", *self.lost]))
        into = self.folder / "run"
        shutil.rmtree(into, ignore_errors=True)  # it is made of the parts
        found = merge(runs, into, lost=self.lost).run
        if self.settings.store is not None:
            keep_failures(found, FailureStore(self.settings.store), ())
        return found
