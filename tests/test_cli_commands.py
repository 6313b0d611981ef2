"""The commands end to end, in this process: what they print and the exit codes they leave with."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from treeproof.cli import main
from treeproof.commands.exit_codes import BROKEN_PIPE
from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.tree import CandidateTree
from treeproof.contract.wire import encode_case

Run = Callable[..., tuple[int, str, str]]

CAUSAL = """
import torch, treeproof

@treeproof.register("cli-causal", capabilities=treeproof.Capabilities(windows=False),
                    numerics=treeproof.Numerics(p="float32"))
def attend(x, q, k, v, k_cache, v_cache):
    treeproof.store_kv(x, k, v, k_cache, v_cache)
    group = q.shape[1] // k.shape[1]
    out = torch.zeros(*q.shape[:2], v.shape[2], dtype=q.dtype)
    for b, prefix in enumerate(x.seq_lens.tolist()):
        lo, hi = x.qo_indptr[b : b + 2].tolist()
        rows = x.out_cache_loc[lo:hi]
        slots = torch.cat([x.req_to_token[x.request_slots[b], :prefix], rows])
        seen = torch.ones(hi - lo, len(slots), dtype=torch.bool).tril(prefix)
        keys = k_cache[slots].float().repeat_interleave(group, 1)
        values = v_cache[slots].float().repeat_interleave(group, 1)
        scores = torch.einsum("thd,lhd->htl", q[lo:hi].float(), keys) * x.shape.score_scale
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        out[lo:hi] = torch.einsum("htl,lhd->thd", weights, values).to(q.dtype)
    return out
"""

STAR = VerifyCase(
    requests=(
        Request(
            tree=CandidateTree(tokens=(5, 6, 7, 8), parents=(-1, 0, 0, 0)),
            row_of_node=(0, 1, 2, 3),
            prefix_len=2,
        ),
    ),
    shape=AttentionShape(num_q_heads=2, num_kv_heads=1, head_dim=64, v_head_dim=64),
    layout=KVLayout(page_size=1, num_slots=16),
)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one command line in an empty folder; (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        captured = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, captured.out, captured.err

    return run


def write_case() -> str:
    Path("case.json").write_bytes(encode_case(STAR))
    return "case.json"


def write_backend(text: str = CAUSAL, name: str = "causal.py") -> str:
    Path(name).write_text(text)
    return name


def test_a_right_backend_is_clean(run: Run) -> None:
    code, out, _ = run("check", "direct-mask", "--in-process", "--examples", "1")
    assert code == 0
    assert "direct-mask  5 of 5 " in out
    assert out.endswith("✓ no identity violated in 1 check\n")


def test_a_leak_is_found_reduced_and_replayed_until_it_is_mended(run: Run) -> None:
    case, backend = write_case(), write_backend()
    code, out, _ = run("reduce", case, "--backend", backend, "--in-process")
    assert code == 1
    assert "  row 2 (node 2, path 0→2) reads row 1 (node 1), which is not an ancestor" in out
    assert "  case of 1 request, 3 rows, prefix 0; reduced from 1 request, 4 rows in " in out
    command = next(
        line
        for line in out.splitlines()
        if line.startswith("treeproof replay") and "sibling" in line
    )
    words = [*shlex.split(command)[1:], "--in-process"]

    code, out, _ = run(*words)
    assert code == 1
    assert out.startswith("FAILED  row 2 (node 2, path 0→2) reads row 1")
    assert "└─ row 2 token 2 ──┘  row 2 reads it" in out

    mask = "x.custom_mask[x.mask_indptr[b] :][: seen.numel()].view(seen.shape)"
    write_backend(
        CAUSAL.replace("keys =", f"seen[:, prefix:] = {mask}[:, prefix:]\n        keys =")
    )
    code, out, _ = run(*words)
    assert (code, out) == (0, "FIXED  visibility holds on this case\n")


def test_a_replay_that_cannot_run_is_an_error(run: Run) -> None:
    case, backend = write_case(), write_backend()
    run("reduce", case, "--backend", backend, "--in-process")
    failure = str(next(Path(".treeproof").rglob("*reads-sibling.json")))
    write_backend("import treeproof\nraise RuntimeError('half written')\n")
    code, out, _ = run("replay", failure, "--backend", backend, "--in-process")
    assert code == 2
    assert out.startswith("ERROR  ")
    assert "half written" in out


def test_replay_and_reduce_leave_reports_where_they_are_asked_to(run: Run) -> None:
    backend, case = write_backend(), write_case()
    # What a gate reports stays as it is.
    Path("pyproject.toml").write_text('[tool.treeproof]\nreport = "gate"\nrun-dir = "gate-run"\n')
    given = ("--backend", backend, "--in-process")
    code, out, _ = run("reduce", case, *given, "--report", "reduced", "--run-dir", "run")
    assert (code, "wrote reduced/report.html" in out) == (1, True)
    (failure,) = Path("run/failures").glob("*reads-sibling.json")
    code, out, _ = run("replay", str(failure), *given, "--report", "replayed", "--junit", "j.xml")
    assert (code, out.startswith("FAILED  row 2")) == (1, True)
    assert 'classname="treeproof.cli-causal"' in Path("j.xml").read_text()
    page = Path("replayed/report.html").read_text()
    assert "reads-sibling" in page
    assert run("replay", str(failure), *given)[0] == 1
    assert not Path("gate").exists()
    assert not Path("gate-run").exists()


@pytest.mark.usefixtures("run")
def test_reports_are_written_where_nobody_reads_the_output_any_more() -> None:
    words = ["check", write_backend(), "--in-process", "--examples", "1", "--report", "left"]
    with subprocess.Popen(
        [sys.executable, "-m", "treeproof", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() == BROKEN_PIPE
    left = {path.name for path in Path("left").iterdir()}
    assert left == {"report.html", "junit.xml", "summary.md", "badge.json"}


@pytest.mark.parametrize("kept", [(), ("--junit", "junit.xml")])
@pytest.mark.parametrize(
    ("error", "code"), [(KeyError("lost"), 4), (KeyboardInterrupt(), 130)], ids=["own", "interrupt"]
)
def test_a_replay_that_did_not_come_to_its_end_is_neither_fixed_nor_in_error(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    kept: tuple[str, ...],
    error: BaseException,
    code: int,
) -> None:
    case, backend = write_case(), write_backend()
    run("reduce", case, "--backend", backend, "--in-process")
    failure = str(next(Path(".treeproof").rglob("*reads-sibling.json")))

    def broken(*arguments: object) -> None:
        raise error

    monkeypatch.setattr("treeproof.engine.check.check_case", broken)
    found = run("replay", failure, "--backend", backend, "--in-process", *kept)
    assert found[0] == code, found
    assert "FIXED" not in found[1]


def test_a_case_file_never_makes_code_be_imported(run: Run) -> None:
    case, backend = write_case(), write_backend()
    run("reduce", case, "--backend", backend, "--in-process")
    failure = str(next(Path(".treeproof").rglob("*reads-sibling.json")))
    write_backend("from pathlib import Path\nPath('imported').touch()\n")
    code, _, err = run("replay", failure)
    assert code == 2
    assert "a case file never makes code be imported: give --backend causal.py" in err
    assert not Path("imported").exists()


@pytest.mark.parametrize("command", ["replay", "reduce"])
def test_a_plain_case_needs_a_backend(run: Run, command: str) -> None:
    code, _, err = run(command, write_case())
    assert code == 2
    assert err == (
        "Error: case.json is a plain case and names no backend: give --backend NAME|FILE\n"
    )


def test_a_backend_that_is_not_installed_is_exit_code_3(run: Run) -> None:
    write_backend(
        CAUSAL.replace(
            '"cli-causal",', '"cli-absent", requires=["no_such_package=pip install it"],'
        )
    )
    code, out, _ = run("check", "causal.py", "--in-process", "--examples", "1")
    assert code == 3
    assert "cannot run here" in out
    assert "package no_such_package is not installed; pip install it" in out


def test_trouble_of_our_own_is_exit_code_4_and_says_where_to_turn(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("treeproof.engine.runner.run", broken)
    code, _, err = run("check", "direct-mask")
    assert code == 4
    assert "KeyError: 'lost'" in err
    assert "itself failed; this says nothing about a backend" in err
    assert "treeproof doctor" in err


def test_an_interrupt_is_exit_code_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("treeproof.engine.runner.run", interrupted)
    code, out, err = run("check", "direct-mask")
    assert (code, out, err.strip()) == (130, "", "interrupted")


def test_reports_that_are_made_later_are_those_of_the_check(run: Run) -> None:
    backend = write_backend()
    words = ("--in-process", "--examples", "4", "--no-reduce", "--run-dir", "run")
    assert run("check", backend, *words, "--report", "then")[0] == 1
    code, out, _ = run("report", "run", "--report", "later", "--junit", "only.xml")
    assert code == 0
    names = ["badge.json", "junit.xml", "report.html", "summary.md"]
    assert sorted(path.name for path in Path("later").iterdir()) == names
    for name in names:
        assert Path("later", name).read_bytes() == Path("then", name).read_bytes()
    assert Path("only.xml").read_bytes() == Path("then", "junit.xml").read_bytes()
    assert not Path("report.html").exists()
    assert out.count("wrote ") == 5


def test_a_run_that_is_terminated_reports_what_it_found_until_then(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "treeproof",
        "check",
        "direct-mask",
        "-n",
        "1",
        "--run-dir",
        "run",
    ]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    while not any('"checked"' in e.read_text() for e in (tmp_path / "run").glob("events-*")):
        assert process.poll() is None
        time.sleep(0.1)
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search(r"^interrupted; nothing failed in \d+ checks?$", out, re.MULTILINE)


def test_show_draws_a_case_and_says_whose_failure_it_is(run: Run) -> None:
    code, out, _ = run("show", write_case())
    assert code == 0
    assert "\n  └─ row 3 token 8\n" in out
    run("reduce", "case.json", "--backend", write_backend(), "--in-process")
    failure = str(next(Path(".treeproof").rglob("*reads-sibling.json")))
    assert run("show", failure)[1].startswith("causal.py: row 2 (node 2, path 0→2) reads row 1")


def test_trace_puts_a_backend_beside_what_is_expected(run: Run) -> None:
    case = write_case()
    code, out, _ = run("trace", case, "--row", "2", "--backend", write_backend())
    assert code == 0
    lines = out.splitlines()
    keys = lines.index("  keys        prefix 0-1, rows 0 2 (4 keys)")
    assert lines[keys + 1] == "              measured: parent row 1"
    assert lines[keys + 2].startswith("              ✗ measured: row 2 ")


def test_a_backend_that_crashes_is_traced_all_the_same(run: Run) -> None:
    Path("mortal.py").write_text(
        "import ctypes, treeproof\n\n"
        "@treeproof.register('mortal')\n"
        "def attend(x, q, k, v, k_cache, v_cache):\n"
        "    ctypes.string_at(0)\n"
    )
    code, out, _ = run("trace", write_case(), "--row", "2", "--backend", "mortal.py")
    assert code == 0
    assert "\n              measured: not checked (its worker was lost: crash)\n" in out
    assert (
        "\n  contract    ✗ measured: mortal in stage attend: the worker process ended by SIG" in out
    )


def test_the_installed_backends_are_listed_with_their_stages(run: Run) -> None:
    code, out, _ = run("backends")
    assert code == 0
    for name in ("cascade", "direct-mask", "page-table", "swa-window", "topology"):
        head = next(line for line in out.splitlines() if line.startswith(name))
        assert head == f"{name}  (treeproof.backends.{name.replace('-', '_')})"
    assert out.count("  stages  build attend accept commit\n") == 3
    assert "  stages  build attend process accept sample finish commit\n" in out
    assert "  stages  build attend merge accept commit\n" in out


def test_the_doctor_finds_what_a_run_needs(run: Run) -> None:
    code, out, _ = run("doctor")
    assert code == 0
    names = [line.split()[1] for line in out.splitlines() if line.startswith(("ok", "NO"))]
    assert names == [
        "python", "torch", "gpu", "triton", "hypothesis", "folder", "disk", "workers",
    ]  # fmt: skip


def test_the_doctor_names_what_is_wrong(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treeproof.commands.doctor._version", lambda package: None)
    code, out, _ = run("doctor")
    assert code == 2
    assert "NO  hypothesis  not installed\n" in out
    assert "pip install 'hypothesis>=6.150'" in out


def test_the_schema_accepts_names_of_fields_that_a_case_has(run: Run) -> None:
    code, out, _ = run("schema")
    assert code == 0
    document = json.loads(out)
    case = document["$defs"]["VerifyCase"]
    written = set(json.loads(encode_case(STAR))) - {"schema", "version"}
    assert written <= set(case["properties"])
    assert case["additionalProperties"] is False


@pytest.mark.parametrize("arguments", [("show", "case.json"), ("schema",)])
def test_a_reader_that_goes_away_is_no_violation(run: Run, arguments: tuple[str, ...]) -> None:
    write_case()
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "treeproof", *arguments], stdout=writing, stderr=subprocess.PIPE
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


FULL = "/dev/full"
"""Written to, it says that no space is left."""


@pytest.mark.parametrize(
    ("arguments", "out", "err", "code"),
    [
        ("schema", FULL, FULL, 4),
        ("schema", FULL, os.devnull, 4),
        ("schema", os.devnull, FULL, 0),
        ("--version", FULL, FULL, 4),
        ("show nothing.json", FULL, FULL, 2),
        ("check --no-such-option", os.devnull, FULL, 2),
        ("check page-table --examples 1 --no-reduce --run-dir {{}}", FULL, FULL, 4),
        ("check page-table --examples 1 --no-reduce --run-dir {{}}", os.devnull, FULL, 0),
    ],
)  # fmt: skip
def test_words_that_cannot_be_written_are_no_violation(
    arguments: str, out: str, err: str, code: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "treeproof", *arguments.format(tmp_path / "run").split()]
    with open(out, "w") as stdout, open(err, "w") as stderr:
        done = subprocess.run(command, stdout=stdout, stderr=stderr, cwd=tmp_path)
    assert done.returncode == code


def test_a_package_that_is_missing_is_no_violation() -> None:
    script = "import sys; sys.modules['click'] = None; from treeproof.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "ModuleNotFoundError: import of click halted" in done.stderr
