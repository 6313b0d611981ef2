"""Two runs beside each other."""

from __future__ import annotations

from pathlib import Path

import msgspec
from click.testing import CliRunner
from report_runs import checked, leak, run_of, star

from treeproof.cli import cli
from treeproof.engine.summary import Run
from treeproof.reports.comparison import compare


def run(folder: Path, *kinds: str, margin: float = 0.5, torch: str = "2.13.0") -> Run:
    case = star()
    verdicts = checked(case, "mine", *(leak(kind=kind) for kind in kinds))
    verdicts = msgspec.structs.replace(verdicts, margin=margin)
    return run_of(folder, [(case, verdicts)], versions={"torch": torch})


def test_new_fixed_and_still_failing_are_told_apart(tmp_path: Path) -> None:
    found = compare(run(tmp_path / "a", "old", "both"), run(tmp_path / "b", "both", "new"))
    assert [group.kind for group in found.new] == ["new"]
    assert [group.kind for group in found.still] == ["both"]
    assert [group.kind for group in found.fixed] == ["old"]
    assert found.unseen == found.differing == ()


def test_a_failure_is_not_fixed_by_not_looking(tmp_path: Path) -> None:
    nothing = run_of(tmp_path / "b", [], exit_code=3)
    found = compare(run(tmp_path / "a", "old"), nothing)
    assert found.fixed == ()
    assert [group.kind for group in found.unseen] == ["old"]


def test_margins_that_moved_and_versions_that_differ_are_told(tmp_path: Path) -> None:
    before, after = run(tmp_path / "a", margin=0.2), run(tmp_path / "b", margin=0.8, torch="2.14.0")
    found = compare(before, after)
    assert found.margins == (("mine", 0.2, 0.8),)
    assert found.differing == ("torch 2.13.0 → 2.14.0",)
    assert compare(before, run(tmp_path / "c", margin=0.21)).margins == ()


def test_the_command_exits_1_only_for_what_is_new(tmp_path: Path) -> None:
    run(tmp_path / "a", "old")
    run(tmp_path / "b", "old", "new")
    words = CliRunner().invoke(
        cli, ["compare", str(tmp_path / "a"), str(tmp_path / "b")], standalone_mode=False
    )
    assert words.return_value == 1
    assert "1 new, 1 still failing, 0 fixed" in words.output
    back = CliRunner().invoke(
        cli, ["compare", str(tmp_path / "b"), str(tmp_path / "a")], standalone_mode=False
    )
    assert back.return_value == 0
    assert "0 new, 1 still failing, 1 fixed" in back.output


def test_a_run_that_is_not_all_there_is_named(tmp_path: Path) -> None:
    run(tmp_path / "a", "old")
    hurt = run(tmp_path / "b", "old")
    with hurt.folder.events_path("w1").open("w") as stream:
        stream.write("{\n")
    cut = run(tmp_path / "c", "old").folder.events_path("w0")
    cut.write_bytes(b"".join(cut.read_bytes().splitlines(keepends=True)[:-1]))
    damaged = compare(Run.read(tmp_path / "a"), Run.read(tmp_path / "b")).incomplete
    assert [words.partition(": ")[::2] for words in damaged] == [
        (
            "b",
            f"{tmp_path}/b/events-w1.ndjson: line 1: Input data was truncated; nothing behind it in this file was read",
        )
    ]
    printed = CliRunner().invoke(
        cli, ["compare", str(tmp_path / "a"), str(tmp_path / "c")], standalone_mode=False
    )
    assert "! c: the run was cut short" in printed.output
