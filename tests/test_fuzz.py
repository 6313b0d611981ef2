"""A soak: new cases until the time is over, in a run folder that bears a hundred thousand checks."""

from __future__ import annotations

import itertools
import re
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_cli_commands import Run as Cli
from test_cli_commands import run as cli  # noqa: F401
from test_engine_runner import CHECKER, _fake_checker, backend  # noqa: F401

from treeproof.commands.options import soak_settings
from treeproof.config import ConfigError
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.event import CaseDrawn, Checked
from treeproof.contract.failure import COLUMNS, Cell
from treeproof.engine.figures import distinct_trees, margins_by_dtype
from treeproof.engine.run_folder import RunFolder, RunMeta, append_event
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings, SettingsError
from treeproof.engine.shards import Shard
from treeproof.engine.summary import Run, percentile
from treeproof.engine.supply import endless_sources
from treeproof.generate.endless import endless_script, endless_unit
from treeproof.generate.profiles import PROFILES, run_seed
from treeproof.generate.units import BLOCK, draw, units
from treeproof.reports.terminal import figures

Backend = Callable[[str, str], str]


def soak(*backends: str, **settings: Any) -> Run:
    given = {"workers": 0, "store": None, "run_dir": Path("run"), "endless": True, "seed": 5}
    return run(RunSettings(backends=backends, **given | settings), checker=CHECKER)


def test_a_soak_draws_until_its_time_is_over_and_keeps_no_case_that_passes(
    backend: Backend,  # noqa: F811
) -> None:
    started = time.monotonic()
    found = soak(backend("good", "return []"), time_limit=3.0)
    assert 3.0 <= time.monotonic() - started < 60.0
    assert len(found.checks) > BLOCK  # more than one unit
    assert found.finished is not None
    assert (found.exit_code, found.finished.reason) == (0, "")  # nothing was left out
    assert list(Path("run/cases").iterdir()) == []
    assert len({case.case for case in found.cases}) == len(found.cases)
    assert found.finished.checking > 0


@pytest.mark.parametrize("workers", [0, 1])
def test_no_check_of_a_soak_begins_after_its_time_and_what_was_left_is_no_case_of_it(
    backend: Backend,  # noqa: F811
    workers: int,
) -> None:
    slow = [backend(name, "time.sleep(0.6)\nreturn []") for name in ("a", "b", "c", "d")]
    found = soak(*slow, time_limit=1.0, workers=workers)
    # The first check begins in time, and at most one is under way when it is over.
    assert 1 <= len(found.checks) <= 3
    assert {case.case for case in found.cases} == {check.case for check in found.checks}
    assert found.finished is not None
    assert found.finished.checking < 2.0


def test_a_soak_stops_at_the_first_failure_and_keeps_its_case(backend: Backend) -> None:  # noqa: F811
    body = "return [('kv', 'stray-write')] if case.num_rows > 40 else []"
    found = soak(backend("bad", body), fail_fast=True)
    (group,) = found.failures
    assert found.exit_code == 1
    assert found.folder.read_case(group.case).num_rows == 41
    drawn = next(check.case for check in found.checks if check.failures)
    assert found.folder.case_path(drawn).exists()
    assert group.reproducer is not None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "endless: a time_limit or fail_fast is expected"),
        ({"time_limit": 5.0, "examples": 3}, "endless: neither trees nor examples"),
        ({"fail_fast": True, "trees": (Path("x.json"),)}, "endless: neither trees nor examples"),
    ],
)
def test_a_soak_without_an_end_or_of_given_cases_is_refused(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        RunSettings(backends=("cascade",), endless=True, **settings)


def test_endless_units_go_on_where_those_of_a_bounded_run_end() -> None:
    groups = len(PROFILES["soak"].groups)
    bounded = units("soak", 7, examples=groups * BLOCK)
    first = [endless_unit(number, "soak", 7) for number in range(groups + 1)]
    assert first[:groups] == bounded
    assert (first[groups].group, first[groups].block, first[groups].count) == (0, 1, BLOCK)
    drawn = [case.id for unit in (first[0], first[groups]) for case in draw(unit)]
    assert len(set(drawn)) == 2 * BLOCK


def test_a_soak_has_scripts_between_its_units_as_many_as_a_bounded_run_has_behind_them() -> None:
    settings = RunSettings(
        backends=("cascade",), endless=True, seed=7, time_limit=1.0, profile="soak"
    )
    taken = itertools.islice(endless_sources(settings, {"cascade": Capabilities()}), 12)
    kinds = ["script" if source.last else "unit" for source in taken]
    assert kinds == ["unit", "unit", "script"] * 4  # 18 cases to a script
    drawn = [endless_script(number, "soak", 7).case for number in range(14)]
    assert all(case.script for case in drawn)
    assert len({case.id for case in drawn}) == 14  # a second block is another one


def test_parts_of_a_soak_and_its_shards_take_up_every_unit_and_script_once() -> None:
    def names(**rest: Any) -> list[str]:
        settings = RunSettings(
            backends=("cascade",), endless=True, seed=7, time_limit=1.0, profile="soak", **rest
        )
        taken = itertools.islice(endless_sources(settings, {"cascade": Capabilities()}), 12)
        return [s.draw()[0].id if s.last else s.name for s in taken]

    whole = names()
    assert names(units=(0, 4)) + names(units=(4, 4)) == whole
    thirds = [names(shard=Shard(i, 3), units=(0, 4)) for i in (1, 2, 3)]
    assert len({name for third in thirds for name in third}) == 18
    assert set(whole) <= {name for third in thirds for name in third}


UP_TO_TWO_SCRIPTS = """
if case.script:
    with open("scripts", "a+") as told:
        told.write("x")
        told.seek(0)
        if told.read() == "xx":
            raise KeyboardInterrupt
return []
"""


def test_a_backend_that_fails_in_single_steps_is_soaked_on_without_scripts(
    backend: Backend,  # noqa: F811
) -> None:
    names = [backend("bad", "return [('kv', 'not-written')]"), backend("good", UP_TO_TWO_SCRIPTS)]
    found = soak(*names, time_limit=120.0)
    assert found.exit_code == 130
    scripts = {case.case for case in found.cases if "-rounds-" in case.unit}
    assert scripts
    judged = {
        (c.backend, c.case in scripts) for c in found.checks if c.cells[0].status != "not-checked"
    }
    assert judged == {("bad", False), ("good", False), ("good", True)}
    (first, *_) = [i for i, c in enumerate(found.checks) if c.case in scripts]
    later = [c for c in found.checks[first:] if c.backend == "bad" and c.case not in scripts]
    assert len(later) == 18


def test_the_soak_profile_has_large_trees_far_prefixes_all_dtypes_and_a_seed_of_its_own() -> None:
    cases = [case for unit in units("soak", 1, 240) for case in draw(unit)]
    rows = sorted(len(r.tree) for case in cases for r in case.requests)
    prefixes = sorted(r.prefix_len for case in cases for r in case.requests)
    assert percentile(rows, 50) >= 24
    assert percentile(prefixes, 90) >= 1000
    assert max(prefixes) <= 4096
    assert {case.shape.dtype for case in cases} == {"float32", "float16", "bfloat16"}
    assert len({run_seed("soak", None) for _ in range(3)}) == 3


def test_profile_seed_and_time_of_a_gate_are_not_those_of_a_soak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "treeproof.toml").write_text(
        "profile = 'ci'\nseed = 3\ntime = '5s'\nexamples = 7\ntrees = ['x.json']\ndtype = 'float16'\n"
    )
    first, second = (soak_settings({}, ("cascade",), ()) for _ in range(2))
    assert (first.profile, first.time_limit, first.examples, first.trees) == (
        "soak",
        1800,
        None,
        (),
    )
    assert (first.endless, first.dtype) == (True, "float16")
    assert first.seed != second.seed
    given = {"profile": "nightly", "seed": "9", "time_limit": "2h"}
    told = soak_settings(given, ("cascade",), ())
    assert (told.profile, told.seed, told.time_limit) == ("nightly", 9, 7200)
    with pytest.raises(ConfigError, match="--time is 'soon'"):
        soak_settings({"time_limit": "soon"}, ("cascade",), ())


def test_the_command_soaks_a_real_backend_and_prints_its_figures(cli: Cli) -> None:  # noqa: F811
    code, out, _ = cli("fuzz", "topology", "--time", "4s", "--in-process", "--seed", "11")
    assert code == 0
    assert out.startswith("seed 11, profile soak\n")
    for figure in (
        r"cases    [\d,]+ distinct, [\d,]+ checks?; [\d,]+ trees?, [\d,]+ rows?",
        r"sizes    rows p50 \d+, p90 \d+; prefix p50 \d+, p90 \d+",
        r"events   tree: ",
        r"margins  .*float32 ",
        r"seed     11, profile soak",
        r"✓ no identity violated in",
    ):
        assert re.search(figure, out), figure


# A soak of 100,000 checks: 20,000 cases on five backends, as the checks of a real run are.
CASES, BACKENDS = 20_000, ("one", "two", "three", "four", "five")


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = RunFolder(tmp_path_factory.mktemp("long") / "run")
    folder.create(
        RunMeta(
            started="2027-01-01T00:00:00+00:00",
            settings={"profile": "soak"},
            seed=1,
            device="cpu",
            device_name="",
            backends=tuple(_meta(name) for name in BACKENDS),
        )
    )
    cells = tuple(
        Cell(identity=identity, evidence=evidence, status="pass", stage="attend")
        for identity in COLUMNS
        for evidence in ("declared", "measured")
    )
    seconds = dict.fromkeys(
        ("oracle", "generate", "backend", "build", "check", "probe"), 0.0123456789
    )
    lines = []
    for i in range(CASES):
        case = f"{i:020x}"
        drawn = CaseDrawn(
            case=case, unit=f"soak-1-group-{i // 9}", tags=("tree:chain", f"dtype:{DTYPES[i % 3]}"),
            rows=(17, 40), prefixes=(i % 4096, 7), trees=(f"{i:012x}", f"f{i % 1000:011x}"),
            seconds=0.001,
        )  # fmt: skip
        append_event(folder.events_path("run"), drawn)
        for name in BACKENDS:
            margin = (i % 997) / 1000
            lines.append(
                Checked(case=case, backend=name, cells=cells, margin=margin, seconds=seconds)
            )
        if len(lines) >= 500:
            _write(folder, lines)
            lines.clear()
    return folder.path


DTYPES = ("float32", "bfloat16", "float16")


def _meta(name: str) -> Any:
    from treeproof.engine.run_folder import BackendMeta

    return BackendMeta(reference=name, name=name)


def _write(folder: RunFolder, events: list[Checked]) -> None:
    import msgspec

    with folder.events_path("w0-1").open("ab") as stream:
        for event in events:
            stream.write(msgspec.json.encode(event) + b"\n")


def test_a_run_of_a_hundred_thousand_checks_is_read_and_summed_up(long_run: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    found = Run.read(long_run)
    said = "\n".join(figures(found))
    assert sum(found.completed_checks(name) for name in BACKENDS) == 100_000
    assert "cases    20,000 distinct, 100,000 checks; 21,000 trees, 1,140,000 rows" in said
    assert distinct_trees(found) == 21_000
    assert margins_by_dtype(found) == dict.fromkeys(sorted(DTYPES), 0.996)
    assert found.verdict == 0
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    size = sum(path.stat().st_size for path in long_run.glob("*")) / 1e6
    assert time.process_time() - started < 30  # 2 s, where nothing else runs
    assert grown < 300  # MiB; 120
    assert size < 250  # MB; 154
