"""How faults are planted: a stage wrapped from outside, or a backend's own text edited.

A boundary fault wraps a stage, so it can be planted into any backend that has the stage. An
interior one replaces exact text of a backend's module, which is then run under another name; where
the text is not found exactly once, planting fails rather than plant nothing.
"""

from __future__ import annotations

import hashlib
import importlib
import linecache
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from treeproof.contract.backend import Backend, BackendError, describe

Around = Callable[..., Any]
"""`around(right, *arguments)`: what a stage does instead; `right` is the stage as it was."""

_REGISTER = "from treeproof.contract.registry import register\n"

T = TypeVar("T", bound=Callable[..., Any])


class PlantError(BackendError):
    """A fault cannot be planted: the backend's text has changed, or it has no such stage."""


def wrapped(backend: Backend, stage: str, around: Around) -> Backend:
    """The backend with one stage wrapped."""
    return remembering(backend, stage, lambda: around)


def remembering(backend: Backend, stage: str, new: Callable[[], Around]) -> Backend:
    """The backend with one stage wrapped by what `new` returns: a fresh one for each instance.

    For faults that carry something from one call over to the next.
    """
    if stage not in backend.stages:
        raise PlantError(f"{backend.name} has no stage {stage}")

    def make() -> Any:
        instance, around = backend.make(), new()
        right = getattr(instance, stage)
        setattr(instance, stage, lambda *arguments: around(right, *arguments))
        return instance

    return replace(backend, make=make)


def edited(backend: Backend, *edits: tuple[str, str]) -> Backend:
    """The backend out of its own text with each (old, new) replaced; old must occur exactly once."""
    module_name, _, name = backend.source.partition(":")
    module = importlib.import_module(module_name)
    assert module.__file__ is not None
    text = changed(Path(module.__file__), module_name, edits)
    described = _run(text, module_name)
    return replace(described[name], source=backend.source)


def changed(file: Path, module: str, edits: Iterable[tuple[str, str]]) -> str:
    """The text of a module's file with each (old, new) replaced; old must occur exactly once."""
    text = file.read_text("utf-8")
    for old, new in edits:
        found = text.count(old)
        if found != 1:
            raise PlantError(f"{module} holds this text {found} times, not once: {old!r}")
        text = text.replace(old, new)
    return text


def _run(text: str, original: str) -> dict[str, Backend]:
    """Run the text of a module under a name of its own; the backends that it describes."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    found: dict[str, Backend] = {}

    def register(name: str, **described: Any) -> Callable[[T], T]:
        def decorate(implementation: T) -> T:
            found[name] = describe(implementation, name, **described)
            return implementation

        return decorate

    module = ModuleType(f"{original}.planted_{digest}")
    file = f"<{module.__name__}>"
    # The module registers itself when it is run; its planted twin must not take its place.
    text = text.replace(_REGISTER, "register = __planted_register__\n")
    module.__dict__["__planted_register__"] = register
    sys.modules[module.__name__] = module  # dataclasses look their module up
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec", dont_inherit=True), module.__dict__)
    return found
