"""The gate as a CI service runs it: its exit codes, and what lies in its folder whatever happened. What a
failure is told like is in test_ci_templates.py."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GATE = ROOT / "ci" / "gate.sh"
SMALL = ("--device", "cpu", "--profile", "quick", "--no-reduce", "--dtype", "float32")
REPORTS = {"report.html", "junit.xml", "summary.md", "badge.json"}
WORDS = {"check.txt", "doctor.txt"}

UNABLE = """
import treeproof

@treeproof.register("gated", unavailable="its wheel is not there")
def attend(x, q, k, v, k_cache, v_cache): ...
"""


def environment(**others: str) -> dict[str, str]:
    """That of a job: the commands of this interpreter come first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")}
    return {**kept, "PATH": path, **others}


def gate(
    folder: Path, *words: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(GATE), *words],
        cwd=folder, env=env or environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def left(folder: Path) -> set[str]:
    out = folder / "treeproof-gate"
    return {path.name for path in out.iterdir()} if out.exists() else set()


def failed_tests(folder: Path) -> set[str]:
    root = ET.parse(folder / "treeproof-gate" / "junit.xml").getroot()
    return {str(t.get("name")) for t in root.iter("testcase") if t.find("failure") is not None}


def test_a_right_backend_passes_and_all_reports_are_there(tmp_path: Path) -> None:
    summary = tmp_path / "step.md"
    env = environment(GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary))
    done = gate(tmp_path, "direct-mask", *SMALL, "--examples", "2", "-n", "0", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert left(tmp_path) == {"run"} | REPORTS | WORDS
    assert failed_tests(tmp_path) == set()
    assert json.loads((tmp_path / "treeproof-gate" / "badge.json").read_text())["color"] == (
        "brightgreen"
    )
    said = summary.read_text()
    assert said == (tmp_path / "treeproof-gate" / "summary.md").read_text()
    assert said.count("no identity violated in 2 checks") == 1
    assert "::error" not in done.stdout


def test_where_a_backend_cannot_run_nothing_was_checked_and_that_is_3(tmp_path: Path) -> None:
    (tmp_path / "unable.py").write_text(UNABLE)
    done = gate(tmp_path, "unable.py", *SMALL)
    assert done.returncode == 3, done.stdout + done.stderr
    assert left(tmp_path) == {"run"} | REPORTS | WORDS
    said = (tmp_path / "treeproof-gate" / "summary.md").read_text()
    assert "its wheel is not there" in said


def test_without_a_gpu_nothing_is_checked_and_every_place_says_why(tmp_path: Path) -> None:
    summary = tmp_path / "step.md"
    env = environment(
        GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary), CUDA_VISIBLE_DEVICES="",
    )  # fmt: skip
    done = gate(tmp_path, "direct-mask", env=env)
    assert done.returncode == 2
    assert left(tmp_path) == {"doctor.txt", "summary.md"}
    assert re.search(r"^NO  gpu +none: ", done.stderr, re.MULTILINE)
    assert "::error title=treeproof gate::this machine is not ready\n" in done.stdout
    assert summary.read_text().startswith("### Nothing was checked: this machine is not ready\n")
    assert re.search(r"^    NO  gpu +none: ", summary.read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "usage: gate.sh BACKEND|FILE..."),
        (("--time", "5m"), "usage: gate.sh BACKEND|FILE..."),
        (("direct-mask", "--device", "gpu"), "accepted are cpu, cuda"),
        (("direct-mask", "--device=gpu"), "accepted are cpu, cuda"),
        (("direct-mask", "--device", "cpu", "--help"), "the check did not begin, exit code 0"),
    ],
)
def test_wrong_usage_is_2_and_never_green(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    done = gate(tmp_path, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert left(tmp_path).isdisjoint({"report.html", "junit.xml", "badge.json", "run"})


@pytest.mark.parametrize("earlier", ["report.html", "run", ".hidden"])
def test_a_folder_that_holds_anything_is_left_as_it_is(tmp_path: Path, earlier: str) -> None:
    out = tmp_path / "treeproof-gate"
    out.mkdir()
    (out / earlier).write_text("of an earlier gate")
    done = gate(tmp_path, "direct-mask", *SMALL)
    assert done.returncode == 2
    assert "treeproof-gate holds an earlier gate: remove it" in done.stderr
    assert left(tmp_path) == {earlier}
    assert (out / earlier).read_text() == "of an earlier gate"


def test_of_two_gates_at_once_in_one_folder_one_begins(tmp_path: Path) -> None:
    """Both see it empty: `ls` waits for the other."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "ls").write_text('#!/bin/sh\n/bin/ls "$@"\nsleep 0.5\n')
    (tools / "ls").chmod(0o755)
    env = environment()
    env["PATH"] = f"{tools}{os.pathsep}{env['PATH']}"
    both = [
        subprocess.Popen(
            ["bash", str(GATE), "direct-mask", *SMALL, "--examples", "1", "-n", "0"],
            cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    said = [gate.communicate(timeout=120)[0] for gate in both]
    assert sorted(gate.returncode for gate in both) == [0, 2], said
    assert ["another gate's" in words for words in said].count(True) == 1
    assert left(tmp_path) == {"run"} | REPORTS | WORDS


KILLER = """
import os, signal
from pathlib import Path

right = attend
seen = 0

@treeproof.register("killer", capabilities=treeproof.Capabilities(windows=False))
def attend(*given):
    global seen
    seen += 1
    run = Path("treeproof-gate", "run")
    if seen > 1 and any('"reads-sibling"' in e.read_text() for e in run.glob("events-*")):
        os.kill(os.getppid(), signal.SIGKILL)
    return right(*given)
"""
"""Ends the check that it is a worker of, once that has found something."""


def test_a_check_that_is_killed_leaves_all_reports_of_what_it_found(tmp_path: Path) -> None:
    faulty = (ROOT / "examples" / "faulty_backend.py").read_text("utf-8")
    (tmp_path / "killer.py").write_text(faulty + KILLER)
    done = gate(tmp_path, "killer.py:killer", *SMALL, "-n", "1")
    assert done.returncode == 128 + signal.SIGKILL, done.stdout + done.stderr
    assert "the check was ended, exit code 137" in done.stderr
    assert left(tmp_path) == {"run"} | REPORTS | WORDS
    assert "visibility" in failed_tests(tmp_path)
    out = tmp_path / "treeproof-gate"
    assert "run was cut short" in (out / "summary.md").read_text()
    assert "reads-sibling" in (out / "report.html").read_text("utf-8")


@pytest.mark.long
def test_a_gate_that_is_told_to_end_says_what_it_found_until_then(tmp_path: Path) -> None:
    process = subprocess.Popen(
        ["bash", str(GATE), "direct-mask", *SMALL, "-n", "1"],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    run = tmp_path / "treeproof-gate" / "run"
    while not any('"checked"' in e.read_text() for e in run.glob("events-*")):
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert re.search(r"^interrupted; nothing failed in \d+ check", said, re.MULTILINE)
    assert left(tmp_path) == {"run"} | REPORTS | WORDS


def test_a_full_disk_is_4_and_a_file_that_cannot_be_opened_is_2_and_neither_a_violation(
    tmp_path: Path,
) -> None:
    (tmp_path / "shut").mkdir()
    # To a process that may write no byte into a file, and is not killed for it, every disk is full.
    full = subprocess.run(
        ["bash", str(GATE), "page-table", *SMALL], cwd=tmp_path, env=environment(),
        restore_signals=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert full.returncode == 4, full.stderr
    assert "gate: this machine is not ready" in full.stderr

    doctor = tmp_path / "treeproof"
    doctor.write_text("#!/bin/sh\nmkdir treeproof-gate/check.txt\n")
    doctor.chmod(0o755)
    env = environment()
    env["PATH"] = f"{tmp_path}{os.pathsep}{env['PATH']}"
    shut = gate(tmp_path / "shut", "page-table", *SMALL, env=env)
    assert shut.returncode == 2, shut.stderr
    assert "the check did not begin" in shut.stderr
