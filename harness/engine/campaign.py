"""A soak in parts: run anywhere, lost and run again, left off and gone on with, and one run in the end.

Part p of a campaign is units [p * UNITS, (p + 1) * UNITS) of its soak, the same wherever and whenever it
is run. What a part found comes back as one file and lies in the campaign's folder from then on.
"""

from __future__ import annotations

import io
import itertools
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from treeproof.contract.event import Event
from treeproof.contract.registry import BackendError
from treeproof.contract.wire import FileError
from treeproof.engine.campaign_folder import CampaignFolder, was_interrupted
from treeproof.engine.representatives import keep_failures
from treeproof.engine.run_folder import RunFolder, RunMeta
from treeproof.engine.runner import ignore, run
from treeproof.engine.settings import RunSettings, SettingsError
from treeproof.engine.shards import WHOLE
from treeproof.engine.store import FailureStore
from treeproof.engine.summary import Run
from treeproof.engine.worker import CHECKER

UNITS = 8
"""Units of a part: a minute or so on one core, of which its start takes three seconds."""
MOST_TRIES = 3
MOST_BARREN = 3
"""Parts that do not come back, one after another, before no further ones are tried."""
AHEAD = 2
"""Parts handed out for each place, so that none waits for the next."""


class PartLost(Exception):
    """A part did not come back, and why: its place died, or was taken away."""


LOST = (PartLost, BackendError, SettingsError, FileError)
"""What a part may raise that others of its campaign do not: it is run again, elsewhere or later."""


class Places(Protocol):
    """Where parts are run."""

    count: int
    """Parts that run at once."""

    def submit(self, settings: RunSettings, checker: str) -> Future[bytes]:
        """Run one part; `run_part`, somewhere. The future raises PartLost where it did not come back."""

    def stop(self) -> None: ...


def run_part(settings: RunSettings, checker: str = CHECKER, within: Path | None = None) -> bytes:
    """Run one part here, in a folder of its own; the run folder as a compressed tar file.

    Where it is interrupted, that is what it recorded until then. `within`: where its folder is, instead of
    among the temporary ones.
    """
    with tempfile.TemporaryDirectory(prefix="treeproof-part-", dir=within) as place:
        folder = RunFolder(Path(place) / "run")
        try:
            run(replace(settings, run_dir=folder.path), checker=checker)
        except KeyboardInterrupt:
            if not folder.meta_path.exists():  # it had not begun
                raise
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
            archive.add(folder.path, arcname=".")
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

    Parts that an earlier sitting left in `folder` are not run again, and count; those that were interrupted,
    do not read, or in which treeproof itself failed, are. A part that is lost is run again, MOST_TRIES times at most, and so is one that
    came from a place unlike the others. Before any part a run of no cases tells what all of them will be
    like. Raises SettingsError where the folder holds another campaign, or another process is at it, what
    `run` raises where no part can be run, and KeyboardInterrupt where none was.
    """
    if settings.shard != WHOLE:
        raise SettingsError(
            f"shard {settings.shard}: a campaign is cut into parts of its own, and has no shards"
        )
    with CampaignFolder.opened(folder) as opened:
        sitting = _Sitting(settings, opened, places, on_event, cases, checker)
        try:
            sitting.go_on()
        except KeyboardInterrupt:
            sitting.interrupted = True
            sitting.keep_what_is_there()
        return sitting.union()


def units_of(cases: int) -> tuple[int, int]:
    """The units, from the first on, of the whole parts in which so many cases are drawn."""
    from treeproof.generate.units import BLOCK

    return 0, -(-cases // (UNITS * BLOCK)) * UNITS


@dataclass
class _Sitting:
    """A campaign in progress."""

    settings: RunSettings
    folder: CampaignFolder
    places: Places
    on_event: Callable[[Event], None]
    cases: int | None
    checker: str
    started: float = 0.0
    failed: bool = False
    interrupted: bool = False
    barren: int = 0
    """Parts given up since one has come back."""
    tries: Counter[int] = field(default_factory=Counter)
    waiting: dict[Future[bytes], int] = field(default_factory=dict)
    """Parts under way."""
    lost: list[str] = field(default_factory=list)
    """What should be in the union and is not, in words."""

    def go_on(self) -> None:
        """Raises KeyboardInterrupt where a part was interrupted, too."""
        self.folder.require(self._asked())
        self.started = time.monotonic()
        waiting, parts = self.waiting, self._parts()
        again: list[int] = []
        while True:
            while self._has_room and not self._over:
                part = again.pop() if again else next(parts, None)
                if part is None:
                    break
                waiting[self._submit(part)] = part
            if not waiting:
                self.lost += [f"part {part} was lost, and not run again" for part in again]
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                try:
                    found = self._keep(waiting[future], future.result())
                except LOST as error:
                    again += self._lose(waiting[future], error)
                    found = None
                del waiting[future]
                if found is not None and was_interrupted(found):
                    raise KeyboardInterrupt

    def keep_what_is_there(self) -> None:
        """Of the parts under way, those that have come back."""
        for future, part in self.waiting.items():
            if future.done() and future.exception() is None:
                try:
                    self._keep(part, future.result())
                except FileError as error:
                    self._lose(part, error)

    def _asked(self) -> RunMeta:
        """meta.json of a run of no cases. Raises what `run` does where none can begin."""
        none = replace(self._own(0), units=(0, 0))
        for _ in range(MOST_TRIES):
            try:
                packed = self.places.submit(none, self.checker).result()
            except PartLost as error:
                self.lost = [str(error)]
                continue
            self.lost = []
            with self.folder.unpacked(packed) as unpacked:
                found = Run.read(unpacked.path)
            if was_interrupted(found):
                raise KeyboardInterrupt
            return found.meta
        raise SettingsError(": ".join(["no part of the campaign was run", *self.lost]))

    def _parts(self) -> Iterator[int]:
        """Those that are not there yet, in order."""
        most = None if self.cases is None else units_of(self.cases)[1] // UNITS
        every = itertools.count() if most is None else range(most)
        return (part for part in every if not self.folder.has(part))

    @property
    def _has_room(self) -> bool:
        """What has come back is taken in first: it may be the last."""
        came = any(future.done() for future in self.waiting)
        return not came and len(self.waiting) < AHEAD * self.places.count

    @property
    def _over(self) -> bool:
        limit = self.settings.time_limit
        late = limit is not None and time.monotonic() - self.started >= limit
        stopped = self.failed and self.settings.fail_fast
        return late or stopped or self.barren >= MOST_BARREN

    def _own(self, part: int) -> RunSettings:
        return replace(
            self.settings,
            units=(part * UNITS, UNITS),
            time_limit=None,
            store=None,
            run_dir=None,
            # One smallest case of each failure is enough.
            reduce=self.settings.reduce and not self.failed,
        )

    def _submit(self, part: int) -> Future[bytes]:
        return self.places.submit(self._own(part), self.checker)

    def _keep(self, part: int, packed: bytes) -> Run:
        found = self.folder.keep(part, packed)
        self.barren = 0
        self.failed |= bool(found.failures)
        for event in found.events:
            self.on_event(event)
        return found

    def _lose(self, part: int, error: Exception) -> list[int]:
        """The part, where it is to be run again."""
        self.tries[part] += 1
        if self.tries[part] < MOST_TRIES:
            return [part]
        self.barren += 1
        self.lost.append(f"part {part} did not come back: {error}")
        return []

    def union(self) -> Run:
        """All parts that there are as one run."""
        if not self.folder.runs:
            if self.interrupted:
                raise KeyboardInterrupt
            why = [*self.lost, *(why for _, why in self.folder.unread)]
            raise SettingsError(": ".join(["no part of the campaign was run", *why]))
        found = self.folder.unite(self.lost, interrupted=self.interrupted)
        if self.settings.store is not None:
            keep_failures(found, FailureStore(self.settings.store), ())
        return found
