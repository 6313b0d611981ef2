"""The ground floor imports nothing heavy, and nothing from the floors above it."""

import subprocess
import sys
from pathlib import Path

import pytest

import treeproof.contract

MODULES = sorted(
    f"treeproof.contract.{file.stem}"
    for file in Path(treeproof.contract.__path__[0]).glob("*.py")
    if file.stem != "__init__"
)
HEAVY = {"torch", "numpy", "hypothesis", "click", "rich", "pebble"}


def imported_by(statement: str) -> set[str]:
    script = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("module", MODULES)
def test_a_module_of_the_contract_imports_nothing_heavy(module: str) -> None:
    loaded = imported_by(f"import {module}")
    assert module in loaded
    assert not loaded & HEAVY
    ours = {name for name in loaded if name.startswith("treeproof.")}
    assert ours <= {"treeproof.contract", *MODULES}


def test_an_import_of_torch_would_be_seen() -> None:
    assert "torch" in imported_by("import treeproof.contract.wire, torch") & HEAVY
