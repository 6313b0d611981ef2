"""compute-sanitizer: its words read, and a run that asks it, with a stand-in for the tool.

What the stand-in prints is made up, in the forms of several releases of the tool.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pytest
from report_runs import checked, leak, run_of, star

from treeproof.cli import main
from treeproof.contract.event import Event, Finished, Invalid, Reduced, Sanitized
from treeproof.engine import runner
from treeproof.engine import sanitizer as tool
from treeproof.engine.sanitized_case import main as check_again
from treeproof.engine.sanitizer import require_sanitizer, sanitize_failures, sanitizer
from treeproof.engine.sanitizer_text import complaint, errors, findings
from treeproof.engine.settings import RunSettings, SettingsError
from treeproof.engine.summary import Run
from treeproof.reports.failure_block import failure_block
from treeproof.reports.files import write_reports
from treeproof.reports.sanitized import sanitized_lines
from treeproof.reports.terminal import explained

READ = """\
========= COMPUTE-SANITIZER
a word of the backend's own
========= Invalid __global__ read of size 4 bytes
=========     at my_attention+0xec0 in /somewhere/my_kernel.py:43
=========     by thread (18,0,0) in block (0,0,0)
=========     Access to 0x74505bcccca0 is out of bounds
=========     and is 161 bytes after the nearest allocation at 0x74505bccc800 of size 1,024 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernel [0x2f26f0] in libcuda.so.1
=========
========= Invalid __global__ read of size 4 bytes
=========     at my_attention+0xec0 in /somewhere/my_kernel.py:43
=========     by thread (19,0,0) in block (0,0,0)
=========     Access to 0x74505bcccca4 is out of bounds
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call to cudaStreamSynchronize.
=========     Saved host backtrace up to driver entry point at error
=========
========= ERROR SUMMARY: 3 errors
"""
"""As of CUDA 12.9."""
INVALID = Invalid(
    what="Invalid __global__ read of size 4 bytes",
    kernel="my_attention",
    at="my_kernel.py:43",
    thread="(18,0,0)",
    block="(0,0,0)",
    address="Access to 0x74505bcccca0 is out of bounds "
    "and is 161 bytes after the nearest allocation at 0x74505bccc800 of size 1,024 bytes",
    times=2,
)
SAYS = (
    "compute-sanitizer: Invalid __global__ read of size 4 bytes in kernel my_attention (my_kernel.py:43), "
    "2 times, first by thread (18,0,0) in block (0,0,0): access to 0x74505bcccca0 is out of bounds and is "
    "161 bytes after the nearest allocation at 0x74505bccc800 of size 1,024 bytes"
)
KEPT = next(Path(__file__).parent.glob("corpus/*.json"))
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
REFUSED = """\
========= COMPUTE-SANITIZER
========= Error: Target application terminated before first instrumented API call
"""


def test_what_kernels_do_is_told_once_with_the_first_thread_and_how_often() -> None:
    assert findings(READ) == (INVALID,)
    assert errors(READ) == 3
    (line,) = sanitized_lines(Sanitized(case="c", backend="b", findings=(INVALID,)))
    assert line == SAYS


@pytest.mark.parametrize(
    ("at", "kernel", "where"),
    [
        ("at 0xda0 in /x/moe.py:175:moe_kernel", "moe_kernel", "moe.py:175"),
        (
            "at 0x3b0 in void boot<long, D<2>>(int *, char)",
            "void boot<long, D<2>>(int *, char)",
            "",
        ),
        ("at unaligned():0x160 in demo.cu:6", "unaligned()", "demo.cu:6"),
        ("at copy(unsigned char *, int)+0x120", "copy(unsigned char *, int)", ""),
    ],
)
def test_a_kernel_is_named_in_the_form_of_any_release(at: str, kernel: str, where: str) -> None:
    text = (
        f"========= Invalid __shared__ write of size 16 bytes\n=========     {at}\n"
        "=========     by thread (1,2,3) in block (4,0,0)\n"
        "=========     Address 0x10 is misaligned\n"
    )
    (one,) = findings(text)
    assert (one.kernel, one.at) == (kernel, where)
    assert (one.thread, one.block, one.address) == (
        "(1,2,3)",
        "(4,0,0)",
        "Address 0x10 is misaligned",
    )
    assert errors(text) is None


def test_a_call_that_failed_is_told_where_no_kernel_is() -> None:
    call = "Program hit cudaErrorAssert (error 710) due to"
    (one,) = findings(f"========= COMPUTE-SANITIZER\n========= {call} device-side assert\n")
    assert one == Invalid(what=f"{call} device-side assert")


@pytest.mark.parametrize("text", ["", CLEAN, REFUSED, "=====", "=" * 99, "\0\ufffd=========x\n"])
def test_other_words_are_no_finding(text: str) -> None:
    assert findings(text) == ()


def test_its_own_complaint_is_told_from_findings() -> None:
    assert complaint(REFUSED) == "Target application terminated before first instrumented API call"
    assert complaint(READ) == ""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tool in PATH; what it does is written into it by `does`."""
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(tool, "USUAL_HOME", str(tmp_path / "nowhere"))
    for name in tool.HOMES:
        monkeypatch.delenv(name, raising=False)
    return place / tool.TOOL


def does(stand_in: Path, script: str) -> None:
    stand_in.write_text(f"#!{sys.executable}\nimport os, sys, time\n{script}\n")
    stand_in.chmod(0o755)


def asked(tmp_path: Path, stand_in: Path, script: str, severity: str = "wrong") -> Run:
    """A run in which one failure was found and the tool is asked about it."""
    does(stand_in, script)
    case, failure = star(), leak()
    failure = type(failure)(**{f: getattr(failure, f) for f in failure.__struct_fields__} | {"severity": severity})  # fmt: skip
    run = run_of(tmp_path / "run", [(case, checked(case, "mine", failure))])
    said: list[Event] = []
    sanitize_failures(run, RunSettings(backends=("mine",), device="cuda:0"), said.append)
    assert [type(event) for event in said] == [Sanitized]
    return run_of(tmp_path / "again", [(case, checked(case, "mine", failure))], further=said)


def said_of(run: Run) -> Sanitized:
    (group,) = run.failures
    assert group.sanitized is not None
    return group.sanitized


def test_a_failing_case_is_run_under_it_by_the_probe_that_saw_it(
    tmp_path: Path, stand_in: Path
) -> None:
    keep = tmp_path / "asked.txt"
    script = (
        f"open({str(keep)!r}, 'w').write('\\n'.join([*sys.argv[1:], "
        "os.environ['PYTORCH_NO_CUDA_MEMORY_CACHING']]))\n"
        f"print({READ!r})"
    )
    run = asked(tmp_path, stand_in, script)

    assert said_of(run).findings == (INVALID,)
    *words, caching = keep.read_text().splitlines()
    assert words[:6] == [*tool.OPTIONS]
    assert words[6:9] == [sys.executable, "-m", "treeproof.engine.sanitized_case"]
    assert words[9] == str(tmp_path / "run" / "cases" / f"{star().id}.json")
    assert words[10:] == ["mine", "tomography"]
    assert caching == "1"


def test_every_report_shows_what_it_said(tmp_path: Path, stand_in: Path) -> None:
    run = asked(tmp_path, stand_in, f"print({READ!r})")
    (group,) = run.failures
    block = " ".join(line.plain.strip() for line in failure_block(explained(run, group)))
    assert SAYS in re.sub(r" +", " ", block)

    write_reports([run], folder=tmp_path / "reports", junit=None)
    for name in ("report.html", "junit.xml", "summary.md"):
        text = (tmp_path / "reports" / name).read_text("utf-8")
        plain = re.sub(r"&#(\d+);", lambda found: chr(int(found[1])), text)
        assert "Invalid __global__ read of size 4 bytes in kernel my_attention" in plain, name


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (f"print({CLEAN!r})", "found no invalid access"),
        (
            f"print({REFUSED!r}); sys.exit(1)",
            "ended with exit code 1: Target application terminated before first instrumented API call",
        ),
        ("os.kill(os.getpid(), 11)", "ended with exit code -11: without a word"),
        ("os.write(1, bytes(range(256)) * 9); sys.exit(3)", "ended with exit code 3: "),
        ("print('no such library'); sys.exit(127)", "ended with exit code 127: no such library"),
    ],
    ids=["clean", "refuses", "crashes", "garbage", "cannot start"],
)
def test_without_findings_it_is_said_why(
    tmp_path: Path, stand_in: Path, script: str, said: str
) -> None:
    found = said_of(asked(tmp_path, stand_in, script))
    assert found.findings == ()
    assert found.said.startswith(said)


def ended(process: int) -> bool:
    """Within a few seconds."""
    for _ in range(100):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("printed", ["", READ.partition("========= Program")[0]])
def test_one_that_does_not_end_is_ended_with_all_that_it_started(
    tmp_path: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch, printed: str
) -> None:
    monkeypatch.setattr(tool, "CASE_SECONDS", 1.0)
    child = tmp_path / "child"
    script = (
        f"print({printed!r}, flush=True)\n"
        f"child = os.fork()\nif child: open({str(child)!r}, 'w').write(str(child))\ntime.sleep(60)"
    )
    start = time.monotonic()
    found = said_of(asked(tmp_path, stand_in, script))

    assert time.monotonic() - start < 20
    assert found.findings == ((INVALID,) if printed else ())
    assert found.said == ("" if printed else "did not end in 1 s, and had found nothing until then")
    assert ended(int(child.read_text()))


def test_a_launch_that_hangs_is_not_tried(tmp_path: Path, stand_in: Path) -> None:
    run = asked(tmp_path, stand_in, "raise SystemExit('asked')", severity="hang")
    assert said_of(run).said == "a launch that hangs was not tried"


def test_it_is_found_with_the_toolkit_too(
    stand_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sanitizer() is None
    does(stand_in, "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    assert sanitizer() == str(stand_in)


def test_a_run_that_asks_for_what_cannot_be_had_does_not_begin(stand_in: Path) -> None:
    asks = RunSettings(backends=("mine",), device="cuda", sanitize=True)
    with pytest.raises(SettingsError, match="no compute-sanitizer in PATH, CUDA_HOME or CUDA_PATH"):
        require_sanitizer(asks)
    does(stand_in, "")
    require_sanitizer(asks)
    with pytest.raises(SettingsError, match="watches kernels on CUDA, and the device is cpu"):
        require_sanitizer(RunSettings(backends=("mine",), sanitize=True))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "page-table", "--sanitize"], "the device is cpu"),
        (["replay", str(KEPT), "--backend", "page-table", "--sanitize"], "the device is cpu"),
        (["fuzz", "--sanitize", "--campaign", "soak"], "replay what it finds with --sanitize"),
    ],
)
def test_the_command_line_says_so_in_a_line_and_exits_2(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    (line,) = "".join(capsys.readouterr()).strip().splitlines()
    assert said in line


def test_the_process_under_it_checks_the_case_by_these_probes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = star()
    run_of(tmp_path / "run", [(case, checked(case, "mine"))])
    file, saw = tmp_path / "mine.py", tmp_path / "launched"
    file.write_text(
        "import treeproof\n\n\n@treeproof.register('mine')\ndef attend(x, q, *tensors):\n"
        f"    open({str(saw)!r}, 'a').write('.')\n    raise ValueError('no')\n"
    )
    path = str(tmp_path / "run" / "cases" / f"{case.id}.json")
    check_again([path, str(file), "tomography"], device="cpu")
    few = len(saw.read_text())
    check_again([path, str(file)], device="cpu")
    assert 0 < few < len(saw.read_text()) - few


def test_a_run_asks_it_of_what_it_found_once_all_is_reduced(
    tmp_path: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU, whose cases the tool itself would refuse."""
    does(stand_in, f"print({READ!r})")
    monkeypatch.setattr(runner, "require_sanitizer", lambda settings: None)
    monkeypatch.setattr(tool, "pins", lambda device: (tool.ANY,))
    faulty = Path(__file__).resolve().parent.parent / "examples" / "faulty_backend.py"
    told: list[Event] = []
    found = runner.run(
        RunSettings(
            backends=(str(faulty), "page-table"), sanitize=True, workers=1, store=None,
            run_dir=tmp_path / "run", identities=("visibility",),
        ),
        told.append,
        cases=[star()],
    )  # fmt: skip

    assert found.exit_code == 1
    (asked,) = {event.case for event in told if isinstance(event, Sanitized)}
    assert {group.case for group in found.failures} == {asked}
    assert all(group.sanitized is not None for group in found.failures)
    order = [type(event) for event in told if isinstance(event, Reduced | Sanitized | Finished)]
    assert order == [Reduced, Sanitized, Finished]
    kept = (tmp_path / "run" / "output" / f"{tool.TOOL}-causal-{asked}.txt").read_text()
    assert READ in kept
