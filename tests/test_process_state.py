"""What a backend changes of the process that it shares is put back, and told, before another one runs."""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from treeproof.backends.page_table import PageTable
from treeproof.contract.backend import describe
from treeproof.contract.registry import load
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.process_state import ProcessState
from treeproof.faults.smallest import FORK, case, request

CASE = case(request(FORK, prefix=3), seed=1)


def in_its_own_process(script: str) -> list[str]:
    """Lines that it prints: streams are closed in it."""
    begin = "import os, sys\nfrom treeproof.engine.process_state import ProcessState\n"
    done = subprocess.run(
        [sys.executable, "-c", begin + script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        ("os.close(1)", "stdout is closed, or leads elsewhere"),
        ("os.dup2(os.open(os.devnull, os.O_WRONLY), 1)", "stdout is closed, or leads elsewhere"),
        ("os.close(2)", "stderr is closed, or leads elsewhere"),
        ("sys.stdout.close()", "sys.stdout is closed"),
        ("os.chdir('/')", "the current folder is another"),
    ],
)
def test_a_stream_that_was_closed_prints_again(harm: str, told: str) -> None:
    script = (
        "here = os.getcwd()\nstate = ProcessState.now()\n"
        f"{harm}\nchanged = state.restore()\n"
        "print(*changed, sep='; ', flush=True)\n"
        "os.write(2, b'')\nassert os.getcwd() == here\nassert state.restore() == []\n"
        "assert 'torch' not in sys.modules"
    )
    assert in_its_own_process(script) == [told]


def test_what_an_import_of_torch_leaves_behind_is_put_back_too() -> None:
    script = (
        "state = ProcessState.now()\nimport torch\ntorch.set_default_dtype(torch.float64)\n"
        "print(*state.restore(), torch.get_default_dtype(), sep='\\n')"
    )
    told = "torch's default dtype is torch.float64, and was torch.float32"
    assert in_its_own_process(script) == [told, "torch.float32"]


@pytest.mark.parametrize("stage", ["build", "attend", "accept", "commit"])
def test_a_stage_is_blamed_for_what_it_leaves_behind_and_for_nothing_else(stage: str) -> None:
    result = check_case(
        CASE, backend(stage, lambda: torch.set_default_dtype(torch.float64)), OPTIONS
    )

    assert {failure.key for failure in result.failures} == {("contract", "changes-process")}
    assert {failure.stage for failure in result.failures} == {stage}
    words = "torch's default dtype is torch.float64, and was torch.float32"
    assert words in result.failures[0].message
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    "harm",
    [
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.set_grad_enabled(False),
        lambda: print("a word"),
        lambda: os.environ.update(OF_A_BACKEND="1"),
    ],
    ids=["deterministic", "no gradients", "prints", "environment"],
)
def test_what_engines_set_for_themselves_is_no_failure(
    harm: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_A_BACKEND", "0")
    with torch.set_grad_enabled(True):
        assert check_case(CASE, backend("attend", harm), OPTIONS).failures == ()
    assert not torch.are_deterministic_algorithms_enabled()


KEPT = "attend changes the process that it shares with others: each of 8 calls leaves one more file open"


def opener(most: int = 1 << 30) -> Callable[[], object]:
    kept: list[Any] = []
    return lambda: kept.append(io.FileIO(os.devnull)) if len(kept) < most else None


def cyclic() -> None:
    """Closed once the garbage is collected, and not before."""
    holder: list[Any] = [io.FileIO(os.devnull)]
    holder.append(holder)


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (opener(), [KEPT]),
        (opener(7), []),
        (lambda: io.FileIO(os.devnull).close(), []),
        (cyclic, []),
    ],
    ids=["keeps one of each call", "keeps seven", "closes each", "leaves them to the collector"],
)
def test_files_that_each_call_leaves_open_are_a_failure_and_those_of_first_use_are_not(
    harm: Callable[[], object], told: list[str]
) -> None:
    result = check_case(CASE, backend("attend", harm), OPTIONS)
    assert [failure.message for failure in result.failures] == told


def test_one_call_may_not_take_a_quarter_of_all_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
    others: list[Any] = []
    try:
        for files, failures in ((95, 0), (110, 1)):
            kept: list[Any] = []
            result = check_case(CASE, backend("attend", partial(once, kept, files)), OPTIONS)
            assert len(result.failures) == failures
            for one in kept:
                one.close()
        # Who opens a file below many others is not blamed for these.
        once(others, 200)
        others[0].close()
        result = check_case(CASE, backend("attend", partial(once, [], 1)), OPTIONS)
        assert result.failures == ()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in others:
            one.close()


def once(kept: list[Any], files: int) -> None:
    kept += [io.FileIO(os.devnull) for _ in range(0 if kept else files)]


@pytest.mark.parametrize("name", ["NOFILE", "FSIZE", "CPU"])
def test_a_limit_that_was_lowered_is_told_and_put_back_and_a_higher_one_is_nobodys_harm(
    name: str,
) -> None:
    script = (
        "import resource\n"
        f"which = resource.RLIMIT_{name}\n"
        "hard = resource.getrlimit(which)[1]\n"
        "resource.setrlimit(which, (3000, hard))\nstate = ProcessState.now()\n"
        "resource.setrlimit(which, (2000, hard))\nprint(*state.restore())\n"
        "print(resource.getrlimit(which) == (3000, hard))\n"
        "resource.setrlimit(which, (4000, hard))\nassert state.restore() == []\n"
        "resource.setrlimit(which, (100, 2500))\nprint(*state.restore())\n"
        "print(resource.getrlimit(which))\n"
    )
    assert in_its_own_process(script) == [
        f"RLIMIT_{name} is 2000, and was 3000",
        "True",
        f"RLIMIT_{name} is 100, and was 3000",
        "(2500, 2500)",
    ]


def test_a_folder_that_is_gone_is_nobodys_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    state = ProcessState.now()
    monkeypatch.chdir(tmp_path)
    assert state.restore() == []


OPTIONS = CheckOptions()


def backend(stage: str, harm: Callable[[], object]) -> Any:
    right = load("page-table")

    def make() -> PageTable:
        instance = PageTable()
        own = getattr(instance, stage)

        def harmful(*arguments: Any) -> Any:
            done = own(*arguments)
            harm()
            return done

        setattr(instance, stage, harmful)
        return instance

    described = describe(
        PageTable, "planted", consumes=right.consumes, capabilities=right.capabilities,
        numerics=right.numerics,
    )  # fmt: skip
    return replace(described, make=make)
