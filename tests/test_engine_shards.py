"""A run in shards: together they are the run, each by itself decides nothing that it cannot see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result
from ledger_scene import entry, write_ledger
from report_runs import again, run_of, star
from report_runs import checked as verdicts_of
from test_engine_runner import CHECKER, _fake_checker, backend  # noqa: F401

from treeproof.cli import cli
from treeproof.config import ConfigError, read_value
from treeproof.contract.event import Checked
from treeproof.contract.failure import COLUMNS, Cell
from treeproof.contract.wire import FileError
from treeproof.engine.merge import merge
from treeproof.engine.run_folder import BackendMeta
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings
from treeproof.engine.shards import Shard, share
from treeproof.engine.summary import Run
from treeproof.generate.units import WorkUnit, units
from treeproof.reports.ending import last_words

LEAKS = "return [('visibility', 'reads-sibling')] if case.shape.head_dim > 32 else []"
RIGHT = "return []"
UNABLE = "raise NotImplementedError"


def checked(where: Path, *backends: str, shard: Shard | None = None, **rest: Any) -> Run:
    given: dict[str, Any] = {"workers": 1, "reduce": False, "store": None, "examples": 90, **rest}
    if shard is not None:
        given["shard"] = shard
    settings = RunSettings(backends=backends, run_dir=where, **given)
    return run(settings, checker=CHECKER)


def sharded(where: Path, count: int, *backends: str, **rest: Any) -> list[Run]:
    return [
        checked(where / str(i), *backends, shard=Shard(i, count), **rest)
        for i in range(1, count + 1)
    ]


def verdicts(run: Run) -> dict[tuple[str, str], tuple[object, object]]:
    """But for scripts of backends whose single steps fail: a run leaves those out, and its parts only
    where they saw it themselves."""
    failing = {group.backend for group in run.failures}
    scripts = {case.case for case in run.cases if "-rounds-" in case.unit}
    return {
        (c.case, c.backend): (frozenset(c.cells), frozenset(f.key for f in c.failures))
        for c in run.checks
        if c.backend not in failing or c.case not in scripts
    }


def words(run: Run) -> str:
    return "\n".join(line.plain for line in last_words(run))


def cost(unit: WorkUnit) -> float:
    return unit.cost


def test_four_shards_merged_are_the_run_that_was_not_cut_verdict_for_verdict(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    both = backend("bad", LEAKS), backend("good", RIGHT)
    whole = checked(tmp_path / "whole", *both)
    parts = sharded(tmp_path, 4, *both)
    assert all(0 < len(part.cases) < len(whole.cases) for part in parts)
    assert sum(len(part.cases) for part in parts) == len(whole.cases)
    union = merge(parts, tmp_path / "union").run
    assert verdicts(union) == verdicts(whole)
    assert {(g.key, g.checks) for g in union.failures} == {
        (g.key, g.checks) for g in whole.failures
    }
    assert union.exit_code == whole.exit_code == 1
    assert union.shard == ""


@pytest.mark.parametrize(
    ("profile", "count"), [("quick", 1), ("quick", 3), ("ci", 7), ("gpu", 4), ("gpu", 150)]
)
def test_each_unit_is_in_one_shard(profile: str, count: int) -> None:
    every = units(profile, 5)
    parts = [
        share(every, Shard(i, count), cost, lambda unit: unit.shape.name)
        for i in range(1, count + 1)
    ]
    assert sorted(unit.name for part in parts for unit in part) == sorted(u.name for u in every)


@pytest.mark.parametrize("profile", ["quick", "ci", "gpu", "nightly"])
@pytest.mark.parametrize("count", [2, 4])
def test_shards_cost_about_the_same(profile: str, count: int) -> None:
    every = units(profile, 0)
    loads = [
        sum(map(cost, share(every, Shard(i, count), cost, lambda unit: unit.shape.name)))
        for i in range(1, count + 1)
    ]
    assert max(loads) < 1.1 * sum(loads) / count


def test_what_is_compiled_once_is_in_one_shard_where_there_is_enough_of_it() -> None:
    every = units("gpu", 0)
    parts = [share(every, Shard(i, 4), cost, lambda unit: unit.shape.name) for i in range(1, 5)]
    shapes = [{unit.shape for unit in part} for part in parts]
    assert sum(map(len, shapes)) == len(set().union(*shapes))


def test_what_a_shard_draws_does_not_depend_on_its_backends(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    one = checked(tmp_path / "one", backend("good", RIGHT), shard=Shard(2, 3))
    other = checked(
        tmp_path / "other", backend("bad", LEAKS), backend("more", RIGHT), shard=Shard(2, 3)
    )
    assert {case.case for case in one.cases} == {case.case for case in other.cases}


def test_a_shard_that_holds_nothing_exits_0_says_so_and_looks_like_no_clean_check(
    tmp_path: Path,
) -> None:
    trees = tmp_path / "trees.json"
    trees.write_text("[-1, 0, 0]")
    found: Result = CliRunner().invoke(
        cli,
        ["check", "direct-mask", "-n", "0", "--trees", str(trees), "--prefix", "1", "--shard",
         "2/2", "--run-dir", str(tmp_path / "run"), "--report", str(tmp_path / "out")],
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "! shard 2/2 holds no part of this run: treeproof merge says" in found.output
    assert "\nnothing was checked in shard 2/2\n" in found.output
    assert "✓" not in found.output
    badge = json.loads((tmp_path / "out/badge.json").read_text())
    assert (badge["message"], badge["color"]) == ("nothing in shard 2/2", "lightgrey")
    summary = (tmp_path / "out/summary.md").read_text()
    assert summary.startswith("### nothing was checked in shard 2/2\n")
    page = (tmp_path / "out/report.html").read_text()
    assert '<h1 class="plain">nothing was checked in shard 2/2</h1>' in page
    assert "<p>No failure was recorded. What was not checked is no pass.</p>" in page


WIDE = msgspec.structs.replace(
    star(), shape=msgspec.structs.replace(star().shape, head_dim=128, v_head_dim=128)
)


def gone(where: Path, name: str) -> str:
    """A backend file that misses a package."""
    path = where / f"{name}.py"
    path.write_text("import treeproof\nraise treeproof.BackendUnavailable('no wheel')\n")
    return str(path)


def test_a_backend_that_cannot_run_is_a_gap_of_every_shard(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    needy = gone(tmp_path, "needy")
    whole = checked(tmp_path / "whole", needy)
    said = f"backend {needy} cannot run here: no wheel"
    for part in [whole, *sharded(tmp_path / "alone", 2, needy)]:
        assert (part.exit_code, part.missing) == (3, (said,))
        assert words(part).endswith("! nothing was checked")
    for part in sharded(tmp_path / "beside", 2, needy, backend("good", RIGHT)):
        assert (part.exit_code, part.missing) == (3, (said,))
        assert words(part).endswith("! not everything that was asked for was checked")


def test_a_backend_that_finds_on_a_case_that_it_cannot_run_is_a_gap_of_that_shard(
    tmp_path: Path,
) -> None:
    case = star()
    cells = tuple(
        Cell(
            identity=c, evidence="measured", status="unavailable", stage="attend", reason="no wheel"
        )
        for c in COLUMNS
    )
    found = run_of(
        tmp_path / "run", [(case, Checked(case=case.id, backend="mine", cells=cells))], exit_code=3
    )
    part = again(found, tmp_path / "part", settings={"shard": {"number": 1, "count": 2}})
    assert (part.verdict, part.missing) == (3, ("backend mine completed no check: no wheel",))


def test_what_a_shard_has_none_of_is_said_and_left_to_the_union(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    wide = "if case.shape.head_dim < 100:\n    raise NotImplementedError\nreturn []"
    narrow = "if case.shape.head_dim >= 100:\n    raise NotImplementedError\nreturn []"
    shares = [[star()], [WIDE]]
    both = backend("wide", wide), backend("narrow", narrow)
    parts = []
    for number, cases in enumerate(shares, 1):
        settings = RunSettings(
            backends=both, run_dir=tmp_path / str(number), workers=0, reduce=False, store=None,
            shard=Shard(number, 2),
        )  # fmt: skip
        parts.append(run(settings, checker=CHECKER, cases=cases))
    assert [part.exit_code for part in parts] == [0, 0]
    assert "! in shard 1/2 backend wide completed no check" in words(parts[0])
    assert "! in shard 2/2 backend narrow completed no check" in words(parts[1])
    assert words(parts[0]).endswith("✓ no identity violated in 1 check")
    assert merge(parts, tmp_path / "union").run.exit_code == 0
    settings = RunSettings(
        backends=both[:1], run_dir=tmp_path / "wide", workers=0, reduce=False, store=None,
        shard=Shard(1, 2),
    )  # fmt: skip
    alone = run(settings, checker=CHECKER, cases=shares[0])
    assert alone.exit_code == 0
    assert words(alone).endswith("nothing was checked in shard 1/2")


def test_a_shard_in_which_a_backend_could_not_run_is_missed_in_the_union(tmp_path: Path) -> None:
    case = star()
    able = run_of(tmp_path / "able", [(case, verdicts_of(case, "mine"))])
    here = again(able, tmp_path / "2", settings={"shard": {"number": 2, "count": 2}})
    unable = BackendMeta(reference="mine", name="mine", unavailable="no wheel")
    there = again(
        run_of(tmp_path / "unable", [], exit_code=3), tmp_path / "1", backends=(unable,),
        settings={"shard": {"number": 1, "count": 2}},
    )  # fmt: skip
    union = merge([there, here], tmp_path / "union").run
    assert (union.exit_code, union.missing) == (
        3, ("backend mine could not run in shard 1/2",),
    )  # fmt: skip
    other = again(
        able, tmp_path / "3", settings={"shard": {"number": 1, "count": 2}}
    )  # another host could
    assert merge([there, here, other], tmp_path / "whole").run.exit_code == 0
    nowhere = merge([there], tmp_path / "nowhere").run
    assert nowhere.missing == (
        "backend mine cannot run here: no wheel",
        "shard 2/2 of backend mine not among the runs",
    )


@pytest.mark.parametrize("given", ["0/4", "5/4", "4", "1/0", "1/9999", "-1/2", "1/2/3"])
def test_a_shard_out_of_range_is_refused(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_value("shard", given, "--shard")
    said = f"--shard is '{given}': accepted are 1/n to n/n, such as 2/4, with n up to 1024"
    assert str(caught.value) == said


def test_what_no_check_reached_is_decided_by_the_union_alone(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    parts = sharded(tmp_path, 2, backend("good", RIGHT), identities=("position",), examples=48)
    whole = checked(tmp_path / "w", backend("good", RIGHT), identities=("position",), examples=48)
    assert (whole.exit_code, [part.exit_code for part in parts]) == (0, [0, 0])
    alone = merge(parts[:1], tmp_path / "alone").run
    assert alone.exit_code == 3
    assert "shard 2/2 of backend good not among the runs" in words(alone)
    assert merge(parts, tmp_path / "union").run.exit_code == 0


def test_a_shard_by_itself_is_said_to_be_one(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    found = checked(tmp_path / "1", backend("good", RIGHT), shard=Shard(1, 2), examples=48)
    assert "shard 1/2 is a part of this run: treeproof merge says" in words(found)


def test_shards_of_other_divisions_have_no_union(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    good = backend("good", RIGHT)
    one = checked(tmp_path / "1", good, shard=Shard(1, 2), examples=48)
    other = checked(tmp_path / "2", good, shard=Shard(2, 3), examples=48)
    with pytest.raises(FileError, match=r"number of shards \(2 and 3\)"):
        merge([one, other], tmp_path / "union")


def test_an_entry_of_the_ledger_that_only_another_shard_needs_is_not_over(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    ledger = write_ledger(tmp_path, entry())
    seldom = "return [('visibility', 'reads-sibling')] if case.shape.head_dim == 32 and case.shape.num_q_heads == 6 else []"
    parts = sharded(tmp_path, 2, backend("bad", seldom), ledger=ledger, examples=48)
    assert [part.exit_code for part in parts] == [0, 0]
    assert sorted(state.state for part in parts for state in part.ledger) == [
        "tolerated", "unexpected-pass",
    ]  # fmt: skip
    assert merge(parts, tmp_path / "union").run.exit_code == 0


def test_shards_of_a_soak_draw_other_units(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    parts = [
        checked(
            tmp_path / str(i), backend("good", RIGHT), shard=Shard(i, 2), profile="soak", seed=3,
            endless=True, time_limit=2.0, examples=None,
        )
        for i in (1, 2)
    ]  # fmt: skip
    drawn = [{case.case for case in part.cases} for part in parts]
    assert all(drawn)
    assert not drawn[0] & drawn[1]
