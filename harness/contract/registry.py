"""Backends by name: registering one, finding one, and saying why one cannot be had."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.inputs import TENSOR_FIELDS

ENTRY_POINTS = "treeproof.backends"
STAGES = ("select", "build", "attend", "accept", "commit")
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")

T = TypeVar("T", bound=Callable[..., Any])


class BackendError(Exception):
    """A backend was asked for that is not there, or was registered wrongly. A usage error."""


class BackendUnavailable(Exception):
    """A backend is known but cannot run here; the message says why and what to install."""


@dataclass(frozen=True)
class Backend:
    """One implementation of tree attention, or of some of its stages.

    `make` returns a fresh object whose methods are the stages (and may have `plan` and `close`).
    """

    name: str
    stages: frozenset[str]
    consumes: frozenset[str]
    capabilities: Capabilities
    numerics: Numerics
    requires: tuple[str, ...]
    make: Callable[[], Any]
    source: str
    """How to load it again: an entry point's name, `module:name` or `path.py`."""


_registered: dict[str, Backend] = {}


def register(
    name: str,
    *,
    stages: Iterable[str] | None = None,
    consumes: Iterable[str] = TENSOR_FIELDS,
    capabilities: Capabilities | None = None,
    numerics: Numerics | None = None,
    requires: Iterable[str] = (),
) -> Callable[[T], T]:
    """Register a function (one stage) or a class (a method a stage) as a backend.

    `stages` defaults to {"attend"} for a function and to the stage methods of a class.
    `consumes` names the `VerifyInput` tensors that are read; all others reach the backend as
    garbage. `requires` names packages that must be importable, `module` or `module=how to install`.
    Raises BackendError where a name, stage or field is not one of the accepted.
    """

    def decorate(implementation: T) -> T:
        _registered[name] = describe(
            implementation,
            name,
            stages=stages,
            consumes=consumes,
            capabilities=capabilities,
            numerics=numerics,
            requires=requires,
        )
        return implementation

    return decorate


def describe(
    implementation: Any,
    name: str,
    *,
    stages: Iterable[str] | None = None,
    consumes: Iterable[str] = TENSOR_FIELDS,
    capabilities: Capabilities | None = None,
    numerics: Numerics | None = None,
    requires: Iterable[str] = (),
) -> Backend:
    """A function, a class or an object with stage methods as a backend, registered nowhere.

    The other arguments are those of `register`. An object belongs to its owner: its `close` is not
    called.
    """
    if not NAME.fullmatch(name):
        raise BackendError(f"backend name {name!r}: accepted are names that match {NAME.pattern}")
    own = [stage for stage in STAGES if callable(getattr(implementation, stage, None))]
    has_methods = inspect.isclass(implementation) or bool(own)
    if not has_methods and not callable(implementation):
        raise BackendError(
            f"backend {name} is {type(implementation).__name__}: accepted are a function, a class "
            f"and an object with some of the methods {', '.join(STAGES)}"
        )
    if stages is not None:
        chosen = frozenset(stages)
    else:
        chosen = frozenset(own if has_methods else {"attend"})
    _require_known(name, "stage", chosen, STAGES)
    if not chosen:
        raise BackendError(f"backend {name}: no stage; accepted are {', '.join(STAGES)}")
    if not has_methods and len(chosen) != 1:
        raise BackendError(f"backend {name}: a function is one stage, got {sorted(chosen)}")
    wanted = frozenset(consumes)
    _require_known(name, "consumes", wanted, TENSOR_FIELDS)
    return Backend(
        name=name,
        stages=chosen,
        consumes=wanted,
        capabilities=capabilities or Capabilities(),
        numerics=numerics or Numerics(),
        requires=tuple(requires),
        make=_maker(implementation, name, chosen),
        source=getattr(implementation, "__module__", "") or "",
    )


def _maker(implementation: Any, name: str, stages: Set[str]) -> Callable[[], Any]:
    if inspect.isclass(implementation):
        return implementation
    if len(stages) == 1 and not hasattr(implementation, next(iter(stages))):
        return type(name, (), {next(iter(stages)): staticmethod(implementation)})
    kept = {*stages, *({"plan"} if hasattr(implementation, "plan") else ())}
    return lambda: SimpleNamespace(**{method: getattr(implementation, method) for method in kept})


def registered(implementation: object) -> Backend | None:
    """The backend that a name, a function or a class is registered as in this process, if it is."""
    if isinstance(implementation, str):
        return _registered.get(implementation)
    for backend in _registered.values():
        stage = getattr(backend.make, next(iter(backend.stages)), None)
        if implementation is backend.make or implementation is stage:
            return backend
    return None


def _require_known(backend: str, what: str, given: Set[str], accepted: Iterable[str]) -> None:
    unknown = sorted(given - set(accepted))
    if unknown:
        raise BackendError(
            f"backend {backend}: unknown {what} {', '.join(unknown)}; "
            f"accepted are {', '.join(accepted)}"
        )


def entry_points() -> Mapping[str, str]:
    """Names of installed backends and the modules behind them. Imports none of them."""
    found = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {point.name: point.value for point in sorted(found, key=lambda point: point.name)}


def load(reference: str) -> Backend:
    """A backend by entry point name, `module:name`, `path/to/file.py` or `path/to/file.py:name`.

    Raises BackendError where there is none (known names are listed) and BackendUnavailable where
    its packages are missing.
    """
    path, _, name = reference.partition(".py")
    if reference.endswith(".py") or (name.startswith(":") and Path(path + ".py").exists()):
        return _load_file(Path(path + ".py"), name.removeprefix(":"))
    if ":" in reference:
        module, _, name = reference.partition(":")
        return _import(reference, module, name)
    if reference in _registered:
        return _available(_registered[reference])
    known = entry_points()
    if reference not in known:
        raise BackendError(
            f"no backend named {reference!r}; known are {', '.join(known) or 'none'}. "
            "A file (path/to/backend.py) or module:name may be given too"
        )
    return _import(reference, known[reference], reference)


def _import(reference: str, module: str, name: str) -> Backend:
    before = dict(_registered)
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == module.partition(".")[0]:
            raise BackendError(f"backend {reference}: no module named {error.name}") from error
        raise BackendUnavailable(f"package {missing} is not installed") from error
    return _pick(reference, name, before, module)


def _load_file(path: Path, name: str) -> Backend:
    if not path.is_file():
        raise BackendError(f"backend file {path}: no such file")
    path = path.resolve()
    # One module a file and content: a mended file is loaded anew, the same file only once.
    digest = hashlib.blake2b(str(path).encode() + path.read_bytes(), digest_size=6).hexdigest()
    module_name = f"_treeproof_backend_{digest}"
    before = dict(_registered)
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except ModuleNotFoundError as error:
            del sys.modules[module_name]
            raise BackendUnavailable(f"{path.name} needs {error.name}: {error}") from error
        except BaseException as error:
            del sys.modules[module_name]
            if isinstance(error, KeyboardInterrupt | BackendError):
                raise
            raise BackendError(
                f"backend file {path} fails on import: {type(error).__name__}: {error}"
            ) from error
    return _pick(str(path), name, before, module_name)


def _pick(
    reference: str, name: str, before: Mapping[str, Backend], module: str
) -> Backend:
    own = {n: b for n, b in _registered.items() if b.source == module or before.get(n) is not b}
    if name:
        if name not in own and name not in _registered:
            raise BackendError(
                f"{reference} registers no backend {name!r}; it registers {', '.join(own) or 'none'}"
            )
        found = own.get(name) or _registered[name]
    elif len(own) != 1:
        raise BackendError(
            f"{reference} registers {len(own)} backends ({', '.join(own) or 'none'}): "
            "name one as file.py:name"
        )
    else:
        found = next(iter(own.values()))
    return _available(found)


def _available(backend: Backend) -> Backend:
    for requirement in backend.requires:
        module, _, how = requirement.partition("=")
        try:
            present = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            present = False
        if not present:
            raise BackendUnavailable(
                f"package {module} is not installed; {how or 'pip install ' + module}"
            )
    return backend
