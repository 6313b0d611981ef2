"""Work units: the same cases in any order, process, environment and company of other modules."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies

import treeproof
from treeproof.generate.profiles import PROFILES, run_seed, settings_of
from treeproof.generate.units import BLOCK, draw, units

DRAW = """
import json, sys
order, backend = sys.argv[1], sys.argv[2]
if order == "company":
    import odd_constants
from hypothesis import given, seed, settings
from treeproof.generate.cases import cases
from treeproof.generate.profiles import settings_of
from treeproof.generate.units import draw, units
listed = units("quick", 5)[:4]
drawn = {u.name: [c.id for c in draw(u)] for u in (listed[::-1] if order == "reversed" else listed)}
given_ids = []
@seed(1)
@settings(settings_of("quick", 50), backend=backend)
@given(cases())
def collect(case):
    given_ids.append(case.id)
collect()
print(json.dumps({"ids": drawn, "given": given_ids, "home": sys.modules["treeproof"].__file__}))
"""

# Within the ranges that cases are drawn from; Hypothesis leaves out what is below 100.
ODD_CONSTANTS = "\n".join(f"c{i} = {i}" for i in (*range(100, 193), 777_777, 123_456_789_123))


def drawn_elsewhere(folder, order="plain", backend="treeproof", **environment):
    """Ids by unit, drawn in a process of its own that runs in `folder`."""
    folder.mkdir(exist_ok=True)
    (folder / "odd_constants.py").write_text(ODD_CONSTANTS)
    env = {**os.environ, "PYTHONPATH": str(folder), **environment}
    done = subprocess.run(
        [sys.executable, "-c", DRAW, order, backend],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not (folder / ".hypothesis").exists() or backend != "treeproof"
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def here():
    return {unit.name: [case.id for case in draw(unit)] for unit in units("quick", 5)[:4]}


def test_another_order_of_units_draws_the_same(here, tmp_path):
    assert drawn_elsewhere(tmp_path / "a", order="reversed")["ids"] == here


def test_modules_full_of_constants_change_nothing(here, tmp_path):
    plain = drawn_elsewhere(tmp_path / "a")
    company = drawn_elsewhere(tmp_path / "b", order="company")
    assert company["ids"] == plain["ids"] == here
    assert company["given"] == plain["given"]


def test_hypothesis_own_provider_is_changed_by_them(tmp_path):
    # The control: in the same set-up, without our provider, the constants are drawn.
    plain = drawn_elsewhere(tmp_path / "a", backend="hypothesis")
    company = drawn_elsewhere(tmp_path / "b", order="company", backend="hypothesis")
    assert company["given"] != plain["given"]


SHRINK = """
import contextlib, sys
sys.path.insert(0, ".")
import company  # wherever treeproof lies, this module is local to Hypothesis
from hypothesis import given
from treeproof.generate.cases import cases
from treeproof.generate.profiles import settings_of
from treeproof.generate.provider import no_constants
@settings_of("ci", 200)
@given(cases())
def fails(case):
    assert len(case.requests) == 1 or case.requests[1].prefix_len < 150
with no_constants() if sys.argv[1] == "without" else contextlib.nullcontext():
    try:
        fails()
    except AssertionError:
        print("shrunk")
"""


@pytest.mark.parametrize(("constants", "folder"), [("without", False), ("with", True)])
def test_shrinking_without_constants_leaves_no_folder_behind(tmp_path, constants, folder):
    (tmp_path / "company.py").write_text("ODD = (12345, 678, 90123)\n")
    done = subprocess.run(
        [sys.executable, "-c", SHRINK, constants], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.strip() == "shrunk", done.stderr
    assert (tmp_path / ".hypothesis").exists() == folder


def test_a_ci_environment_and_another_copy_of_the_package_change_nothing(here, tmp_path):
    folder = tmp_path / "installed"
    shutil.copytree(Path(treeproof.__file__).parent, folder / "treeproof")
    got = drawn_elsewhere(folder, CI="true", GITHUB_ACTIONS="true")
    assert Path(got["home"]).is_relative_to(folder)
    assert got["ids"] == here


def test_a_unit_is_drawn_alone_and_twice_alike(here):
    unit = units("quick", 5)[2]
    assert [case.id for case in draw(unit)] == here[unit.name]


def test_drawing_inside_a_running_hypothesis_test_gives_the_same(here):
    unit = units("quick", 5)[1]
    found = []

    @settings_of("ci", examples=1)
    @given(strategies.just(unit))
    def inner(unit):
        found.append([case.id for case in draw(unit)])

    inner()
    assert found == [here[unit.name]]


def test_other_seeds_groups_blocks_and_profiles_draw_other_cases():
    names = ["quick", "ci", "nightly"]
    chosen = [unit for name in names for seed in (0, 1) for unit in units(name, seed)[:3]]
    chosen += [unit for unit in units("ci", 0) if unit.group == 0]
    distinct = list({unit.name: unit for unit in chosen}.values())
    ids = [case.id for unit in distinct for case in draw(unit)]
    assert len(set(ids)) == len(ids)


def test_two_nightly_runs_draw_different_cases_and_two_ci_runs_the_same():
    def first_ids(profile):
        return [case.id for case in draw(units(profile, run_seed(profile, None))[0])]

    assert not set(first_ids("nightly")) & set(first_ids("nightly"))
    assert first_ids("ci") == first_ids("ci")


@pytest.mark.parametrize("examples", [1, 7, 24, 100, 216, 217, 1000])
def test_a_run_has_as_many_cases_as_asked_for_spread_over_the_groups(examples):
    listed = units("quick", 0, examples)
    counts = [unit.count for unit in listed]
    assert sum(counts) == examples
    assert max(counts) <= BLOCK
    assert max(counts) - min(counts) <= 1
    assert len({unit.group for unit in listed}) == min(examples, len(PROFILES["quick"].groups))
    assert len({unit.name for unit in listed}) == len(listed)


def test_a_shorter_unit_is_the_beginning_of_the_longer():
    short, long = units("quick", 0, 48)[0], units("quick", 0, 216)[0]
    assert (short.count, long.count) == (2, 9)
    assert [case.id for case in draw(short)] == [case.id for case in draw(long)][:2]


def test_a_dtype_asked_for_replaces_that_of_the_group():
    plain, other = units("quick", 0)[0], units("quick", 0, dtype="float16")[0]
    before, after = draw(plain), draw(other)
    assert {case.shape.dtype for case in before} == {"float32"}
    assert {case.shape.dtype for case in after} == {"float16"}
    assert [case.requests for case in before] == [case.requests for case in after]
