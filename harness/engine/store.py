"""Failures kept from run to run: replayed first, dropped once they pass."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from treeproof.contract.event import Checked
from treeproof.contract.wire import (
    Reproducer,
    decode_reproducer,
    encode_reproducer,
    read_bytes,
    write_atomically,
)
from treeproof.engine.run_folder import file_name


@dataclass(frozen=True)
class Saved:
    """A kept failure of the backend registered as `backend`."""

    backend: str
    path: Path
    reproducer: Reproducer

    def still_fails(self, checked: Checked) -> bool:
        key = (self.reproducer.failure.identity, self.reproducer.failure.kind)
        return any(failure.key == key for failure in checked.failures)

    def passes(self, checked: Checked) -> bool:
        """Whether the check proves that it is fixed: the identity was judged and held."""
        statuses = {
            cell.status for cell in checked.cells
            if cell.identity == self.reproducer.failure.identity
        }  # fmt: skip
        return "pass" in statuses and not self.still_fails(checked)


@dataclass(frozen=True)
class FailureStore:
    """Reproducers in `root/failures`, one for each backend, identity and kind."""

    root: Path

    def saved(self, backends: Collection[str]) -> list[Saved]:
        """What is kept for these backends. Raises FileError naming a file that does not read."""
        with self._lock():
            return [
                Saved(folder.name, path, decode_reproducer(read_bytes(path), str(path)))
                for folder in sorted(self._folder.glob("*"))
                if folder.name in backends
                for path in sorted(folder.glob("*.json"))
            ]

    def save(self, backend: str, reproducer: Reproducer) -> None:
        """Keep a failure, in place of the one known by the same backend, identity and kind."""
        key = reproducer.failure
        path = self._folder / backend / file_name(key.identity, key.kind)
        with self._lock():
            write_atomically(path, encode_reproducer(reproducer))

    def drop(self, saved: Saved) -> None:
        with self._lock():
            saved.path.unlink(missing_ok=True)

    @property
    def _folder(self) -> Path:
        return self.root / "failures"

    def _lock(self) -> FileLock:
        self.root.mkdir(parents=True, exist_ok=True)
        return FileLock(self.root / "failures.lock")
