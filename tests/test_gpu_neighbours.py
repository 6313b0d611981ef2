"""The script of bad neighbours on a GPU: its kernels compile for one, and its judgement, on the CPU."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CI = Path(__file__).resolve().parent.parent / "ci"
MISSING = importlib.util.find_spec("triton") is None
needs_triton = pytest.mark.skipif(
    MISSING and os.environ.get("TREEPROOF_REQUIRE_OPTIONAL") != "1",
    reason="not installed: triton (pip install triton)",
)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(CI)
    yield importlib.import_module("gpu_neighbours")
    for name in ("gpu_neighbours", "neighbours", "harm"):
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.long
@needs_triton
def test_neighbours_are_blamed_and_right_ones_are_judged_as_without_them(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    few = {name: script.BAD["cpu"][name] for name in ("writes-neighbour", "kills-its-process")}
    monkeypatch.setitem(script.BAD, "cpu", few)
    monkeypatch.setattr(script, "SECONDS", dict.fromkeys(script.SECONDS, 300.0))
    result = script.tried(tmp_path, "cpu", sanitize=False)

    assert script.wrong(result) == []
    assert [one["found"] for one in result["bad"]] == [["kv written-elsewhere"], ["contract crash"]]
    assert result["losses"] == ["kills-its-process: crash"]


RIGHT = [
    {"backend": "a", "checks": 2, "failures": 0, "intact": True},
    {"backend": "b", "checks": 2, "failures": 0, "intact": True},
]
NAMED = """  compute-sanitizer: Invalid __global__ read of size 2 bytes
  in kernel blend (bad_kernels.py:39), 8 times
  case of 2 requests
"""
RESULT: dict[str, Any] = {
    "state": "tried",
    "seconds": {},
    "right": RIGHT,
    "bad": [{"backend": "spins", "found": ["contract hang"], "says": "no progress", "wrong": []}],
    "sanitized": [{"backend": "reads-beyond", "said": f"FAILED  …\n{NAMED}"}],
}


def test_what_is_not_as_it_must_be_is_said(script: ModuleType) -> None:
    assert script.wrong(RESULT) == []
    assert "2 bytes in kernel blend (bad_kernels.py:39), 8 times\n" in script.shown(RESULT)
    for change, said in (
        (lambda r: r["right"][0].update(intact=False), "a: other verdicts beside bad neighbours"),
        (lambda r: r["right"][1].update(checks=1), "b alone: 1 checks, 0 failures"),
        (lambda r: r["right"][1].update(failures=1), "b alone: 2 checks, 1 failures"),
        (lambda r: r["bad"][0]["wrong"].append("no case"), "spins: no case"),
        (
            lambda r: r["sanitized"][0].update(said="FAILED\n"),
            "reads-beyond: compute-sanitizer does not name its kernel",
        ),
    ):
        other = deepcopy(RESULT)
        change(other)
        assert script.wrong(other) == [said]
        assert f"wrong: {said}" in script.shown(other)


def test_a_check_that_cannot_run_is_no_pass(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "RIGHT", ("no-such-backend", "page-table"))
    monkeypatch.setattr(
        sys, "argv", ["gpu_neighbours.py", "--device", "cpu", "--out", str(tmp_path / "out")]
    )
    assert script.main() == 3
    result = json.loads((tmp_path / "out" / "neighbours.json").read_text())
    assert "no-such-backend" in result["said"]["without"]


COMPILE = """
import sys
from unittest import mock

sys.path.insert(0, sys.argv[1])
with mock.patch("treeproof.backends.adapters.triton_mode.interpreted", return_value=False):
    import bad_kernels
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

for kernel, signature in (
    (bad_kernels.blend, {"out": "*fp16", "source": "*fp16", "offset": "i64"}),
    (bad_kernels.overwrite, {"cache": "*fp16", "offset": "i64"}),
    (bad_kernels.wait_for, {"flag": "*i32"}),
    (bad_kernels.require, {"flag": "*i32"}),
):
    source = ASTSource(kernel, signature, {})
    done = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"debug": kernel.debug})
    print(kernel.__name__, done.asm["ptx"].replace("\\n", " "))
"""


@pytest.mark.long
@needs_triton
def test_the_kernels_compile_for_a_gpu_and_none_is_optimised_away() -> None:
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, str(CI)], capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr
    code = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert "st.global" in code["blend"]
    assert "st.global" in code["overwrite"]
    assert code["wait_for"].count("ld.volatile.global") == 2
    assert "__assertfail" in code["require"]
