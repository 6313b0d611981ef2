"""The command beside a failure shows it again, also of a run that was killed before it kept anything."""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from report_runs import again, checked, leak, run_of, star
from test_cli_commands import CAUSAL, Run, run, write_backend  # noqa: F401

from treeproof.engine.run_folder import BackendMeta
from treeproof.engine.settings import RunSettings
from treeproof.engine.shards import Shard
from treeproof.engine.summary import Run as Found
from treeproof.reports.show_again import DRAWS, reduce_command, replay_command, trace_command

OPTIONS = (
    "--trees", "shapes.json", "--prefix", "5", "--prefix", "70", "--dtype", "bfloat16",
    "--identity", "visibility", "--identity", "output", "--seed", "9", "--launch-timeout", "90s",
)  # fmt: skip


@pytest.fixture
def killed(run: Run) -> Path:  # noqa: F811
    """The folder of a run as SIGKILL leaves it: cases and verdicts, no failure kept, no end."""
    Path("shapes.json").write_text('{"star": [-1, 0, 0], "chain": [-1, 0, 1]}')
    where = ("--in-process", "--no-reduce", "--run-dir", "killed")
    assert run("check", write_backend(), *OPTIONS, *where)[0] == 1
    folder = Path("killed")
    shutil.rmtree(folder / "failures")
    events = folder / "events-run.ndjson"
    lines = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join(line for line in lines if b'"type":"finished"' not in line))
    assert Found.read(folder).finished is None
    return folder


def said(name: str) -> set[str]:
    """Commands in one of the reports."""
    text = re.sub("<[^>]*>", "\n", (Path("out") / name).read_text("utf-8"))
    return {line.strip() for line in text.splitlines() if line.strip().startswith("treeproof ")}


def test_failures_of_a_killed_run_are_kept_by_its_report_and_replayed(
    run: Run,  # noqa: F811
    killed: Path,
) -> None:
    assert run("report", str(killed), "--report", "out")[0] == 0
    keys = {(group.identity, group.kind) for group in Found.read(killed).failures}
    assert ("visibility", "reads-sibling") in keys
    for name in ("junit.xml", "summary.md", "report.html"):
        replays = {line for line in said(name) if line.startswith("treeproof replay ")}
        assert len(replays) == len(keys)
    for line in replays:
        assert "--launch-timeout 90" in line
        code, out, _ = run(*shlex.split(line)[1:], "--in-process")
        assert (code, out[:8]) == (1, "FAILED  "), out


def test_where_nothing_can_be_kept_the_case_in_the_folder_is_the_command(
    run: Run,  # noqa: F811
    killed: Path,
) -> None:
    (killed / "failures").write_text("in the way")
    code, _, err = run("report", str(killed), "--report", "out")
    assert code == 0
    assert "killed: no failure can be kept there: " in err
    found = next(g for g in Found.read(killed).failures if g.kind == "reads-sibling")
    line = (
        f"treeproof reduce killed/cases/{found.case}.json --backend causal.py --launch-timeout 90"
    )
    assert line in said("junit.xml") & said("summary.md") & said("report.html")
    code, out, _ = run(*shlex.split(line)[1:], "--in-process", "--run-dir", "again")
    assert code == 1
    assert "visibility: reads-sibling" in out


def test_where_the_cases_are_gone_they_are_drawn_and_judged_as_they_were(
    run: Run,  # noqa: F811
    killed: Path,
) -> None:
    before = Found.read(killed)
    cases = {check.case for check in before.checks if check.failures}
    shutil.rmtree(killed / "cases")
    code, _, err = run("report", str(killed), "--report", "out")
    assert code == 0
    assert "no file to replay cli-causal visibility reads-sibling: killed/cases/" in err
    line = (
        "treeproof check causal.py --seed 9 --profile quick --identity visibility --identity output "
        "--trees shapes.json --prefix 5 --prefix 70 --dtype bfloat16 --launch-timeout 90"
    )
    assert said("junit.xml") == {line}
    where = ("--in-process", "--no-reduce", "--run-dir", "again")
    assert run(*shlex.split(line)[1:], *where)[0] == 1
    after = Found.read(Path("again"))
    assert {check.case for check in after.checks if check.failures} == cases
    assert {group.key for group in after.failures} == {group.key for group in before.failures}


def told(folder: Path, **settings: Any) -> Found:
    """A run with these settings and one failure, whose case is gone."""
    made = run_of(folder / "a", [(star(), checked(star(), "mine", leak()))])
    device = settings.get("device", "cpu")
    plain = RunSettings(backends=("mine",), seed=7, **settings).as_builtins()
    found = again(made, folder / "run", settings=plain, device=device)
    found.folder.case_path(star().id).unlink()
    return found


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "check mine --seed 7 --profile quick"),
        (
            {"device": "cuda:2", "examples": 400, "shard": Shard(2, 4), "profile": "gpu"},
            "check mine --seed 7 --profile gpu --examples 400 --device cuda:2 --shard 2/4",
        ),
        ({"ledger": Path("a b.toml")}, "check mine --seed 7 --profile quick --ledger 'a b.toml'"),
        (
            {"endless": True, "profile": "soak", "time_limit": 5400.0, "dtype": "float16"},
            "fuzz mine --seed 7 --profile soak --dtype float16 --time 5400",
        ),
        ({"launch_timeout": 0.25}, "check mine --seed 7 --profile quick --launch-timeout 0.25"),
        ({"time_limit": 60.0}, "check mine --seed 7 --profile quick"),
    ],
)
def test_what_draws_all_again_has_every_option_that_decides_it(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    found = told(tmp_path, **settings)
    (group,) = found.failures
    assert replay_command(found, group) == f"treeproof {words}"
    assert (reduce_command(found, group), trace_command(found, group)) == ("", "")


def test_every_setting_is_repeated_or_decides_nothing_that_is_drawn_or_judged() -> None:
    said_otherwise = {"backends", "seed", "profile", "shard", "time_limit", "endless", "units"}
    harmless = {
        "workers", "fail_fast", "reduce", "sanitize", "run_dir", "store", "report_dir", "junit",
    }  # fmt: skip
    assert {field.name for field in fields(RunSettings)} == {*DRAWS} | said_otherwise | harmless


def test_a_case_is_reduced_and_traced_on_the_device_that_it_failed_on(tmp_path: Path) -> None:
    mine = BackendMeta(reference="my file.py", name="mine")
    made = run_of(tmp_path / "a", [(star(), checked(star(), "mine", leak()))])
    found = again(made, tmp_path / "run", device="cuda:0,cuda:1", backends=(mine,))
    (group,) = found.failures
    case = found.folder.case_path(star().id)
    backend = "--backend 'my file.py' --device cuda"
    assert replay_command(found, group) == f"treeproof reduce {case} {backend}"
    assert reduce_command(found, group) == ""
    row = "--request 0 --row 2"
    assert trace_command(found, group) == f"treeproof trace {case} {row} {backend}"
    group.kept.parent.mkdir(exist_ok=True)
    group.kept.touch()
    backend = "--backend 'my file.py'"  # the device stands in the file
    assert replay_command(found, group) == f"treeproof replay {group.kept} {backend}"
    assert reduce_command(found, group) == f"treeproof reduce {group.kept} {backend}"
    assert trace_command(found, group) == f"treeproof trace {group.kept} {row} {backend}"


def test_a_replay_that_fails_shows_the_options_that_it_was_given(
    run: Run,  # noqa: F811
    killed: Path,
) -> None:
    run("report", str(killed), "--junit", "junit.xml")
    file = str(next((killed / "failures").glob("*reads-sibling.json")))
    given = ("--backend", "causal.py", "--device", "cpu", "--launch-timeout", "50s")
    code, out, _ = run("replay", file, *given, "--in-process")
    assert code == 1
    assert shlex.join(["treeproof", "replay", file, *given]) in out.splitlines()
