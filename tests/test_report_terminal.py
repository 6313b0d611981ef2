"""The summary of a run: matrix, figures, reasons, blocks, last words; from events alone."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from report_runs import again, written
from rich.console import Console

from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.event import (
    Began,
    CaseDrawn,
    Checked,
    Event,
    Finished,
    Reduced,
    Underway,
    WorkerLost,
)
from treeproof.contract.failure import COLUMNS, IDENTITIES, Cell, Failure
from treeproof.contract.kernels import Kernel
from treeproof.contract.tree import CandidateTree
from treeproof.engine.run_folder import BackendMeta, RunFolder, RunMeta
from treeproof.engine.summary import Run
from treeproof.reports.console import open_console
from treeproof.reports.ending import last_words
from treeproof.reports.matrix import matrix_lines, reason_lines, shortened
from treeproof.reports.progress import Progress
from treeproof.reports.show_again import replay_command
from treeproof.reports.terminal import figures, report, summary_lines

GOOD = BackendMeta(reference="direct-mask", name="direct-mask")
CAUSAL = BackendMeta(reference="examples/faulty_backend.py", name="causal")
MISSING = BackendMeta(
    reference="flash",
    name="flash",
    unavailable="package flash_attn is not installed; pip install it",
)
SIBLING = Failure(
    identity="visibility",
    kind="reads-sibling",
    evidence="measured",
    stage="attend",
    request=0,
    row=2,
    column=1,
    message="row 2 (node 2, path 0→2) reads row 1 (node 1), which is not an ancestor",
)
STAR = VerifyCase(
    requests=(
        Request(
            tree=CandidateTree(tokens=(5, 6, 7), parents=(-1, 0, 0)),
            row_of_node=(0, 1, 2),
            prefix_len=0,
        ),
    ),
    shape=AttentionShape(num_q_heads=2, num_kv_heads=1, head_dim=8, v_head_dim=8),
    layout=KVLayout(page_size=1, num_slots=16),
)


def cells(*, wrong: str = "", own: Sequence[str] = COLUMNS) -> tuple[Cell, ...]:
    """Measured verdicts in the columns of `own`, all passing but `wrong`; the rest not checked."""
    return tuple(
        Cell(
            identity=column,
            evidence="measured",
            status="fail" if column == wrong else "pass",
            stage="attend",
        )
        if column in own
        else Cell(
            identity=column,
            evidence="measured",
            status="not-checked",
            stage="",
            reason="reference: no build stage of its own",
        )
        for column in COLUMNS
    )


def drawn(number: int, *, rows: tuple[int, ...] = (3,), tags: tuple[str, ...] = ()) -> CaseDrawn:
    prefixes = tuple(10 * number for _ in rows)
    return CaseDrawn(case=f"c{number}", unit="u", tags=tags, rows=rows, prefixes=prefixes)


def good(number: int) -> Checked:
    return Checked(
        case=f"c{number}",
        backend="direct-mask",
        cells=cells(),
        margin=0.71,
        margin_rest=0.2,
        seconds={"oracle": 0.5, "probe": 1.0},
    )


def leaking(case: str) -> Checked:
    return Checked(
        case=case,
        backend="causal",
        cells=cells(wrong="visibility", own=("visibility", "output", "contract")),
        failures=(SIBLING,),
        margin=31.0,
        margin_rest=40.0,
    )


def run_of(
    folder: Path,
    events: Sequence[Event],
    backends: Sequence[BackendMeta] = (GOOD,),
    **settings: object,
) -> Run:
    meta = RunMeta(
        started="2026-11-29T00:00:00Z",
        settings={"profile": "quick", **settings},
        seed=7,
        device="cpu",
        device_name="cpu",
        backends=tuple(backends),
    )
    return written(folder, meta, events)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def leaking_run(folder: Path) -> Run:
    """Three cases: right on direct-mask; on causal one leaks, and was reduced to STAR."""
    folder.mkdir()
    RunFolder(folder).write_case(STAR)
    reproducer = RunFolder(folder).reproducer_path("causal", *SIBLING.key)
    reproducer.parent.mkdir()
    reproducer.touch()
    right = msgspec.structs.replace(
        leaking("c2"),
        cells=cells(own=("visibility", "output", "contract")),
        failures=(),
        margin=0.5,
        margin_rest=0.1,
    )
    events = [
        drawn(1, rows=(3, 31), tags=("tree:star", "rows:31")),
        good(1),
        leaking("c1"),
        drawn(2, tags=("tree:chain",)),
        good(2),
        right,
        CaseDrawn(case=STAR.id, unit="reduced", tags=(), rows=(3,), prefixes=(0,)),
        leaking(STAR.id),
        Reduced(
            backend="causal",
            identity="visibility",
            kind="reads-sibling",
            original="c1",
            reduced=STAR.id,
            evaluations=41,
            seconds=1.0,
        ),
        Finished(exit_code=1, seconds=41.25),
    ]
    return run_of(folder, events, (GOOD, CAUSAL, MISSING))


def test_the_matrix_counts_cases_and_shows_margins(folder: Path) -> None:
    assert [line.plain for line in matrix_lines(leaking_run(folder))] == [
        "             candidate  position  visibility  traversal   KV │ output  contract",
        "direct-mask        ✓ 2       ✓ 2         ✓ 2        ✓ 2  ✓ 2 │    ✓ 2       ✓ 2",
        "causal               ·         ·         ✗ 1          ·    · │    ✓ 2       ✓ 2",
        "flash        cannot run here",
        "",
        "             exercised    checks    margin      rest",
        "direct-mask  5 of 5            2      0.71       0.2",
        "causal       1 of 5            2        31        40",
        "margin: worst error over its bound, 1 is the limit; rest: without the output's rounding",
    ]


def test_evidence_of_tables_alone_stands_in_brackets(folder: Path) -> None:
    declared = tuple(
        msgspec.structs.replace(cell, evidence="declared") if cell.identity == "kv" else cell
        for cell in cells()
    )
    run = run_of(folder, [drawn(1), msgspec.structs.replace(good(1), cells=declared)])
    lines = [line.plain for line in matrix_lines(run)]
    assert "  (✓ 1) │" in lines[1]
    assert lines[2] == "             ( ) tables only: no reading was measured"


def test_what_was_not_judged_is_said_once_for_all_with_the_same_reason(folder: Path) -> None:
    unsupported = tuple(
        Cell(identity=c, evidence="measured", status="unsupported", stage="", reason="a window")
        for c in COLUMNS
    )
    store = Cell(
        identity="kv",
        evidence="measured",
        status="not-checked",
        stage="attend",
        reason="reference: written by store_kv",
    )
    other = msgspec.structs.replace(good(1), backend="cascade", cells=(*cells(), store))
    events = [
        drawn(1),
        msgspec.structs.replace(good(1), cells=(*cells(), store)),
        other,
        leaking("c1"),
        drawn(2),
        msgspec.structs.replace(leaking("c2"), cells=unsupported, failures=()),
    ]
    cascade = BackendMeta(reference="cascade", name="cascade")
    run = run_of(folder, events, (GOOD, cascade, CAUSAL))
    assert [line.plain for line in reason_lines(run)] == [
        "  direct-mask, cascade: KV (measured, attend) in 1 case not checked "
        "(reference: written by store_kv)",
        "  causal: candidate, position, traversal, KV in 1 case not checked "
        "(reference: no build stage of its own)",
        "  causal: all columns in 1 case unsupported (a window)",
    ]


def test_the_figures_make_the_counts_mean_something(folder: Path) -> None:
    assert figures(leaking_run(folder)) == [
        "cases    2 distinct, 4 checks; 3 trees, 37 rows",
        "sizes    rows p50 3, p90 31; prefix p50 10, p90 20",
        "events   tree: chain=1 star=1; rows: 31=1",
        "time     41.2 s; in all workers: generate 0.0 oracle 1.0 probe 2.0",
        "seed     7, profile quick, device cpu",
        "run      run",
    ]


def test_event_classes_of_few_cases_are_warned_about(folder: Path) -> None:
    events = [drawn(n, tags=("tree:chain",) if n < 4 else ("tree:star",)) for n in range(9)]
    warning = summary_lines(run_of(folder, events))[-1].plain
    assert warning.startswith("! fewer than 5 cases in ")
    assert "tree:chain=4" in warning
    assert "tree:root-only=0" in warning
    assert "tree:star" not in warning
    given = summary_lines(run_of(folder.with_name("given"), events, trees=["shapes.json"]))
    assert not any("fewer than" in line.plain for line in given)


def test_the_figures_name_the_versions_that_decided(folder: Path) -> None:
    run = run_of(folder, [drawn(1)])
    versions = {"treeproof": "0.1.0", "torch": "2.13.0+cpu"}
    told = again(run, folder.with_name("told"), versions=versions)
    assert figures(told)[-2] == "versions treeproof 0.1.0, torch 2.13.0+cpu"
    there = again(
        run, folder.with_name("there"), device_name="NVIDIA H200", platform="Linux-6.1-x86_64"
    )
    assert "machine  NVIDIA H200, Linux-6.1-x86_64" in figures(there)


def test_lost_workers_are_counted(folder: Path) -> None:
    lost = WorkerLost(case="c1", backend="causal", how="crash")
    assert figures(run_of(folder, [drawn(1), lost]))[-1] == "workers  1 lost; the run went on"


def printed(run: Run, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    report(open_console(stream), run)
    stream.flush()
    raw = stream.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode(encoding)


def test_the_report_ends_with_blocks_and_one_last_word(folder: Path) -> None:
    text = printed(leaking_run(folder))
    block = text[text.index("✗ causal") :].splitlines()
    assert block[:4] == [
        "✗ causal  visibility: reads-sibling  (measured, stage attend)  in 1 check",
        "  row 2 (node 2, path 0→2) reads row 1 (node 1), which is not an ancestor",
        "  case of 1 request, 3 rows, prefix 0; reduced from 2 requests, 34 rows in 41 tries",
        "",
    ]
    assert block[-4:] == [
        "treeproof replay run/failures/causal-visibility-reads-sibling.json "
        "--backend examples/faulty_backend.py",
        "",
        "! backend flash cannot run here: package flash_attn is not installed; pip install it",
        "✗ 1 distinct failure, in 1 of 4 checks",
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_line_but_a_command_is_wider_than_100_columns(folder: Path, encoding: str) -> None:
    lines = printed(leaking_run(folder), encoding).splitlines()
    assert all(len(line) <= 100 for line in lines if not line.startswith("treeproof "))


def test_without_a_reproducer_the_check_is_the_command(folder: Path) -> None:
    run = run_of(folder, [drawn(1), leaking("c1")], (CAUSAL,))
    assert replay_command(run, run.failures[0]) == (
        "treeproof check examples/faulty_backend.py --seed 7 --profile quick"
    )


def test_a_backend_found_by_its_name_needs_no_option(folder: Path) -> None:
    found = leaking_run(folder)
    by_name = BackendMeta(reference="causal", name="causal")
    run = again(found, folder.with_name("again"), backends=(GOOD, by_name))
    shutil.copytree(
        found.folder.path / "failures", run.folder.path / "failures", dirs_exist_ok=True
    )
    assert replay_command(run, run.failures[0]) == (
        "treeproof replay again/failures/causal-visibility-reads-sibling.json"
    )


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (
            [drawn(1), good(1), Finished(exit_code=0, seconds=1)],
            ["✓ no identity violated in 1 check"],
        ),
        (
            [drawn(1), Finished(exit_code=3, seconds=1)],
            ["! backend direct-mask completed no check", "! nothing was checked"],
        ),
        (
            [drawn(1), good(1), Finished(exit_code=130, seconds=1, reason="interrupted")],
            ["! interrupted", "interrupted; nothing failed in 1 check"],
        ),
        (
            [drawn(1), good(1), Finished(exit_code=4, seconds=1, reason="Traceback\nKeyError: 3")],
            ["Traceback", "KeyError: 3", "✗ treeproof itself failed, see above"],
        ),
        (
            [drawn(1), good(1)],
            ["! the run was cut short", "! not everything that was asked for was checked"],
        ),
    ],
)
def test_the_last_words_say_how_it_ended(
    folder: Path, events: list[Event], words: list[str]
) -> None:
    assert [line.plain for line in last_words(run_of(folder, events))] == words


def test_a_backend_that_ran_on_nothing_is_0_of_5(folder: Path) -> None:
    lines = [line.plain for line in matrix_lines(run_of(folder, [drawn(1)]))]
    assert lines[4] == "direct-mask  0 of 5            0         –         –"
    assert len(IDENTITIES) == 5


def test_long_names_are_shortened_in_the_middle() -> None:
    assert shortened("a" * 20 + "-" + "b" * 20) == "aaaaaaaaaaaaaa…bbbbbbbbbbbbb"
    assert len(shortened("x" * 64)) == 28


def test_reports_import_no_torch() -> None:
    script = (
        "import sys, treeproof.reports.terminal, treeproof.reports.progress\n"
        "import treeproof.reports.case_sheet, treeproof.reports.trace\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_progress_tells_what_is_tried_and_what_failed() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, color_system=None)
    with Progress(console) as progress:
        assert progress.__rich__().plain.splitlines()[1] == "starting workers"
        for event in (drawn(1, rows=(3, 31)), good(1), leaking("c1"), leaking("c1")):
            progress(event)
        first, second = progress.__rich__().plain.splitlines()
    assert first == "0:00  1 case  2 trees  34 rows  3 checks  1 failure"
    assert second == "u, 3+31 rows"
    progress(Began(what="reducing 2 failures"))
    assert progress.__rich__().plain.splitlines()[1] == "reducing 2 failures"


class Clock:
    """Time that goes on when it is told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("limit", "endless", "left"),
    [
        (None, False, "1:30 left  "),  # a tenth took 10 s, and nine are to come
        (70.0, False, "0:50 left  "),  # no more is begun then
        (500.0, False, "1:30 left  "),
        (7300.0, True, "2:01:20 left  "),  # a soak goes on until its time is over
        (None, True, ""),
    ],
)
def test_progress_tells_how_long_it_will_take(
    limit: float | None, endless: bool, left: str
) -> None:
    clock = Clock()
    progress = Progress(open_console(io.StringIO()), time_limit=limit, endless=endless, clock=clock)
    clock.now += 10  # workers start, torch is imported; it says nothing of what is to come
    progress(Underway(share=0.0))
    progress(good(1))
    clock.now += 10
    progress(Underway(share=0.1))
    assert progress.__rich__().plain.startswith(f"0:20  {left}0 cases  ")
    progress(Began(what="reducing 2 failures"))
    assert progress.__rich__().plain.startswith("0:20  0 cases  ")


def test_progress_estimates_nothing_from_too_little() -> None:
    clock = Clock()
    progress = Progress(open_console(io.StringIO()), clock=clock)
    for share in (0.0, 0.02):
        progress(Underway(share=share))
        progress(good(1))
        clock.now += 5
    assert "left" not in progress.__rich__().plain


def test_progress_in_a_pipe_is_a_plain_line_a_minute() -> None:
    stream, clock = io.StringIO(), Clock()
    with Progress(open_console(stream), clock=clock) as progress:
        progress(drawn(1))
        assert stream.getvalue() == ""
        for seconds in (61, 30, 31):
            clock.now += seconds
            progress(good(1))
    assert stream.getvalue() == (
        "1:01  1 case  1 tree  3 rows  1 check  0 failures  u, 3 rows\n"
        "2:02  1 case  1 tree  3 rows  3 checks  0 failures  u, 3 rows\n"
    )


def test_kernels_that_were_seen_are_named_with_how_they_ran_and_others_as_not_seen(
    folder: Path,
) -> None:
    mine, other = (
        BackendMeta(reference=name, name=name, kernels=("masked*",)) for name in ("mine", "other")
    )
    ran = Kernel(name="masked_attention", mode="compiled", on="sm_90")
    seen = msgspec.structs.replace(good(1), backend="mine", kernels=(ran,))
    blind = msgspec.structs.replace(good(1), backend="other")
    # Of the third nothing was asked, and nothing is said.
    run = run_of(folder, [drawn(1), seen, blind, good(1)], [mine, other, GOOD])

    said = [line for line in figures(run) if "masked_attention" in line or "not seen" in line]
    assert said == [
        "kernels  mine: masked_attention (compiled, sm_90)",
        "         other: masked* not seen",
    ]
    assert not any("direct-mask" in line for line in figures(run))
