"""The union of several runs: what it holds, what it refuses, and what it exits with."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import date
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from report_runs import again, checked, leak, run_of, star

from treeproof.cli import cli
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import (
    CaseDrawn,
    Checked,
    Covered,
    Diagnosed,
    Event,
    Finished,
    Reduced,
    Tolerated,
    WorkerLost,
)
from treeproof.contract.failure import COLUMNS, Cell, Failure
from treeproof.contract.known_failure import KnownFailure
from treeproof.contract.wire import FileError, Reproducer, read_case_file
from treeproof.engine.gathered import Gathered
from treeproof.engine.merge import merge
from treeproof.engine.run_folder import BackendMeta
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings
from treeproof.engine.summary import Run

CASES = [star(prefix) for prefix in range(6)]


def passing(folder: Path, *cases: VerifyCase, backend: str = "mine", **rest: object) -> Run:
    return run_of(folder, [(case, checked(case, backend)) for case in cases], **rest)  # type: ignore[arg-type]


def failing(folder: Path, *cases: VerifyCase, kind: str = "reads-sibling", **rest: object) -> Run:
    found = [(case, checked(case, "mine", leak(kind=kind))) for case in cases]
    return run_of(folder, found, **rest)  # type: ignore[arg-type]


def verdicts(run: Run) -> set[tuple[object, ...]]:
    return {
        (c.case, c.backend, frozenset(c.cells), frozenset(f.key for f in c.failures))
        for c in run.checks
    }


# --- the union is the whole ---------------------------------------------------------------------


def test_the_union_of_shards_is_the_run_that_was_not_cut(tmp_path: Path) -> None:
    backends = ("direct-mask", str(Path(__file__).parent.parent / "examples" / "faulty_backend.py"))

    def checked_(name: str, cases: list[VerifyCase]) -> Run:
        settings = RunSettings(
            backends=backends, workers=0, store=None, reduce=False, run_dir=tmp_path / name
        )
        return run(settings, cases=cases)

    whole = checked_("whole", CASES)
    parts = [checked_(f"part-{n}", CASES[n::3]) for n in range(3)]
    union = merge(parts, tmp_path / "union").run
    assert verdicts(union) == verdicts(whole)
    assert union.matrix == whole.matrix
    assert {(g.key, g.checks) for g in union.failures} == {
        (g.key, g.checks) for g in whole.failures
    }
    assert (union.rows, union.prefixes, union.event_classes) == (
        whole.rows, whole.prefixes, whole.event_classes,
    )  # fmt: skip
    assert union.exit_code == whole.exit_code == 1
    assert union.margins == whole.margins


def test_runs_of_other_backends_stand_side_by_side(tmp_path: Path) -> None:
    one = passing(tmp_path / "a", *CASES)
    two = passing(tmp_path / "b", *CASES, backend="theirs", backends=("theirs",))
    union = merge([one, two], tmp_path / "union").run
    assert union.backends == ("mine", "theirs")
    assert {name: union.completed_checks(name) for name in union.backends} == {
        "mine": 6,
        "theirs": 6,
    }
    assert (len(union.cases), union.exit_code) == (6, 0)
    assert union.meta.parts == ("a", "b")
    three = passing(tmp_path / "c", CASES[0], backend="third", backends=("third",))
    assert merge([union, three], tmp_path / "all").run.meta.parts == ("a", "b", "c")


def test_what_one_host_cannot_run_is_no_gap_where_another_can(tmp_path: Path) -> None:
    there = passing(tmp_path / "a", CASES[0])
    gone = BackendMeta(reference="mine", name="mine", unavailable="no wheel")
    here = again(run_of(tmp_path / "b", [], exit_code=3), tmp_path / "c", backends=(gone,))
    assert (here.exit_code, there.exit_code) == (3, 0)
    assert merge([here, there], tmp_path / "union").run.exit_code == 0
    assert merge([here, here], tmp_path / "none").run.exit_code == 3
    # A file says what it is called only where it can be loaded.
    file = (BackendMeta(reference="k.py", name="mine"),)
    nameless = (BackendMeta(reference="k.py", name="k.py", unavailable="no wheel"),)
    pair = [
        again(here, tmp_path / "d", backends=nameless),
        again(there, tmp_path / "e", backends=file),
    ]
    union = merge(pair, tmp_path / "of-a-file").run
    assert (union.backends, union.exit_code) == (("mine",), 0)


def test_runs_in_folders_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    folders = [tmp_path / job / "run" for job in ("job-1", "job-2")]
    runs = [passing(folder, case) for folder, case in zip(folders, CASES, strict=False)]
    runs[1].folder.events_path("w0").write_bytes(
        b"".join(
            folders[1].joinpath("events-w0.ndjson").read_bytes().splitlines(keepends=True)[:-1]
        )
    )
    union = merge([runs[0], Run.read(folders[1])], tmp_path / "run").run
    assert union.meta.parts == tuple(map(str, folders))
    assert union.finished is not None
    assert union.finished.reason == f"the run in {folders[1]} was cut short"


def test_a_known_failure_that_only_another_shard_shows_is_not_over(tmp_path: Path) -> None:
    entry = KnownFailure(
        number=1, backend="mine", identity="visibility", kind="reads-sibling",
        reason="not reported", expires=date(2999, 1, 1),
    )  # fmt: skip
    covered = Covered(entry=1, checks=1)
    tolerated = Tolerated(
        case=CASES[1].id, backend="mine", identity="visibility", kind="reads-sibling", entry=1
    )
    one = again(passing(tmp_path / "1", CASES[0]), tmp_path / "a", covered, ledger=(entry,))
    two = again(
        failing(tmp_path / "2", CASES[1]), tmp_path / "b", covered, tolerated, ledger=(entry,)
    )
    assert one.verdict == 1  # an unexpected pass
    union = merge([one, two], tmp_path / "union").run
    assert [(state.state, state.checks, state.reached) for state in union.ledger] == [
        ("tolerated", 1, 2)
    ]
    assert (union.exit_code, union.failures) == (0, ())


# --- what is in several runs --------------------------------------------------------------------


def test_a_check_that_several_runs_have_counts_once(tmp_path: Path) -> None:
    lost = WorkerLost(case=CASES[0].id, backend="mine", how="crash")
    one = failing(tmp_path / "a", *CASES[:3], further=[lost])
    two = failing(tmp_path / "b", *CASES[1:], further=[lost])
    done = merge([one, two], tmp_path / "union")
    assert (len(done.run.cases), len(done.run.checks), done.repeated) == (6, 6, 2)
    assert len(list(done.run.events)) == 2 * 6 + 2
    (group,) = done.run.failures
    assert group.checks == 6
    assert done.run.finished is not None
    assert done.run.finished.reason == ""


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_verdicts_that_differ_from_run_to_run_all_stand_and_are_told(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    runs = [passing(tmp_path / "a", *CASES), failing(tmp_path / "b", CASES[2])]
    done = merge([runs[n] for n in order], tmp_path / "union").run
    (group,) = done.failures
    assert (group.case, group.checks, done.exit_code) == (CASES[2].id, 1, 1)
    assert group.failure.message == "row 2 reads row 1"
    assert done.matrix["mine"]["visibility"] == {"pass": 5, "fail": 1}
    assert done.finished is not None
    assert done.finished.reason == (
        f"other verdicts in other runs, of which all stand: mine on case {CASES[2].id}"
    )


def test_two_failures_of_one_check_in_two_runs_are_both_kept(tmp_path: Path) -> None:
    one = failing(tmp_path / "a", CASES[0])
    two = failing(tmp_path / "b", CASES[0], kind="misses-ancestor")
    done = merge([one, two], tmp_path / "union").run
    assert {g.kind for g in done.failures} == {"reads-sibling", "misses-ancestor"}
    assert {f.kind for f in done.failures[0].checked.failures} == {
        "reads-sibling", "misses-ancestor",
    }  # fmt: skip


def test_a_check_that_was_judged_comes_before_one_that_was_not(tmp_path: Path) -> None:
    cells = tuple(
        Cell(identity=c, evidence="measured", status="not-checked", stage="", reason="given up")
        for c in COLUMNS
    )
    gave_up = Checked(case=CASES[0].id, backend="mine", cells=cells)
    one = run_of(tmp_path / "a", [(CASES[0], gave_up)], exit_code=3)
    done = merge([one, passing(tmp_path / "b", CASES[0])], tmp_path / "union").run
    assert (done.completed_checks("mine"), done.exit_code) == (1, 0)
    assert done.finished is not None
    assert done.finished.reason == ""


def test_of_a_failure_that_two_runs_reduced_the_smaller_case_is_kept(tmp_path: Path) -> None:
    def reduced(name: str, drawn: int, to: int, cause: str) -> Run:
        small, key = (
            star(to),
            {"backend": "mine", "identity": "visibility", "kind": "reads-sibling"},
        )
        events: list[Event] = [
            CaseDrawn(case=small.id, unit="reduced", tags=(), rows=(3,), prefixes=(to,)),
            checked(small, "mine", leak()),
            Reduced(**key, original=star(drawn).id, reduced=small.id, evaluations=1, seconds=1),
            Diagnosed(**key, case=small.id, cause=cause),
        ]
        made = failing(tmp_path / name, star(drawn), further=events)
        made.folder.write_case(small)
        return made

    one, two = reduced("a", 10, 3, "small"), reduced("b", 11, 8, "large")
    for number, runs in enumerate(itertools.permutations([one, two])):
        done = merge(runs, tmp_path / f"union-{number}").run
        (group,) = done.failures
        assert (group.case, group.checks) == (star(3).id, 2)
        assert group.diagnosed is not None
        assert group.diagnosed.cause == "small"
        assert group.reproducer is not None
        kept = read_case_file(group.reproducer)
        assert isinstance(kept, Reproducer)
        assert (kept.case, kept.backend, kept.seed) == (star(3), "mine", 7)


def test_a_case_that_one_run_drew_and_another_reduced_to_counts_as_drawn(tmp_path: Path) -> None:
    event = CaseDrawn(case=star(3).id, unit="reduced", tags=(), rows=(3,), prefixes=(3,))
    one = failing(tmp_path / "a", star(10), further=[event, checked(star(3), "mine", leak())])
    two = failing(tmp_path / "b", star(3))
    assert len(one.cases) == 1
    assert len(merge([one, two], tmp_path / "union").run.cases) == 2


# --- runs that did not end ----------------------------------------------------------------------


def test_damage_is_told_and_what_stands_before_it_is_kept(tmp_path: Path) -> None:
    hurt = failing(tmp_path / "hurt", *CASES[:2])
    path = hurt.folder.events_path("w0")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b'{"type":"checked"\n', *lines[2:]]))
    union = merge(
        [passing(tmp_path / "a", CASES[5]), Run.read(tmp_path / "hurt")], tmp_path / "u"
    ).run
    assert [group.checks for group in union.failures] == [1]
    (damage,) = union.damage
    assert damage.startswith(f"{path}: line 3: ")
    assert damage in union.missing
    again_ = merge([union], tmp_path / "again").run
    assert again_.damage == (damage,)
    clean = run_of(tmp_path / "clean", [(CASES[0], checked(CASES[0], "mine"))])
    with clean.folder.events_path("w1").open("wb") as stream:
        stream.write(b"{\n")
    assert merge([Run.read(tmp_path / "clean")], tmp_path / "never-clean").run.exit_code == 3


def test_a_run_without_its_cases_leaves_its_failures_without_a_replay_and_says_so(
    tmp_path: Path,
) -> None:
    made = failing(tmp_path / "a", CASES[0])
    made.folder.case_path(CASES[0].id).unlink()
    union = merge([made], tmp_path / "union").run
    (group,) = union.failures
    assert group.reproducer is None
    assert union.finished is not None
    assert "no file to replay mine visibility reads-sibling" in union.finished.reason


@pytest.mark.parametrize(
    ("code", "reason", "clean", "said"),
    [
        (None, "", 3, "the run in b was cut short"),
        (130, "interrupted", 3, "the run in b ended so: interrupted"),
        (4, "KeyError: 3", 4, "the run in b ended so: KeyError: 3"),
        (0, "stopped at the time limit of 1 s", 0, "the run in b ended so: stopped at the time limit of 1 s"),
    ],
)  # fmt: skip
def test_a_run_that_did_not_end_well_is_named(
    tmp_path: Path, code: int | None, reason: str, clean: int, said: str
) -> None:
    whole = passing(tmp_path / "a", CASES[0])
    part = passing(tmp_path / "b", CASES[1])
    lines = part.folder.events_path("w0").read_bytes().splitlines(keepends=True)[:-1]
    if code is not None:
        end = Finished(exit_code=code, seconds=2.0, reason=reason)
        lines.append(msgspec.json.encode(end) + b"\n")
    part.folder.events_path("w0").write_bytes(b"".join(lines))
    union = merge([whole, Run.read(tmp_path / "b")], tmp_path / "union").run
    assert (union.exit_code, len(union.checks)) == (clean, 2)
    assert union.finished is not None
    assert union.finished.reason == said
    other = passing(tmp_path / "c", CASES[2])
    assert merge([union, other], tmp_path / "once-more").run.exit_code == clean


# --- runs that have no union --------------------------------------------------------------------

CUDA = {"device": "cuda:0", "device_name": "H200"}
STAGES = (BackendMeta(reference="mine", name="mine", stages=("attend",)),)
ENTRY = KnownFailure(
    number=1, backend="mine", identity="kv", kind="k", reason="r", expires=date(2999, 1, 1)
)
LATER = msgspec.structs.replace(ENTRY, expires=date(2999, 2, 1))


def of(source: str, compiled: str = "") -> dict[str, object]:
    mine = BackendMeta(reference="mine", name="mine", source=source, compiled=compiled)
    return {"backends": (mine,)}


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({}, {"seed": 8}, r"seed \(7 and 8\)"),
        ({}, {"versions": {"torch": "2.14.0"}}, r"torch \(2.13.0 and 2.14.0\)"),
        ({}, {"versions": {"torch": "2.13.0", "triton": "3"}}, r"triton \(none and 3\)"),
        ({}, {"settings": {"profile": "ci"}}, r"profile \(quick and ci\)"),
        ({}, {"settings": {"profile": "quick", "dtype": "float16"}}, r"dtype \(none and float16\)"),
        (
            {}, {"settings": {"profile": "quick", "identities": ["kv"]}},
            r"identities \(none and kv\)",
        ),
        ({}, {"device": "cuda"}, r"device \(cpu and cuda\)"),
        (CUDA, {**CUDA, "device_name": "A100"}, r"GPU \(H200 and A100\)"),
        ({}, {"backends": STAGES}, r"stages of mine \(none and attend\)"),
        ({}, {"ledger": (ENTRY,)}, r"entry 1 of the ledger \(none and mine kv k\)"),
        (
            {"ledger": (ENTRY,)}, {"ledger": (LATER,)},
            r"expires of entry 1 of the ledger \(2999-01-01 and 2999-02-01\)",
        ),
        (of("one"), of("two"), r"source of mine \(digest one and digest two\)"),
    ],
)  # fmt: skip
def test_runs_of_which_each_verdict_means_something_else_are_refused(
    tmp_path: Path, one: dict[str, object], other: dict[str, object], said: str
) -> None:
    made = passing(tmp_path / "made", CASES[0])
    runs = [again(made, tmp_path / "a", **one), again(made, tmp_path / "b", **other)]
    with pytest.raises(FileError, match=rf"a and .*b have no union; they differ in {said}$"):
        merge(runs, tmp_path / "union")
    assert not (tmp_path / "union").exists()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"started": "2027-01-01T00:00:00+00:00", "platform": "another kernel"}),
        ({}, {"settings": {"profile": "quick", "workers": 9, "time_limit": 3.0, "run_dir": "x"}}),
        ({}, {"device_name": "another processor"}),
        (CUDA, {**CUDA, "device": "cuda:1"}),
        (CUDA, {**CUDA, "device_name": "2 x H200"}),
        ({}, {"backends": (BackendMeta(reference="elsewhere/mine.py", name="mine"),)}),
    ],
)  # fmt: skip
def test_where_and_how_a_run_was_made_may_differ(
    tmp_path: Path, one: dict[str, object], other: dict[str, object]
) -> None:
    made = passing(tmp_path / "made", CASES[0])
    runs = [again(made, tmp_path / "a", **one), again(made, tmp_path / "b", **other)]
    assert merge(runs, tmp_path / "union").run.exit_code == 0


def test_runs_are_held_against_the_one_that_has_the_backend_not_the_first_alone(
    tmp_path: Path,
) -> None:
    first = passing(tmp_path / "a", CASES[0], backend="theirs", backends=("theirs",))
    second = again(passing(tmp_path / "2", CASES[1]), tmp_path / "b", **of("one"))
    third = again(passing(tmp_path / "3", CASES[2]), tmp_path / "c", **of("two"))
    with pytest.raises(FileError, match=r"b and .*c have no union; they differ in source of mine"):
        merge([first, second, third], tmp_path / "union")


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (of("same"), of("same"), ""),
        (
            of("same", "here"), of("same", "there"),
            "mine is of one source, and was compiled otherwise in run a and run b",
        ),
        (of("same"), of(""), "run b recorded no source of mine: that it was the same is not known"),
        (of(""), of(""), "runs a, b recorded no source of mine: that it was the same is not known"),
    ],
)  # fmt: skip
def test_other_builds_and_runs_of_before_there_was_a_digest_are_united_and_it_is_said(
    tmp_path: Path, one: dict[str, object], other: dict[str, object], said: str
) -> None:
    runs = [
        again(passing(tmp_path / "1", CASES[0]), tmp_path / "a", **one),
        again(passing(tmp_path / "2", CASES[1]), tmp_path / "b", **other),
    ]
    union = merge(runs, tmp_path / "union").run
    assert union.finished is not None
    assert (union.finished.reason, union.exit_code) == (said, 0)


def test_a_run_of_before_there_was_a_digest_is_read(tmp_path: Path) -> None:
    path = passing(tmp_path / "a", CASES[0]).folder.meta_path
    meta = msgspec.json.decode(path.read_bytes())
    for backend in meta["backends"]:
        del backend["source"], backend["compiled"]
    path.write_bytes(msgspec.json.encode(meta))
    (backend,) = Run.read(tmp_path / "a").meta.backends
    assert (backend.name, backend.source, backend.compiled) == ("mine", "", "")


def test_a_backend_that_was_mended_between_two_runs_leaves_them_without_a_union(
    tmp_path: Path,
) -> None:
    file = tmp_path / "kk.py"
    faulty = (Path(__file__).parent.parent / "examples" / "faulty_backend.py").read_text()
    runs = []
    for number, text in enumerate((faulty, f"# mended\n{faulty}", faulty)):
        file.write_text(text)
        settings = RunSettings(
            backends=(str(file),), workers=0, store=None, reduce=False, run_dir=tmp_path / f"{number}"
        )  # fmt: skip
        runs.append(run(settings, cases=CASES[:1]))
    with pytest.raises(
        FileError, match=r"0 and .*1 have no union; they differ in source of causal"
    ):
        merge(runs[:2], tmp_path / "union")
    assert merge(runs[::2], tmp_path / "union").run.exit_code == 1


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def treeproof() -> Callable[..., Result]:
    return lambda *words: CliRunner().invoke(cli, [str(w) for w in words], standalone_mode=False)


def test_the_command_reports_the_union_and_exits_as_it_says(
    tmp_path: Path, treeproof: Callable[..., Result]
) -> None:
    passing(tmp_path / "a", *CASES[:4])
    failing(tmp_path / "b", *CASES[4:])
    done = treeproof(
        "merge", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "u", "--report", tmp_path / "out"
    )
    assert done.return_value == 1
    assert "✗ 1 distinct failure, in 2 of 6 checks" in done.output
    assert "merged   a, b" in done.output
    assert (tmp_path / "out" / "report.html").exists()
    assert treeproof("report", tmp_path / "u", "-o", tmp_path / "r.html").return_value == 0
    assert treeproof("compare", tmp_path / "a", tmp_path / "u").return_value == 1
    (kept,) = (tmp_path / "u" / "failures").iterdir()
    assert treeproof("show", kept).return_value == 0


@pytest.mark.parametrize(
    ("runs", "into", "said"),
    [
        (("a", "b"), "a", "already holds a run"),
        (("a", "nowhere"), "u", "nowhere"),
        (("a", "c"), "u", "they differ in seed"),
    ],
)
def test_what_cannot_be_merged_is_said_with_exit_code_2(
    tmp_path: Path, treeproof: Callable[..., Result], runs: tuple[str, str], into: str, said: str
) -> None:
    made = passing(tmp_path / "a", CASES[0])
    passing(tmp_path / "b", CASES[1])
    again(made, tmp_path / "c", seed=1)
    done = treeproof("merge", *(tmp_path / name for name in runs), "-o", tmp_path / into)
    assert isinstance(done.exception, FileError)  # which the command line turns into exit code 2
    assert said in str(done.exception)


def test_outlines_are_enough_to_choose_by(tmp_path: Path) -> None:
    """What tells verdicts apart is kept in memory, so that no run is held whole."""
    one = Gathered.of(failing(tmp_path / "a", CASES[0]).folder.placed_events())
    (check,) = one.checks.values()
    assert {failure.key for failure in check.failures} == {("visibility", "reads-sibling")}
    assert isinstance(check.failures[0], Failure)
