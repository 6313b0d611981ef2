"""Faults inside our Triton kernels: an edit of the text of a module that backends import when made.

While such a backend is made, all modules of kernels are imported anew, with the edited one among them;
afterwards the right ones are back in their places.
"""

from __future__ import annotations

import hashlib
import importlib
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from treeproof.contract.backend import Backend
from treeproof.faults.plant import changed

_ABOVE, _FOLDER = "treeproof.backends", "kernels"
_PACKAGE = f"{_ABOVE}.{_FOLDER}"


def kernel_edited(backend: Backend, module: str, *edits: tuple[str, str]) -> Backend:
    """The backend over kernels with each (old, new) replaced in `module` of theirs, once each.

    Raises PlantError where a text is not found exactly once.
    """
    name = f"{_PACKAGE}.{module}"
    file = Path(importlib.import_module(_PACKAGE).__path__[0]) / f"{module}.py"
    text = changed(file, name, edits)
    planted: dict[str, ModuleType] = {}

    def make() -> Any:
        with _in_place(planted):
            if not planted:
                importlib.import_module(_PACKAGE)
                _run(text, name)
            made = backend.make()
            planted.update(_loaded())
        return made

    return replace(backend, make=make)


def _loaded() -> dict[str, ModuleType]:
    return {n: m for n, m in sys.modules.items() if n == _PACKAGE or n.startswith(f"{_PACKAGE}.")}


@contextmanager
def _in_place(planted: dict[str, ModuleType]) -> Iterator[None]:
    """These modules of kernels, and no others, until the end."""
    right = _loaded()
    try:
        _exchange(right, planted)
        yield
    finally:
        _exchange(_loaded(), right)


def _exchange(old: dict[str, ModuleType], new: dict[str, ModuleType]) -> None:
    for name in old:
        del sys.modules[name]
    sys.modules.update(new)
    if _PACKAGE in new:
        setattr(sys.modules[_ABOVE], _FOLDER, new[_PACKAGE])


def _run(text: str, name: str) -> None:
    """Run the text as the module of this name. Triton reads a kernel's source by its file's name."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    file = f"<{name} planted {digest}>"
    module = ModuleType(name)
    module.__file__ = file
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    sys.modules[name] = module
    setattr(sys.modules[_PACKAGE], name.rpartition(".")[2], module)
    exec(compile(text, file, "exec", dont_inherit=True), module.__dict__)
