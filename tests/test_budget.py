"""A run with a time limit: what it begins with, what it remembers, and what it says it left."""

from __future__ import annotations

import json
import shutil
import textwrap
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from treeproof.contract.capabilities import Capabilities
from treeproof.contract.event import CaseDrawn, Checked, Event, Left
from treeproof.contract.failure import ATTENTION
from treeproof.contract.wire import FileError
from treeproof.engine import budget
from treeproof.engine.budget import budgeted
from treeproof.engine.coverage import CoverageStore, Covered
from treeproof.engine.merge import merge
from treeproof.engine.run_folder import BackendMeta
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings
from treeproof.engine.summary import Run
from treeproof.engine.supply import Source, Supply, drawn_sources
from treeproof.engine.unchecked import left_events
from treeproof.generate.profiles import PROFILES
from treeproof.generate.tags import tags
from treeproof.reports.github import step_summary
from treeproof.reports.junit import junit_xml
from treeproof.reports.page.facts import page_of
from treeproof.reports.page.render import render
from treeproof.reports.terminal import summary_lines

HERE = Path(__file__).parent
SETTINGS = RunSettings(backends=("old", "new"), dtype="float32", examples=72, time_limit=60.0)
LIMITED = Capabilities(max_rows=8, ragged=False)


@pytest.fixture(scope="module")
def sources() -> list[Source]:
    """Those of a quick run: of both backends, and of one that takes a width of its own."""
    able = {"old": Capabilities(), "new": Capabilities(), "narrow": LIMITED}
    return drawn_sources(SETTINGS, able)


def known(whole: bool, **counts: int) -> Covered:
    return Covered(
        source="s", whole=whole, tags={k.replace("_", ":"): n for k, n in counts.items()}
    )


def pairs(sources: Sequence[Source]) -> Counter[tuple[str, str]]:
    """Part and backend."""
    everyone = frozenset({"old", "new", "narrow"})
    return Counter((s.name, b) for s in sources for b in s.backends or everyone)


def classes(source: Source) -> set[str]:
    """Drawn anew, whatever the source itself may remember."""
    return {tag for case in source.draw() for tag in tags(case)}


def test_changed_backends_go_first_after_one_part_of_each_other(sources: list[Source]) -> None:
    covered = {"old": known(True), "new": known(False), "narrow": known(True)}
    ordered = budgeted(sources, covered, 60.0)
    assert pairs(ordered) == pairs(sources)
    assert max(pairs(ordered).values()) == 1
    names = [sorted(source.backends or ()) for source in ordered]
    assert names[0] == ["new"]
    assert sorted(names[1:3]) == [["narrow"], ["old"]]
    changed = names.count(["new"])
    assert names[3 : changed + 2] == [["new"]] * (changed - 1)
    assert ["new"] not in names[changed + 2 :]
    assert sum(s.cost for s in ordered) == pytest.approx(sum(s.cost for s in sources))


def test_scripts_stay_behind_the_single_steps_of_their_backends(sources: list[Source]) -> None:
    for whole in (False, True):
        covered = dict.fromkeys(("old", "new", "narrow"), known(whole)) | {"new": known(False)}
        ordered = budgeted(sources, covered, 60.0)
        for name in covered:
            last = [source.last for source in ordered if name in (source.backends or ())]
            assert any(last)
            assert last == sorted(last)


def test_what_comes_first_does_so_for_the_backends_of_each_group(sources: list[Source]) -> None:
    early = {sources[i].name for i in (5, 9)}
    marked = [replace(source, first=source.name in early) for source in sources]
    covered = {"old": known(True), "new": known(False), "narrow": known(True)}
    ordered = budgeted(marked, covered, 60.0)
    of_new, of_old = (
        [source.name in early for source in ordered if name in (source.backends or ())]
        for name in ("new", "old")
    )
    for found in (of_new, of_old):
        assert sum(found) == 2
        assert found[:2] == [True, True]


def test_launches_of_many_requests_keep_their_order_so_that_all_kinds_of_them_come_soon() -> None:
    """By classes some kinds were put off until half of the launches were over: a backend that takes one layout of
    the mask alone gets all in that one."""
    able = {
        "any": Capabilities(devices={"cuda"}),
        "half": Capabilities(devices={"cuda"}, dtypes={"bfloat16"}),
        "full": Capabilities(devices={"cuda"}, mask_modes={"FULL_MASK"}, row_order="parent-first"),
    }
    settings = RunSettings(backends=tuple(able), profile="gpu", device="cuda", time_limit=600.0)
    bulk = [source for source in drawn_sources(settings, able) if source.first]
    ordered = budgeted(bulk, {name: known(False) for name in able}, 60.0)
    for name in able:
        units = [s.name for s in ordered if name in (s.backends or ())]
        assert units == [f"gpu-0-bulk-{i}" for i in range(24)]


def test_the_class_that_a_backend_was_least_checked_on_comes_first(sources: list[Source]) -> None:
    times = Counter(tag for source in sources if not source.last for tag in classes(source))
    rare = min(times.keys() - classes(sources[0]), key=lambda tag: (times[tag], tag))
    everything = dict.fromkeys(times, 1000)
    covered = dict.fromkeys(("old", "narrow"), Covered(source="s", whole=True, tags=everything))
    covered["new"] = Covered(source="s", whole=True, tags={**everything, rare: 3})
    first = budgeted(sources, covered, 60.0)[0]
    assert rare in classes(first)
    assert "new" in (first.backends or ())


def test_a_run_reaches_all_classes_sooner_than_in_the_order_of_its_parts(
    sources: list[Source],
) -> None:
    covered = dict.fromkeys(("old", "new", "narrow"), known(False))
    single = [s for s in sources if not s.last and "old" in (s.backends or ())]
    ordered = [s for s in budgeted(single, covered, 60.0) if "old" in (s.backends or ())]
    assert parts_to_reach_all(ordered) < 0.8 * parts_to_reach_all(single)


def parts_to_reach_all(sources: Sequence[Source]) -> int:
    wanted = {tag for source in sources for tag in classes(source)}
    seen: set[str] = set()
    for number, source in enumerate(sources, start=1):
        seen |= classes(source)
        if seen == wanted:
            return number
    raise AssertionError


def test_parts_that_there_is_no_time_to_draw_keep_their_order(sources: list[Source]) -> None:
    covered = dict.fromkeys(("old", "new", "narrow"), known(False))
    ordered = budgeted(sources, covered, 1e-9)
    assert [source.name for source in ordered] == [source.name for source in sources]
    assert sum(source.cases is not None for source in ordered) < 3


def test_cases_are_drawn_once_and_their_time_is_counted(sources: list[Source]) -> None:
    covered = {"old": known(True), "new": known(False), "narrow": known(True)}
    drawn = budgeted(sources[:2], covered, 60.0)
    supply = Supply([source for source in drawn if source.backends == {"new"}])
    first = supply.next()
    assert first is not None
    assert (
        first.case in (sources[0].draw(), sources[1].draw())[first.source.name != sources[0].name]
    )
    assert first.seconds * len(first.source.cases or ()) >= first.source.seconds > 0


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Write a backend file for the fake checker: its name and the body of `attend(case)`."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.chdir(tmp_path)

    def write(name: str, body: str) -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(
            f"import time\nimport treeproof\n\n\n@treeproof.register({name!r})\ndef attend(case):\n"
            + textwrap.indent(body, "    ")
        )
        return str(path)

    return write


def check(*backends: str, on_event: Callable[[Event], None] = print, **settings: Any) -> Run:
    given = {"workers": 0, "reduce": False, "dtype": "float32"} | settings
    return run(
        RunSettings(backends=backends, **given),
        lambda event: None if on_event is print else on_event(event),
        checker="engine_fake_checker",
    )


def asked(found: Run) -> list[str]:
    """Backends in the order they were checked, equal ones together."""
    order = [e.backend for e in found.events if isinstance(e, Checked)]
    return [name for i, name in enumerate(order) if i == 0 or order[i - 1] != name]


def test_a_mended_backend_is_checked_first_and_what_was_left_is_said_everywhere(
    backend: Callable[[str, str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROFILES, "quick", replace(PROFILES["quick"], cases=72))
    monkeypatch.setattr(budget, "SHARE_FOR_DRAWING", 1.0)
    files = backend("old", "return []"), backend("new", "return []")
    whole = check(*files)
    assert (whole.exit_code, whole.left) == (0, {})
    backend("new", "time.sleep(0.15)\nreturn []")
    found = check(*files, time_limit=4.0)
    first, look, *rest = asked(found)
    assert (first, look) == ("new", "old")
    assert set(rest) == {"new"}
    assert found.exit_code == 0
    events = [event for event in found.events if isinstance(event, Left)]
    units = {case.unit for case in whole.cases}
    assert {e.unit for e in events if "old" in e.backends} == units - units_of(found, "old")
    assert found.left["old"].cases == len(whole.cases) - found.completed_checks("old")
    assert found.left["new"].cases == len(whole.cases) - found.completed_checks("new") > 0
    missed = {t for c in whole.cases for t in c.tags} - tags_of(found, "old")
    assert len(missed) > 3
    assert set(found.left["old"].classes) == missed
    said = f"{found.left['old'].cases} cases in {len(found.left['old'].units)} parts; nothing of "
    places = {
        "terminal": "\n".join(line.plain for line in summary_lines(found)),
        "summary": step_summary([found]).replace("&#58;", ":"),
        "junit": str(properties(found)["old"]),
        "page": render(page_of([found])),
    }
    assert [name for name, text in places.items() if said not in text] == []
    assert found.left["old"].undrawn == 0
    part = found.left["old"].units[-1]
    assert [name for name, text in places.items() if part in text] == ["summary", "page"]
    # What the store knows now: of the one that was mended it has no whole run.
    store = CoverageStore(tmp_path / ".treeproof", "cpu")
    digests = {
        name: json.loads((tmp_path / ".treeproof" / "covered" / f"{name}@cpu.json").read_text())
        for name in ("old", "new")
    }
    kept = store.read({name: entry["source"] for name, entry in digests.items()})
    assert (kept["old"].whole, kept["new"].whole) == (True, False)
    assert kept["new"].tags["dtype:float32"] == found.completed_checks("new")


def units_of(found: Run, name: str) -> set[str]:
    done = {check.case for check in found.checks if check.backend == name}
    return {case.unit for case in found.cases if case.case in done}


def tags_of(found: Run, name: str) -> set[str]:
    done = {check.case for check in found.checks if check.backend == name}
    return {tag for case in found.cases if case.case in done for tag in case.tags}


def properties(found: Run) -> dict[str, str]:
    root = ET.fromstring(junit_xml([found]))
    return {
        str(suite.get("name")): str(one.get("value"))
        for suite in root.iter("testsuite")
        for one in suite.iter("property")
        if one.get("name") == "left unchecked"
    }


def test_runs_cut_short_leave_no_more_together_than_the_one_that_got_further(
    backend: Callable[[str, str], str], tmp_path: Path
) -> None:
    slow = backend("slow", "time.sleep(0.01)\nreturn []")
    settings: dict[str, Any] = {"store": None, "examples": 60}
    some, more = (
        check(slow, time_limit=limit, run_dir=tmp_path / name, **settings)
        for name, limit in (("some", 0.3), ("more", 0.6))
    )
    everything = check(slow, run_dir=tmp_path / "everything", **settings)
    assert some.left["slow"].cases > more.left["slow"].cases > 0
    union = merge([some, more], tmp_path / "union").run
    assert union.left["slow"].cases == more.left["slow"].cases
    assert merge([some, everything], tmp_path / "all").run.left == {}
    assert merge([everything, more], tmp_path / "again").run.left == {}


def test_nothing_is_left_where_the_time_was_enough_or_not_limited(
    backend: Callable[[str, str], str],
) -> None:
    fast = backend("fast", "return []")
    for limit in (None, 60.0):
        found = check(fast, examples=9, time_limit=limit, store=None)
        assert not [event for event in found.events if isinstance(event, Left)]
        assert "left unchecked" not in "\n".join(line.plain for line in summary_lines(found))
        assert "Left unchecked" not in render(page_of([found]))


def test_parts_that_were_not_drawn_are_counted_beside_what_is_known_of_the_others(
    backend: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "SHARE_FOR_DRAWING", 0.0)
    slow = backend("slow", "time.sleep(0.05)\nreturn []")
    found = check(slow, examples=60, time_limit=0.2, store=None)
    left = found.left["slow"]
    assert 0 < left.undrawn <= len(left.units)
    said = "\n".join(line.plain for line in summary_lines(found))
    assert f"{len(left.units)} parts, {left.undrawn} of them not drawn" in said


def test_scripts_wait_for_the_single_steps_of_each_group(
    backend: Callable[[str, str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last single step of a backend whose scripts come second is slow, and fails."""
    monkeypatch.setitem(PROFILES, "quick", replace(PROFILES["quick"], cases=24))
    body = "if case.id in open('slow').read():\n    time.sleep(0.5)\n    return [('kv', 'off')]\nreturn []"
    files = backend("old", body), backend("new", "return []")
    (tmp_path / "slow").write_text("")
    check(*files)
    backend("new", "return [] or []")
    shutil.copytree(".treeproof", "before")
    learnt = check(*files, time_limit=60.0)
    scripts = {c.case for c in learnt.cases if "rounds" in c.unit}
    order = [e.case for e in learnt.events if isinstance(e, Checked) and e.backend == "old"]
    single = [case for case in order if case not in scripts]
    assert order[-len(scripts) :] == [case for case in order if case in scripts]
    shutil.rmtree(".treeproof")
    shutil.move("before", ".treeproof")
    (tmp_path / "slow").write_text(single[-1])
    found = check(*files, time_limit=60.0, workers=2)
    judged = {c.case: c for c in found.checks if c.backend == "old"}
    assert [failing.case for failing in judged.values() if failing.failures] == [single[-1]]
    for case in scripts:
        assert {cell.status for cell in judged[case].cells} == {"not-checked"}


def test_a_part_is_left_by_each_backend_that_would_have_got_it() -> None:
    a, b = (BackendMeta(reference=n, name=n, stages=("attend",)) for n in "ab")
    walks = BackendMeta(reference="w", name="w", stages=("accept",))
    bulk = Source("bulk", list, probes=ATTENTION)
    supply = Supply(
        [Source("one", list, size=3), Source("two", list, frozenset("b"), size=2), bulk]
    )
    found = [(e.unit, e.backends, e.cases) for e in left_events(supply, [b, a, walks])]
    assert found == [("one", ("a", "b", "w"), 3), ("two", ("b",), 2), ("bulk", ("a", "b"), 1)]


def test_what_a_backend_would_have_got_fitted_to_it_is_left_as_that(sources: list[Source]) -> None:
    source, other = [s for s in sources if not s.last and "old" in (s.backends or ())][:2]
    (case, *_), (swapped, *_) = source.draw(), other.draw()
    fitted = Source(
        "one", list, cases=(case,), fit=lambda case, name: swapped if name == "b" else case
    )
    a, b = (BackendMeta(reference=n, name=n, stages=("attend",)) for n in "ab")
    found = {event.backends: event.tags for event in left_events(Supply([fitted]), [a, b])}
    assert found == {("a",): tuple(sorted(tags(case))), ("b",): tuple(sorted(tags(swapped)))}


def test_the_first_failure_leaves_the_rest_and_says_so(backend: Callable[[str, str], str]) -> None:
    found = check(backend("bad", "return [('kv', 'off')]"), fail_fast=True, examples=40, store=None)
    assert found.exit_code == 1
    assert found.left["bad"].cases == 40 + 2 - len(found.checks)  # and two scripts


def test_the_order_of_a_limited_run_changes_nothing_that_is_drawn(
    backend: Callable[[str, str], str],
) -> None:
    fast = backend("fast", "return []")
    runs = [check(fast, examples=60, time_limit=t, store=None) for t in (None, 60.0)]
    drawn = [[e.case for e in r.events if isinstance(e, CaseDrawn)] for r in runs]
    assert drawn[0] != drawn[1]
    assert sorted(drawn[0]) == sorted(drawn[1])
    assert [r.exit_code for r in runs] == [0, 0]


def test_what_was_covered_is_kept_for_each_source_and_kind_of_device(
    backend: Callable[[str, str], str], tmp_path: Path
) -> None:
    fast = backend("fast", "return []")
    found = check(fast, examples=9, store=None)
    store, other = CoverageStore(tmp_path / "s", "cpu"), CoverageStore(tmp_path / "s", "cuda")
    for _ in range(2):
        store.add({"fast": "a"}, found, ended=True)
    kept = store.read({"fast": "a"})["fast"]
    counted = Counter(tag for case in found.cases for tag in case.tags)
    assert kept.tags == {tag: 2 * n for tag, n in counted.items()}
    assert not kept.whole, "nine cases are no whole profile"
    assert store.read({"fast": "b"})["fast"] == Covered(source="b")
    assert other.read({"fast": "a"})["fast"] == Covered(source="a")
    store.add({"fast": "b"}, found, ended=True)
    assert store.read({"fast": "a"})["fast"] == Covered(source="a")


def test_a_damaged_file_of_coverage_is_named(
    backend: Callable[[str, str], str], tmp_path: Path
) -> None:
    fast = backend("fast", "return []")
    check(fast, examples=9)
    path = tmp_path / ".treeproof" / "covered" / "fast@cpu.json"
    path.write_text('{"source": 3}')
    with pytest.raises(FileError, match=r"fast@cpu\.json: .*it may be deleted"):
        check(fast, examples=9)


def test_a_store_that_cannot_be_written_costs_no_verdict(
    backend: Callable[[str, str], str], tmp_path: Path
) -> None:
    fast = backend("fast", "return []")
    (tmp_path / ".treeproof").mkdir()
    (tmp_path / ".treeproof" / "covered").write_text("a file")
    found = check(fast, examples=9)
    assert (found.exit_code, len(found.checks)) == (0, 9)
    assert found.finished is not None
    assert found.finished.reason.startswith("coverage was not kept: ")
    shutil.rmtree(tmp_path / ".treeproof")
