"""The folder of a campaign, in which nothing that a part has found is written over.

campaign.json      meta.json of a run of no cases: what every part has to agree with
parts/000012/      a run folder: part 12
parts/000012.1/    part 12 once more, where it was interrupted, does not read any more, or treeproof failed
run/               the union of all parts
under-way/         what is not complete yet; the next start removes it
"""

from __future__ import annotations

import io
import itertools
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from treeproof.contract.wire import FileError, write_atomically
from treeproof.engine.belonging import Belonging, differing
from treeproof.engine.merge import merge
from treeproof.engine.merged_source import other_builds
from treeproof.engine.run_folder import RunFolder, RunMeta, read_meta
from treeproof.engine.settings import SettingsError
from treeproof.engine.summary import INTERRUPTED, OWN_FAULT, Run

_PART = re.compile(r"(\d{6,})(?:\.\d+)?", re.ASCII)


def was_interrupted(run: Run) -> bool:
    return run.finished is None or run.finished.exit_code == INTERRUPTED


def is_whole(run: Run) -> bool:
    """Whether it came to its own end, and all that it wrote is there. Where treeproof itself failed, the
    part is still to be run."""
    ended = run.finished is not None and run.finished.exit_code not in (INTERRUPTED, OWN_FAULT)
    return ended and not run.damage


@dataclass
class CampaignFolder:
    """What there is of a campaign; one process at a time is at it."""

    path: Path
    runs: list[tuple[int, Run]] = field(default_factory=list)
    """Parts that read, by number; one may be there several times."""
    unread: list[tuple[int, str]] = field(default_factory=list)
    """Parts that do not, and why."""
    _whole: set[int] = field(default_factory=set)
    _belonging: Belonging = field(default_factory=Belonging)

    @classmethod
    @contextmanager
    def opened(cls, path: Path) -> Iterator[CampaignFolder]:
        """Make it where it is not there, and read its parts.

        Raises SettingsError where another process is at it, FileError where it cannot be written.
        """
        lock = FileLock(path / ".lock")
        try:
            for name in ("parts", "under-way"):
                (path / name).mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout:
            raise SettingsError(
                f"{path}: another treeproof is at this campaign: wait for it, or name another folder"
            ) from None
        except OSError as error:
            raise FileError(f"{path}: {error.strerror or error}") from error
        try:
            for left in under_way(path).iterdir():  # by one that was killed
                shutil.rmtree(left, ignore_errors=True)
            yield cls._read(path)
        finally:
            shutil.rmtree(under_way(path), ignore_errors=True)
            lock.release()

    @classmethod
    def _read(cls, path: Path) -> CampaignFolder:
        folder = cls(path)
        for part in sorted((path / "parts").iterdir()):
            if match := _PART.fullmatch(part.name):
                try:
                    folder._add(int(match[1]), Run.read(part))
                except FileError as error:
                    folder.unread.append((int(match[1]), str(error)))
        return folder

    def require(self, asked: RunMeta) -> None:
        """What is asked for is what all parts are of. Raises SettingsError saying what is not, and what
        to do."""
        path = self.path / "campaign.json"
        if path.exists():
            known = _known(path)
            found = [*differing(known, asked), *_further(known, asked)]
            if found:
                raise SettingsError(
                    f"{path} says otherwise (then and now): {', '.join(found)}; go on as it was begun, "
                    "or name a new folder"
                )
        self._belonging.add(path, asked)
        for _, run in self.runs:
            try:
                self._belonging.add(run.folder.path, run.meta)
            except FileError as error:
                raise SettingsError(f"{error}: take it out, or name a new folder") from error
        if not path.exists():
            write_atomically(path, msgspec.json.format(msgspec.json.encode(asked)) + b"\n")

    def has(self, part: int) -> bool:
        """Whether a part is there and whole."""
        return part in self._whole

    def _add(self, part: int, run: Run) -> None:
        self.runs.append((part, run))
        if is_whole(run):
            self._whole.add(part)

    def keep(self, part: int, packed: bytes) -> Run:
        """Add a part that came back. Raises FileError where it has no union with the others."""
        first = self.path / "parts" / f"{part:06}"
        further = (first.with_name(f"{first.name}.{n}") for n in itertools.count(1))
        place = next(place for place in itertools.chain([first], further) if not place.exists())
        with self.unpacked(packed) as unpacked:
            self._belonging.add(place, unpacked.read_meta())
            unpacked.path.rename(place)
        run = Run.read(place)
        self._add(part, run)
        return run

    @contextmanager
    def unpacked(self, packed: bytes) -> Iterator[RunFolder]:
        with tempfile.TemporaryDirectory(dir=under_way(self.path)) as place:
            folder = RunFolder(Path(place) / "run")
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                archive.extractall(folder.path, filter="data")
            yield folder

    def unite(self, lost: list[str], *, interrupted: bool) -> Run:
        """All parts as one run, in the place of the last such; what is lost is said, and is no pass.

        Where a part was run again as it was not whole, the first counts for what failed in it alone.
        """
        said = [
            f"part {part} does not read, and was run again: {why}"
            for part, why in self.unread
            if self.has(part)
        ]
        gone = [
            f"part {part} does not read: {why}" for part, why in self.unread if not self.has(part)
        ]
        known = {group.key for _, run in self.runs if is_whole(run) for group in run.failures}
        runs = [
            run
            for part, run in sorted(self.runs, key=lambda one: one[0])
            if is_whole(run)
            or not self.has(part)
            or not known.issuperset(group.key for group in run.failures)
        ]
        place = self.path / "run"
        with tempfile.TemporaryDirectory(dir=under_way(self.path)) as made:
            new = Path(made) / "run"
            merge(runs, new, place=place, lost=[*lost, *gone], said=said, interrupted=interrupted)
            if place.exists():
                place.rename(Path(made) / "before")
            new.rename(place)
        return Run.read(place)


def under_way(campaign: Path) -> Path:
    """Where what is not complete yet is made."""
    return campaign / "under-way"


def seed_of(campaign: Path) -> int | None:
    """The seed of the campaign in a folder; None where there is none yet."""
    path = campaign / "campaign.json"
    return _known(path).seed if path.exists() else None


def _known(path: Path) -> RunMeta:
    try:
        return read_meta(path)
    except FileError as error:
        parts = path.parent / "parts"
        raise FileError(
            f"{error}; without it the campaign cannot go on: name a new folder, or unite what there is by "
            f"treeproof merge {parts}/* -o RUN"
        ) from error


def _further(known: RunMeta, asked: RunMeta) -> Iterator[str]:
    """In what one campaign cannot differ, although runs that do have a union."""
    before, now = (" ".join(meta.settings["backends"]) for meta in (known, asked))
    if before != now:
        yield f"backends ({before} and {now})"
    for name in other_builds(known, asked):
        yield f"{name}, which is compiled otherwise"
