"""What the union of several runs says of itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from treeproof.engine.belonging import Belonging, shard_of
from treeproof.engine.run_folder import BackendMeta, RunMeta
from treeproof.engine.shards import WHOLE
from treeproof.engine.summary import Run


def merged_meta(runs: Sequence[Run], into: Path) -> RunMeta:
    """meta.json of the union, which is written into a folder. Raises FileError naming two runs and all in which they differ."""
    first, together = runs[0], Belonging()
    for run in runs:
        together.add(run.folder.path, run.meta)
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
            of_backend.setdefault(backend.name, set()).add(shard_of(run.meta).number)
    count = shard_of(runs[0].meta).count
    for name, there in of_backend.items():
        absent = sorted(set(range(1, count + 1)) - there)
        if absent:
            named = ", ".join(f"{number}/{count}" for number in absent)
            yield f"shard{'s' if absent[1:] else ''} {named} of backend {name} not among the runs"
