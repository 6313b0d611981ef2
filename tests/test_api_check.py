"""check: a whole run from Python, from a script as from a notebook."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import treeproof
from treeproof.contract.backend import BackendError
from treeproof.engine.settings import RunSettings
from treeproof.testing.check import RunOptions

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_options_are_the_fields_of_run_settings() -> None:
    known = {field.name for field in fields(RunSettings)} - {"backends"}
    assert set(RunOptions.__annotations__) == known


def test_a_right_backend_comes_back_clean_and_nothing_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = treeproof.check("cascade", examples=4, workers=0, store=None, run_dir=tmp_path / "run")
    assert isinstance(run, treeproof.Run)
    assert run.exit_code == 0
    assert len(run.cases) == 4
    assert len(run.exercised["cascade"]) == 5
    assert capfd.readouterr() == ("", "")


SCRIPT = """
import treeproof

run = treeproof.check({path!r}, examples=24, workers=1, store=None, run_dir="run", seed=1)
print(run.exit_code, sorted({{group.identity for group in run.failures}}))
"""


def test_a_script_needs_no_main_guard_and_finds_the_fault(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(path=str(EXAMPLES / "faulty_backend.py")))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1 ['output', 'visibility']\n"


NOTEBOOK = """
import treeproof

@treeproof.register("from-a-cell", capabilities=treeproof.Capabilities(windows=False))
def attend(x, q, k, v, k_cache, v_cache):
    raise RuntimeError("not written yet")

run = treeproof.check("from-a-cell", examples=2, store=None, run_dir="run", reduce=False)
print(run.exit_code, {group.kind for group in run.failures})
try:
    treeproof.check("from-a-cell", workers=2)
except ValueError as error:
    print(error)
"""


def test_what_a_notebook_registers_is_checked_in_its_own_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-"], input=NOTEBOOK, cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first == "1 {'raises'}"
    assert second.startswith("workers is 2: from-a-cell is registered in this process only")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"profile": "fast"}, "profile is 'fast': accepted are quick, ci, gpu, nightly"),
        ({"identities": ["mask"]}, "identities is 'mask': accepted are candidate"),
        ({"seed": -2}, "seed is -2"),
        ({"workers": -1}, "workers is -1"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        treeproof.check("cascade", **options)


def test_an_unknown_option_lists_the_known_and_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"check\(\) takes no exmaples.*did you mean examples\?"):
        treeproof.check("cascade", exmaples=3)  # type: ignore[call-arg]


def test_no_backend_is_no_run() -> None:
    with pytest.raises(ValueError, match="backends is empty"):
        treeproof.check()


def test_an_unknown_backend_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="no backend named 'cascad'"):
        treeproof.check("cascad", workers=0, store=None, run_dir=tmp_path / "run")
