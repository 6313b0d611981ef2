"""Backends that crash, hang, corrupt and leak, in one check beside right ones: each blamed, and alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parent.parent / "ci"

BAD = {
    "reads-far": ("contract", "crash", "SIGSEGV"),
    "reads-beyond": ("visibility", "reads-other-request", ""),
    "writes-neighbour": ("kv", "written-elsewhere", "column 0 of request 1"),
    "hangs": ("contract", "hang", "no progress for 2 s"),
    "raises": ("contract", "raises", "ZeroDivisionError"),
    "asks-to-exit": ("contract", "raises", "SystemExit"),
    "exits": ("contract", "crash", "ended"),
    "aborts": ("contract", "crash", "SIGABRT"),
    "kills-its-process": ("contract", "crash", "SIGKILL"),
    "keeps-outputs": ("contract", "leaks-memory", "memory from malloc grows by"),
    "keeps-files": ("contract", "changes-process", "each of 8 calls leaves one more file open"),
    "takes-files": ("contract", "changes-process", "RLIMIT_NOFILE is 10"),
    "closes-output": ("contract", "changes-process", "stdout is closed"),
    "changes-folder": ("contract", "changes-process", "the current folder is another"),
    "changes-dtype": ("contract", "changes-process", "torch's default dtype"),
    "changes-device": ("contract", "changes-process", "torch's default device"),
    "exits-later": ("contract", "crash", "SIGALRM"),
}


def test_each_is_found_on_its_own_case_and_the_verdicts_of_right_ones_are_those_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(CI)
    from neighbours import Beside, Expected, wrong

    assert harms(CI / "bad_neighbours.py") == [*BAD]
    beside = Beside(
        right=("topology", "cascade", "page-table"),
        file=CI / "bad_neighbours.py",
        bad={name: Expected(*found) for name, found in BAD.items()},
        options=(),
        seconds={"without": 120, "with": 240},
        hangs={"without": 60, "with": 2},
    )
    result, run = beside.tried(tmp_path)

    assert run is not None, result["said"]
    assert wrong(result) == []
    assert run.exit_code == 1
    lost = {"reads-far", "hangs", "exits", "exits-later", "aborts", "kills-its-process"}
    assert {one.partition(":")[0] for one in result["losses"]} == lost
    assert len(result["losses"]) == len(lost)
    for module in ("neighbours", "harm"):
        monkeypatch.delitem(sys.modules, module)


def harms(file: Path) -> list[str]:
    """Their names, read and not run: what is registered here would meet other tests."""
    (table,) = (
        node.value
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "HARMS"
    )
    return list(ast.literal_eval(ast.Dict(table.keys, [ast.Constant(0)] * len(table.keys))))
