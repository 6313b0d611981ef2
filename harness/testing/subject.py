"""What a caller means by a backend: a name, a file, a function, a class or an object."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from treeproof.contract.backend import Backend, describe
from treeproof.contract.registry import load, registered


def backend_of(given: object) -> Backend:
    """The backend that is meant, loaded.

    Raises BackendError where there is none or it fails on import, BackendUnavailable where its
    packages are missing.
    """
    if isinstance(given, str | Path):
        return load(str(given))
    known = registered(given)
    if known is None:
        return describe(given, backend_name(given))
    return load(known.name if registered(known.name) is known else known.source)


def word_for(given: object) -> str:
    """What a reader would call it."""
    if isinstance(given, str | Path):
        return str(given)
    return str(getattr(given, "__name__", type(given).__name__))


def backend_name(given: object) -> str:
    """A name that backends may have, for one that is registered nowhere."""
    name = re.sub(r"[^a-z0-9._-]+", "-", word_for(given).lower()).strip("-._")
    return name[:64] or "backend"


def reference_of(given: object) -> str:
    """How a command line finds it; empty for what is registered nowhere."""
    if isinstance(given, Path):
        return str(from_here(given))
    if isinstance(given, str):
        return given
    known = registered(given)
    if known is None:
        return ""
    module, _, name = known.source.rpartition(":")
    file = inspect.getsourcefile(given) if callable(given) else None
    # A test module is imported from wherever pytest found it; its file is found by its path.
    return known.source if file is None or "." in module else f"{from_here(Path(file))}:{name}"


def from_here(path: Path) -> Path:
    """Relative to the current folder where it lies in it, as one would type it."""
    absolute, here = path.absolute(), Path.cwd()
    return absolute.relative_to(here) if absolute.is_relative_to(here) else absolute
