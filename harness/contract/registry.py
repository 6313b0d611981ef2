"""Backends by name: registering one, finding one, and saying why one cannot be had."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from treeproof.contract.backend import (
    STAGES,
    Backend,
    BackendError,
    BackendUnavailable,
    describe,
)
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.inputs import TENSOR_FIELDS

__all__ = [
    "ENTRY_POINTS",
    "STAGES",
    "Backend",
    "BackendError",
    "BackendUnavailable",
    "describe",
    "entry_points",
    "load",
    "register",
    "register_backend",
    "registered",
]

ENTRY_POINTS = "treeproof.backends"
_FILE_REFERENCE = re.compile(r"(.+\.py)(?::([^:/\\]*))?", re.DOTALL)
_FILE_MODULE = "_treeproof_backend_"

T = TypeVar("T", bound=Callable[..., Any])

_by_name: dict[str, Backend] = {}
"""Backends of importable modules."""
_by_file: dict[str, dict[str, Backend]] = {}
"""Backends of files, by the module a file was loaded as: a namespace each, so none replaces another."""


def register(
    name: str,
    *,
    stages: Iterable[str] | None = None,
    consumes: Iterable[str] = TENSOR_FIELDS,
    capabilities: Capabilities | None = None,
    numerics: Numerics | None = None,
    requires: Iterable[str] = (),
    unavailable: str = "",
    note: str = "",
    kernels: Iterable[str] = (),
) -> Callable[[T], T]:
    """Register a function (one stage) or a class (a method a stage) as a backend.

    `stages` defaults to {"attend"} for a function and to the stage methods of a class.
    `consumes` names the `VerifyInput` tensors that are read; all others reach the backend as
    garbage. `requires` names packages that must be importable, `module` or `module=how to install`;
    `unavailable` says why the backend cannot run here where that is another matter, and what to
    install. `note` is printed by `treeproof backends`.
    `kernels` names those that every launch of `attend` must run, so that a silent fall-back fails:
    Triton kernels by their function, CUDA kernels as a profiler shows them, operators of torch
    (`aten::bmm`). Each is an fnmatch pattern, or several with `|` between them, one of which will do.

    The backend belongs to the module or file that calls `register`. A module that is run again
    replaces its own; each content of a file is a name space of its own. Raises BackendError where a
    name, stage or field is not one of the accepted, or where the name is that of an installed
    backend, of another module's, or given twice in one file.
    """
    home = sys._getframe(1).f_globals

    def decorate(implementation: T) -> T:
        backend = describe(
            implementation,
            name,
            stages=stages,
            consumes=consumes,
            capabilities=capabilities,
            numerics=numerics,
            requires=requires,
            unavailable=unavailable,
            note=note,
            kernels=kernels,
        )
        _add(backend, home["__name__"], home.get("__file__") or "")
        return implementation

    return decorate


def register_backend(backend: Backend) -> None:
    """Register a description that was made elsewhere, as of the module or file that calls this."""
    home = sys._getframe(1).f_globals
    _add(backend, home["__name__"], home.get("__file__") or "")


def _add(backend: Backend, module: str, file: str) -> None:
    name = backend.name
    installed = entry_points().get(name)
    if installed is not None and module.partition(".")[0] != installed.partition(".")[0]:
        raise BackendError(
            f"backend name {name!r} is taken by the installed {installed}: choose another"
        )
    if module.startswith(_FILE_MODULE):
        if name in _by_file[module]:
            raise BackendError(f"backend name {name!r} is registered twice in {file}")
        _by_file[module][name] = replace(backend, source=f"{file}:{name}")
        return
    source = f"{module}:{name}"
    if name in _by_name and _by_name[name].source != source:
        taken = _by_name[name].source.partition(":")[0]
        raise BackendError(f"backend name {name!r} is taken by module {taken}: choose another")
    _by_name[name] = replace(backend, source=source)


def registered(implementation: object) -> Backend | None:
    """The backend that a name, a function or a class is registered as in this process, if it is."""
    if isinstance(implementation, str):
        return _by_name.get(implementation)
    for backends in (_by_name, *_by_file.values()):
        for backend in backends.values():
            stage = getattr(backend.make, next(iter(backend.stages)), None)
            if implementation is backend.make or implementation is stage:
                return backend
    return None


def entry_points() -> Mapping[str, str]:
    """Names of installed backends and the modules behind them. Imports none of them."""
    found = importlib.metadata.entry_points(group=ENTRY_POINTS)
    # Where a name is given twice, the last one stands: no package replaces a backend of ours.
    ours_last = sorted(found, key=lambda point: point.module.startswith("treeproof."))
    return dict(sorted({point.name: point.module for point in ours_last}.items()))


def load(reference: str) -> Backend:
    """A backend by entry point name, `module:name`, `path/to/file.py` or `path/to/file.py:name`.

    A file is run once for each of its contents, so a mended file is loaded anew; it may import modules
    that lie beside it. Raises
    BackendError where there is no such backend (known names are listed) or its module fails, and
    BackendUnavailable where packages are missing.
    """
    file = _FILE_REFERENCE.fullmatch(reference)
    if file is not None:
        path = Path(file[1])
        return _pick(str(path), _run(path), file[2] or "")
    if reference in _by_name:
        return _available(_by_name[reference])
    module, colon, name = reference.partition(":")
    if not colon:
        known = entry_points()
        if reference not in known:
            raise BackendError(
                f"no backend named {reference!r}; known are "
                f"{', '.join(sorted({*known, *_by_name})) or 'none'}. "
                "A file (path/to/backend.py) or module:name may be given too"
            )
        module, name = known[reference], reference
    elif os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())  # as `python -m` would have it
    _import(reference, module)
    # The module itself may register, or one of its package that it imports.
    own = {n: b for n, b in _by_name.items() if _package(b.source) == _package(module)}
    if not name:
        raise BackendError(f"{reference} names no backend: module:name is expected")
    return _pick(module, own, name)


def _package(module: str) -> str:
    return re.split("[.:]", module, maxsplit=1)[0]


def _import(reference: str, module: str) -> None:
    before = dict(_by_name)
    try:
        with _foreign(reference, module):
            importlib.import_module(module)
    except BaseException:
        # A module that failed half way is gone, and so is what it had registered.
        _by_name.clear()
        _by_name.update(before)
        raise


def _run(path: Path) -> Mapping[str, Backend]:
    """The backends that a file registers."""
    if not path.is_file():
        raise BackendError(f"backend file {path}: no such file")
    path = path.resolve()
    try:
        text = path.read_bytes()
    except OSError as error:
        raise BackendError(f"backend file {path}: {error.strerror or error}") from error
    digest = hashlib.blake2b(str(path).encode() + b"\0" + text, digest_size=8).hexdigest()
    module_name = _FILE_MODULE + digest
    if module_name in sys.modules:
        return _by_file[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name], _by_file[module_name] = module, {}
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # modules beside it, as a script would find them
    try:
        with _foreign(str(path), own_file=True):
            # Not through the loader: its cache takes a file mended within a second for the old one.
            exec(compile(text, str(path), "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[module_name], _by_file[module_name]
        raise
    return _by_file[module_name]


@contextmanager
def _foreign(reference: str, module: str = "", *, own_file: bool = False) -> Iterator[None]:
    """What goes wrong in somebody else's code while it is imported, as an error that says where.

    A module that is missing makes an installed backend unavailable. In a file that was named to be
    run it is as likely a slip of the pen, and an error.
    """
    try:
        yield
    except (BackendError, BackendUnavailable, KeyboardInterrupt):
        raise
    except ModuleNotFoundError as error:
        missing = error.name
        if missing and f"{module}.".startswith(f"{missing}."):
            raise BackendError(f"backend {reference}: no module named {missing}") from error
        hint = f"; pip install {_package(missing)}" if missing else ""
        if own_file:
            raise BackendError(f"{_failed(reference, error)}{hint}, or mend its name") from error
        raise BackendUnavailable(f"{reference}: {error}{hint}") from error
    except BaseException as error:  # SystemExit, too, and what pytest raises to skip
        raise BackendError(_failed(reference, error)) from error


def _failed(reference: str, error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if f.filename != __file__ and not f.filename.startswith("<")]
    where = f" ({inside[-1].filename}, line {inside[-1].lineno})" if inside else ""
    return f"backend {reference} fails on import: {type(error).__name__}: {error}{where}"


def _pick(where: str, own: Mapping[str, Backend], name: str) -> Backend:
    if name and name not in own:
        raise BackendError(
            f"{where} registers no backend {name!r}; it registers {', '.join(own) or 'none'}"
        )
    if not own:
        raise BackendError(f"{where} registers no backend: @treeproof.register(name) is missing")
    if not name and len(own) > 1:
        raise BackendError(
            f"{where} registers {len(own)} backends ({', '.join(own)}): name one as {where}:name"
        )
    return _available(own[name or next(iter(own))])


def _available(backend: Backend) -> Backend:
    if backend.unavailable:
        raise BackendUnavailable(backend.unavailable)
    for requirement in backend.requires:
        module, _, how = requirement.partition("=")
        try:
            present = importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):
            present = False
        if not present:
            raise BackendUnavailable(
                f"package {module} is not installed; {how or 'pip install ' + _package(module)}"
            )
    return backend
