"""A faulty backend as a file, which workers, `treeproof check` and a debugger can load."""

from __future__ import annotations

from pathlib import Path

from treeproof.faults.catalog import exactly

_TEXT = '''"""The backend {backend} with a fault planted: {says}"""

from treeproof.contract.registry import load, register_backend
from treeproof.faults.catalog import exactly

register_backend(exactly({fault!r}).into(load({backend!r})))
'''


def planted_file(fault: str, backend: str, folder: Path) -> Path:
    """Write it; returns its path."""
    path = folder / f"{fault}-in-{backend}.py"
    path.write_text(_TEXT.format(fault=fault, backend=backend, says=exactly(fault).says), "utf-8")
    return path
