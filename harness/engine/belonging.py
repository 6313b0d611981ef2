"""Which runs belong together: those of which each verdict means the same. All others have no union."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from treeproof.contract.known_failure import KnownFailure
from treeproof.contract.wire import FileError
from treeproof.engine.run_folder import BackendMeta, RunMeta
from treeproof.engine.shards import Shard

DECISIVE = ("profile", "dtype", "identities", "trees", "prefixes", "examples", "endless")
"""Settings that say what is drawn and judged; runs that differ in one have no union.

So do seed, versions, ledger, kind of device, the name of a GPU, what a backend says of itself, and its
source. Everything else is harmless: when and where a run was made and with how many workers, how long it
was given, the name of a CPU, the number of a GPU, and the folder that a backend's file lies in.
"""
_COUNT = re.compile(r"\b\d+ x ")
"""Before the name of a GPU that there are several of."""


@dataclass
class Belonging:
    """Runs that belong together, one after another."""

    _first: tuple[Path, RunMeta] | None = None
    _of_backend: dict[str, tuple[Path, RunMeta]] = field(default_factory=dict)
    """The first run that could have each backend: the others are held against that one."""

    def add(self, path: Path, meta: RunMeta) -> None:
        """Take in a run. Raises FileError naming two runs and all in which they differ."""
        self._first = self._first or (path, meta)
        able = [backend.name for backend in meta.backends if not backend.unavailable]
        known = [self._of_backend[name] for name in able if name in self._of_backend]
        for other, its in {
            str(path): (path, meta) for path, meta in [self._first, *known]
        }.values():
            found = list(differing(its, meta))
            if found:
                raise FileError(
                    f"{other} and {path} have no union; they differ in {', '.join(found)}"
                )
        for name in able:
            self._of_backend.setdefault(name, (path, meta))


def shard_of(meta: RunMeta) -> Shard:
    """The part of what was asked for that a run is."""
    return msgspec.convert(meta.settings.get("shard", {"number": 1, "count": 1}), Shard)


def differing(one: RunMeta, other: RunMeta) -> Iterator[str]:
    """All in which two runs are not the same, in words: the thing, and both its values."""
    for name, before, after in _compared(one, other):
        if before != after:
            yield f"{name} ({_shown(before)} and {_shown(after)})"


def _compared(one: RunMeta, other: RunMeta) -> Iterator[tuple[str, Any, Any]]:
    for package in sorted({*one.versions, *other.versions}):
        yield package, one.versions.get(package), other.versions.get(package)
    yield "seed", one.seed, other.seed
    yield "number of shards", shard_of(one).count, shard_of(other).count
    for name in DECISIVE:
        yield name, one.settings.get(name), other.settings.get(name)
    before, after = (meta.device.partition(":")[0] for meta in (one, other))
    yield "device", before, after
    if before == after == "cuda":
        yield "GPU", _COUNT.sub("", one.device_name), _COUNT.sub("", other.device_name)
    yield from _ledgers(one, other)
    others = {backend.name: backend for backend in other.backends}
    for backend in one.backends:
        twin = others.get(backend.name, backend)
        if not (backend.unavailable or twin.unavailable):
            yield from _backends(backend, twin)


def _ledgers(one: RunMeta, other: RunMeta) -> Iterator[tuple[str, Any, Any]]:
    """Of the first entry in which they differ."""
    ledgers = [{entry.number: entry for entry in meta.ledger} for meta in (one, other)]
    for number in sorted({*ledgers[0], *ledgers[1]}):
        before, after = (ledger.get(number) for ledger in ledgers)
        if before is None or after is None:
            yield f"entry {number} of the ledger", _entry(before), _entry(after)
            return
        if before != after:
            for name in KnownFailure.__struct_fields__:
                said = f"{name} of entry {number} of the ledger"
                yield said, getattr(before, name), getattr(after, name)
            return


def _entry(entry: KnownFailure | None) -> str | None:
    return None if entry is None else f"{entry.backend} {entry.identity} {entry.kind}"


def _backends(one: BackendMeta, other: BackendMeta) -> Iterator[tuple[str, Any, Any]]:
    for name in ("stages", "kernels", "cache_layouts"):
        yield f"{name.replace('_', ' ')} of {one.name}", getattr(one, name), getattr(other, name)
    if one.source and other.source:  # an older run does not say it
        yield f"source of {one.name}", f"digest {one.source}", f"digest {other.source}"


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
