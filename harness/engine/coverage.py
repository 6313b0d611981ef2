"""What each backend was checked on from run to run, kept so that a short run goes where that is least."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from filelock import FileLock

from treeproof.contract.wire import FileError, read_bytes, write_atomically
from treeproof.engine.completed import COMPLETED
from treeproof.engine.summary import Run


class Covered(msgspec.Struct, frozen=True, kw_only=True):
    """Of one backend on one kind of device, as its source is now."""

    source: str = ""
    """Digest of that source."""
    whole: bool = False
    """A run of a whole profile left nothing of it unchecked."""
    tags: dict[str, int] = {}
    """Event class to the cases that it was judged on."""


@dataclass(frozen=True)
class CoverageStore:
    """One file a backend in `root/covered`; `device` is `cpu` or `cuda`."""

    root: Path
    device: str

    def read(self, sources: Mapping[str, str]) -> dict[str, Covered]:
        """What is known of backends with these sources; nothing of one that has changed.

        Raises FileError naming a file that does not read.
        """
        found = {}
        for name, source in sources.items():
            known = self._read(self._path(name))
            found[name] = known if known.source == source else Covered(source=source)
        return found

    def add(self, sources: Mapping[str, str], run: Run, *, ended: bool) -> None:
        """What a run has added to it; `ended`: it was not interrupted.

        Raises OSError where it cannot be written, FileError where what is there does not read.
        """
        judged = _judged(run)
        self.root.mkdir(parents=True, exist_ok=True)
        with FileLock(self.root / "covered.lock"):
            for name, known in self.read(sources).items():
                tags = Counter(known.tags) + judged.get(name, Counter())
                whole = known.whole or (ended and _whole(run, name))
                new = Covered(source=known.source, whole=whole, tags=dict(sorted(tags.items())))
                if new.tags:
                    write_atomically(
                        self._path(name), msgspec.json.format(msgspec.json.encode(new))
                    )

    def _path(self, name: str) -> Path:
        return self.root / "covered" / f"{name}@{self.device}.json"

    def _read(self, path: Path) -> Covered:
        if not path.exists():
            return Covered()
        try:
            return msgspec.json.decode(read_bytes(path), type=Covered)
        except msgspec.DecodeError as error:
            raise FileError(f"{path}: {error}; it may be deleted") from error


def _judged(run: Run) -> dict[str, Counter[str]]:
    tags = {case.case: case.tags for case in run.cases}
    found: dict[str, Counter[str]] = {}
    for check in run.checks:
        if any(cell.status in COMPLETED for cell in check.cells):
            found.setdefault(check.backend, Counter()).update(tags[check.case])
    return found


def _whole(run: Run, backend: str) -> bool:
    """Whether the run was asked for all of a profile, and got through all of it with this backend."""
    asked: Iterable[object] = (
        run.meta.settings.get(name) for name in ("examples", "trees", "identities", "endless")
    )
    return not any(asked) and not run.shard and backend not in run.left
