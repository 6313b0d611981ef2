"""What the union of several runs says of itself, and which runs have none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from treeproof.contract.wire import FileError
from treeproof.engine.run_folder import BackendMeta, RunMeta
from treeproof.engine.shards import WHOLE, Shard
from treeproof.engine.summary import Run

DECISIVE = ("profile", "dtype", "identities", "trees", "prefixes", "examples", "endless")
"""Settings that say what is drawn and judged; runs that differ in one have no union.

So do seed, versions, ledger, kind of device, the name of a GPU, and what a backend says of itself.
Everything else is harmless: when and where a run was made and with how many workers, how long it
was given, the name of a CPU, the number of a GPU, and the folder that a backend's file lies in.
"""


def merged_meta(runs: Sequence[Run], into: Path) -> RunMeta:
    """meta.json of the union, which is written into a folder. Raises FileError naming two runs and all in which they differ."""
    first = runs[0]
    for other in runs[1:]:
        differing = _differing(first.meta, other.meta)
        if differing:
            raise FileError(
                f"{first.folder.path} and {other.folder.path} have no union; they differ in "
                f"{', '.join(differing)}"
            )
    backends: dict[str, BackendMeta] = {}
    for run in runs:
        for backend in run.meta.backends:
            known = backends.setdefault(backend.name, backend)
            if known.unavailable and not backend.unavailable:
                backends[backend.name] = backend  # one host is enough
    return msgspec.structs.replace(
        first.meta,
        started=min(run.meta.started for run in runs),
        settings={
            **first.meta.settings,
            "backends": [backend.reference for backend in backends.values()],
            "run_dir": str(into),
            "shard": msgspec.to_builtins(WHOLE),
        },
        command=("treeproof", "merge", *(str(r.folder.path) for r in runs), "-o", str(into)),
        backends=tuple(backends.values()),
        parts=tuple(part for run in runs for part in run.meta.parts or (run.folder.path.name,)),
        damage=(*(damage for run in runs for damage in run.damage), *_absent(runs)),
    )


def _absent(runs: Sequence[Run]) -> Iterator[str]:
    """Shards that a backend was not checked in, in words."""
    of_backend: dict[str, set[int]] = {}
    for run in runs:
        for backend in run.meta.backends:
            of_backend.setdefault(backend.name, set()).add(_shard(run.meta).number)
    count = _shard(runs[0].meta).count
    for name, there in of_backend.items():
        absent = sorted(set(range(1, count + 1)) - there)
        if absent:
            named = ", ".join(f"{number}/{count}" for number in absent)
            yield f"shard{'s' if absent[1:] else ''} {named} of backend {name} not among the runs"


def _shard(meta: RunMeta) -> Shard:
    return msgspec.convert(meta.settings.get("shard", {"number": 1, "count": 1}), Shard)


def _differing(one: RunMeta, other: RunMeta) -> list[str]:
    found = []

    def compare(name: str, before: Any, after: Any) -> None:
        if before != after:
            found.append(f"{name} ({_shown(before)} and {_shown(after)})")

    for package in sorted({*one.versions, *other.versions}):
        compare(package, one.versions.get(package), other.versions.get(package))
    compare("seed", one.seed, other.seed)
    compare("number of shards", _shard(one).count, _shard(other).count)
    for name in DECISIVE:
        compare(name, one.settings.get(name), other.settings.get(name))
    kinds = [meta.device.partition(":")[0] for meta in (one, other)]
    compare("device", *kinds)
    if kinds == ["cuda", "cuda"]:
        compare("GPU", one.device_name, other.device_name)
    if one.ledger != other.ledger:
        found.append("their ledgers")
    others = {backend.name: backend for backend in other.backends}
    for backend in one.backends:
        twin = others.get(backend.name, backend)
        if not (backend.unavailable or twin.unavailable):
            for name in ("stages", "kernels", "cache_layouts"):
                said = name.replace("_", " ")
                compare(f"{said} of {backend.name}", getattr(backend, name), getattr(twin, name))
    return found


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
