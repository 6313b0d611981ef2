"""Has a backend changed? Digests of its source, and of all that it imports.

They decide what a short run begins with, and which runs are of the same code, but no verdict: what cannot
be followed, such as a module whose name is made up while the program runs, is left out.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import sys
import sysconfig
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePosixPath

MOST_FILES = 400
"""Of one backend; a whole engine that is installed for editing would take seconds to read."""


WRITTEN = (".py", ".cu", ".cuh")
"""Files that somebody wrote; all others are made of such ones."""


@dataclass(frozen=True)
class Digests:
    """`source` of what was written, `compiled` of all else: two hosts that compile the same source
    need not come to the same bytes."""

    source: str
    compiled: str


@dataclass(frozen=True)
class _Module:
    """A file of source, and the name that its relative imports go by; empty of a file that is run."""

    name: str
    path: Path

    @property
    def package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


def source_digest(source: str) -> Digests:
    """Of a backend that is loaded in this process; `source` is where it was registered, as its
    description says it: `path/to/file.py:name` or `module:name`.

    Of packages that are installed the installer's own list of digests is taken, of all else the files:
    Python's are followed to what they import.
    """
    locate = cache(_locate)
    start = _start(source)
    seen: dict[Path, str] = {}
    installed: set[str] = set()
    waiting = deque([start] if start else [])
    while waiting and len(seen) < MOST_FILES:
        module = waiting.popleft()
        if module.path in seen:
            continue
        try:
            data = module.path.read_bytes()
        except OSError:  # then Python could not import it either
            continue
        seen[module.path] = hashlib.blake2b(data, digest_size=16).hexdigest()
        if module.path.suffix != ".py":
            continue
        for name in _imports(data, module.package):
            found = locate(name)
            if found is None or not _followed(found, module):
                installed.add(name.partition(".")[0])
            elif found.path not in seen:
                waiting.append(found)
    installed -= {
        *sys.stdlib_module_names,
        "treeproof",
    }  # these have a version, and every run says it
    packages = sorted(name for name in installed if locate(name) is not None)

    def digest(written: bool) -> str:
        # Where a file lies is not what it says: a checkout elsewhere is the same source.
        own = sorted(said for path, said in seen.items() if (path.suffix in WRITTEN) == written)
        return _digest([*own, *(_record(name, written) for name in packages)])

    return Digests(digest(True), digest(False))


def _start(source: str) -> _Module | None:
    where = source.rpartition(":")[0]
    return _Module("", Path(where)) if where.endswith(".py") else _locate(where)


def _imports(data: bytes, package: str) -> Iterator[str]:
    """Names of modules that a file may import, at its top or in a function; also names that are none."""
    try:
        tree = ast.parse(data)
    except (
        SyntaxError,
        ValueError,
        RecursionError,
        MemoryError,
    ):  # nothing for this Python to import
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _and_above(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            if base:
                yield from _and_above(base)
                yield from (f"{base}.{alias.name}" for alias in node.names)


def _and_above(name: str) -> Iterator[str]:
    """A module and the packages that are imported on the way to it."""
    parts = name.split(".")
    yield from (".".join(parts[:i]) for i in range(1, len(parts) + 1))


def _locate(name: str) -> _Module | None:
    """The file of a module, without importing it."""
    spec: ModuleSpec | None = None
    locations: list[str] | None = None
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        spec = _find(".".join(parts[:i]), locations)
        if spec is None:
            return None
        locations = list(spec.submodule_search_locations or ()) or None
        if locations is None and i < len(parts):
            return None
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    path = Path(spec.origin)
    return _Module(name, path) if path.is_file() else None


def _find(name: str, locations: list[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, locations)
        except Exception:
            # Finders are somebody else's, the name may be none, and Python's own wants the parent of a
            # folder without __init__.py imported: what is not found so is left out.
            continue
        if spec is not None:
            return spec
    return None


def _followed(found: _Module, by: _Module) -> bool:
    """Own files are; of installed packages there is a list."""
    if found.name.startswith("treeproof."):
        return found.name.startswith("treeproof.backends.") and by.name.startswith("treeproof.")
    if found.name == "treeproof":
        return False
    return not any(found.path.is_relative_to(place) for place in _installed_places())


@cache
def _installed_places() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple(Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@cache
def _record(package: str, written: bool) -> str:
    """What an installed package is: the digests of its files, as the installer listed them."""
    lists = [
        f"{found.name} {found.version} {_digest(_files(found.read_text('RECORD') or '', written))}"
        for found in _distributions(package)
    ]
    return f"{package}: {', '.join(lists)}"


def _files(record: str, written: bool) -> list[str]:
    """Lines of files with a digest. Scripts name the interpreter that they were installed for, and what
    is said of the package who installed it, and from where: neither is the package."""
    found = []
    for line in record.splitlines():
        name, is_listed, _ = line.rpartition(",sha256=")
        path = PurePosixPath(name)
        outside = path.parts[:1] == ("..",) or ".dist-info" in path.parent.name
        if is_listed and not outside and (path.suffix in WRITTEN) == written:
            found.append(line)
    return sorted(found)


def _digest(lines: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


def _distributions(package: str) -> list[importlib.metadata.Distribution]:
    """What was installed and has this package at its top; most are called as it is."""
    try:
        return [importlib.metadata.distribution(package)]
    except importlib.metadata.PackageNotFoundError:
        names = _names_of_distributions().get(package, ())
        return [importlib.metadata.distribution(name) for name in sorted(set(names))]


@cache
def _names_of_distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()
