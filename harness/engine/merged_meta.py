"""What the union of several runs says of itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from treeproof.engine.belonging import Belonging, shard_of
from treeproof.engine.called import called
from treeproof.engine.run_folder import BackendMeta, RunMeta
from treeproof.engine.shards import WHOLE
from treeproof.engine.summary import Run


def merged_meta(runs: Sequence[Run], into: Path) -> RunMeta:
    """meta.json of the union, which is written into a folder. Raises FileError naming two runs and all in which they differ."""
    first, together = runs[0], Belonging()
    for run in runs:
        together.add(run.folder.path, run.meta)
    backends: dict[str, BackendMeta] = {}
    for _, backend in _backends(runs):
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
        parts=tuple(
            part
            for run, name in zip(runs, called(runs), strict=True)
            for part in run.meta.parts or (name,)
        ),
        damage=(*(damage for run in runs for damage in run.damage), *_absent(runs)),
    )


def _backends(runs: Sequence[Run]) -> list[tuple[int, BackendMeta]]:
    """Those of each run, with the number of its shard. One that cannot be loaded goes by the name that it
    has where it can be."""
    listed = [(shard_of(run.meta).number, b) for run in runs for b in run.meta.backends]
    names = {b.reference: b.name for _, b in listed if not b.unavailable}
    return [
        (
            shard,
            msgspec.structs.replace(b, name=names.get(b.reference, b.name)) if b.unavailable else b,
        )
        for shard, b in listed
    ]


def _absent(runs: Sequence[Run]) -> Iterator[str]:
    """Shards that a backend was not checked in, or could not run in, in words."""
    there: dict[str, set[int]] = {}
    able: dict[str, set[int]] = {}
    for number, backend in _backends(runs):
        there.setdefault(backend.name, set()).add(number)
        if not backend.unavailable:
            able.setdefault(backend.name, set()).add(number)
    count = shard_of(runs[0].meta).count
    for name, numbers in there.items():
        if absent := set(range(1, count + 1)) - numbers:
            yield f"{_shards(absent, count)} of backend {name} not among the runs"
        # Where it can run in none, it is unavailable in the union.
        if name in able and (unable := numbers - able[name]):
            yield f"backend {name} could not run in {_shards(unable, count)}"


def _shards(numbers: Collection[int], count: int) -> str:
    named = ", ".join(f"{number}/{count}" for number in sorted(numbers))
    return f"shard{'s' if len(numbers) > 1 else ''} {named}"
