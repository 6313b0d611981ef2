"""A faulty backend as a file, which workers, `treeproof check` and a debugger can load."""

from __future__ import annotations

from pathlib import Path

_TEXT = '''"""The backend {backend} with a fault planted: {says}"""

from treeproof.contract.registry import load, register_backend
from treeproof.faults.catalog import named

(fault,) = named(({fault!r},))
register_backend(fault.into(load({backend!r})))
'''


def planted_file(fault: str, backend: str, folder: Path) -> Path:
    """Write it; returns its path."""
    from treeproof.faults.catalog import named

    (known,) = named((fault,))
    path = folder / f"{fault}-in-{backend}.py"
    path.write_text(_TEXT.format(fault=fault, backend=backend, says=known.says), "utf-8")
    return path
