"""Of which code the runs of a union are, where that is not plain: other builds, and runs that do not say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treeproof.engine.called import called
from treeproof.engine.run_folder import RunMeta
from treeproof.engine.summary import Run


def sources_in_words(runs: Sequence[Run]) -> Iterator[str]:
    """A line for each backend that was compiled otherwise in some run, or whose source some do not name.

    Where a run with a source is held against one without, they are taken to be of the same.
    """
    builds: dict[str, dict[str, list[str]]] = {}
    silent: dict[str, list[str]] = {}
    for run, called_so in zip(runs, called(runs), strict=True):
        for backend in run.meta.backends:
            if backend.source:
                of_backend = builds.setdefault(backend.name, {})
                of_backend.setdefault(backend.compiled, []).append(called_so)
            elif not backend.unavailable:
                silent.setdefault(backend.name, []).append(called_so)
    for name, of_backend in builds.items():
        if len(of_backend) > 1:
            each = " and ".join(_runs(named) for named in of_backend.values())
            yield f"{name} is of one source, and was compiled otherwise in {each}"
    for name, named in silent.items():
        if len(named) + len(builds.get(name, ())) > 1:
            yield f"{_runs(named)} recorded no source of {name}: that it was the same is not known"


def other_builds(one: RunMeta, other: RunMeta) -> Iterator[str]:
    """Backends that are of one source in both and were compiled otherwise."""
    others = {backend.name: backend for backend in other.backends}
    for backend in one.backends:
        twin = others.get(backend.name, backend)
        if backend.source == twin.source and backend.compiled != twin.compiled:
            yield backend.name


def _runs(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if names[3:] else ""
    return f"run{'s' if names[1:] else ''} {', '.join(names[:3])}{more}"
