"""The script that captures launches on a GPU, on the CPU: there they are planned once and run again."""

from __future__ import annotations

import importlib.util
import sys
from copy import deepcopy
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).resolve().parent.parent / "ci" / "gpu_replay.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_replay", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_fault_is_found_under_its_name_and_the_right_backend_passes(
    script: ModuleType,
) -> None:
    done = script.tried("sdpa-direct-mask", "cpu")
    assert script.wrong(done) == []
    assert len(done["faults"]) == 8

    blind, deaf = deepcopy(done), deepcopy(done)
    blind["faults"]["custom_mask"] = []
    deaf["faults"]["positions"] = ["changes-when-replayed: somehow"]
    deaf["after_the_faults"] = ["raises: CUDA error"]
    assert script.wrong(blind) == ["custom_mask kept: not found; expected captured-mask"]
    assert script.wrong(deaf) == [
        "right after the faults: raises: CUDA error",
        "positions kept: changes-when-replayed: somehow; expected captured-positions",
    ]


def test_a_process_that_dies_is_no_pass(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "__file__", "no_such_file.py")
    monkeypatch.setattr(sys, "argv", ["gpu_replay.py", "page-table", "--device", "cpu"])
    assert script.main() == 3
