"""Known failures in a run: tolerated, quarantined, over, past, and never another one in their place."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

import pytest
from ledger_scene import entry, in_days, write_ledger
from test_engine_runner import CASES, _fake_checker, backend, check, failing_cases  # noqa: F401

from treeproof.contract.event import Covered, Reduced, Tolerated
from treeproof.contract.wire import FileError
from treeproof.engine.run_folder import RunFolder
from treeproof.engine.summary import Run
from treeproof.reports.ending import last_words
from treeproof.reports.terminal import summary_lines

Backend = Callable[[str, str], str]

SOMETIMES = "return [('visibility', 'reads-sibling')] if case.seed in (3, 5) else []"
ALWAYS = "return [('visibility', 'reads-sibling')]"
NEVER = "return []"
"""Cases are of float32 with pages of 4, seeds 0 to 7."""


def states(run: Run) -> list[tuple[str, int, int]]:
    return [(state.state, state.checks, state.reached) for state in run.ledger]


def words(run: Run) -> str:
    return "\n".join(line.plain for line in (*summary_lines(run), *last_words(run)))


def test_a_tolerated_failure_is_counted_shown_and_does_not_fail_the_run(
    backend: Backend,  # noqa: F811
    tmp_path: Path,
) -> None:
    ledger = write_ledger(tmp_path, entry())
    found = check(backend("bad", SOMETIMES), ledger=ledger)
    assert (found.exit_code, found.failures, found.missing) == (0, (), ())
    assert states(found) == [("tolerated", 2, 8)]
    assert failing_cases(found, "bad") == {CASES[3].id, CASES[5].id}  # it is no pass either
    assert found.matrix["bad"]["visibility"] == {"known": 2, "pass": 6}
    said = words(found)
    assert (
        "1. bad  visibility: reads-sibling: tolerated in 2 checks: the mask goes by rows: "
        "some/engine#12 (31 days left)" in said
    )
    assert "known 2" in said
    assert "✓ no identity violated in 8 checks" in said
    assert list(Path("run/failures").iterdir()) == []
    tolerated = [event for event in found.events if isinstance(event, Tolerated)]
    assert {(e.case, e.backend, e.identity, e.kind, e.entry) for e in tolerated} == {
        (CASES[seed].id, "bad", "visibility", "reads-sibling", 1) for seed in (3, 5)
    }
    assert [e for e in found.events if isinstance(e, Covered)] == [Covered(entry=1, checks=8)]
    assert RunFolder(Path("run")).read_meta().ledger == found.meta.ledger


def test_another_kind_identity_or_backend_is_not_swallowed(
    backend: Backend,  # noqa: F811
    tmp_path: Path,
) -> None:
    ledger = write_ledger(tmp_path, entry())
    body = "return [('visibility', 'reads-sibling'), ('visibility', 'misses-ancestor')]"
    found = check(backend("bad", body), backend("other", ALWAYS), ledger=ledger)
    assert found.exit_code == 1
    assert {group.key for group in found.failures} == {
        ("bad", "visibility", "misses-ancestor"),
        ("other", "visibility", "reads-sibling"),
    }
    assert states(found) == [("tolerated", 8, 8)]
    assert found.matrix["bad"]["visibility"] == {"fail": 8}


def test_outside_the_scope_of_an_entry_the_same_failure_counts(
    backend: Backend,  # noqa: F811
    tmp_path: Path,
) -> None:
    ledger = write_ledger(tmp_path, entry(when="{ page_size = 16 }"))
    found = check(backend("bad", ALWAYS), ledger=ledger)
    assert (found.exit_code, len(found.failures)) == (1, 1)
    assert states(found) == [("not-reached", 0, 0)]
    assert "1. bad  visibility: reads-sibling: no check was in its scope" in words(found)


def test_an_entry_of_other_releases_tolerates_nothing_and_says_what_is_installed(
    backend: Backend,  # noqa: F811
    tmp_path: Path,
) -> None:
    here = write_ledger(tmp_path, entry(versions='{ treeproof = ">=0.0.1" }'))
    assert check(backend("bad", ALWAYS), ledger=here).exit_code == 0
    elsewhere = write_ledger(tmp_path, entry(versions='{ treeproof = "<0.0.1" }'))
    found = check(backend("bad", ALWAYS), ledger=elsewhere, run_dir=Path("other"))
    assert (found.exit_code, states(found)) == (1, [("other-release", 0, 0)])
    installed = importlib.metadata.version("treeproof")
    assert f"reads-sibling: treeproof is {installed}, not <0.0.1, so it tolerates" in words(found)


def test_an_entry_that_nothing_fails_by_any_more_fails_the_run(
    backend: Backend,  # noqa: F811
    tmp_path: Path,
) -> None:
    ledger = write_ledger(tmp_path, entry(), entry(backend='"other"'))
    found = check(backend("bad", NEVER), backend("other", ALWAYS), ledger=ledger)
    assert (found.exit_code, found.failures) == (1, ())
    assert states(found) == [("unexpected-pass", 0, 8), ("tolerated", 8, 8)]
    said = words(found)
    assert "1. bad  visibility: reads-sibling: unexpected pass, 8 checks in its scope" in said
    assert said.splitlines()[-1] == "✗ unexpected pass of ledger entry 1"


def test_an_identity_that_was_not_judged_is_no_unexpected_pass(
    backend: Backend,  # noqa: F811
    tmp_path: Path,
) -> None:
    ledger = write_ledger(tmp_path, entry())
    found = check(backend("bad", NEVER), ledger=ledger, identities=("kv",))
    assert (found.exit_code, states(found)) == (0, [("not-reached", 0, 0)])


def test_an_entry_past_its_day_tolerates_nothing_and_is_named(
    backend: Backend,  # noqa: F811
    tmp_path: Path,
) -> None:
    ledger = write_ledger(tmp_path, entry(expires=in_days(-1)))
    found = check(backend("bad", SOMETIMES), ledger=ledger)
    assert (found.exit_code, len(found.failures)) == (1, 1)
    assert states(found) == [("expired", 0, 0)]
    said = words(found)
    assert f"reads-sibling: expired on {in_days(-1)}, tolerates nothing any more" in said
    last_day = write_ledger(tmp_path, entry(expires=in_days(0)))
    again = check(backend("bad", SOMETIMES), ledger=last_day, run_dir=Path("again"))
    assert again.exit_code == 0
    assert "(1 day left)" in words(again)


def test_a_quarantined_case_is_never_launched(backend: Backend, tmp_path: Path) -> None:  # noqa: F811
    body = f"open({str(tmp_path / 'launched')!r}, 'a').write(f'{{case.seed}}\\n')\nos.abort()"
    deadly = entry(
        **{"class": '"quarantined"', "identity": '"contract"', "kind": '"crash"'},
        when="{ dtype = 'float32' }",
    )
    ledger = write_ledger(tmp_path, deadly)
    found = check(backend("bad", body), backend("good", NEVER), ledger=ledger)
    assert not (tmp_path / "launched").exists()
    assert found.losses == ()
    assert states(found) == [("quarantined", 8, 8)]
    cells = {(c.status, c.reason) for check in found.checks for c in check.cells if c.reason}
    assert cells == {("not-checked", "quarantined: the mask goes by rows: some/engine#12")}
    assert found.exit_code == 3  # nothing was checked of it
    assert found.missing == ("backend bad completed no check",)
    assert "contract: crash: 8 cases not launched" in words(found)


def test_a_quarantine_ends_at_its_scope_and_at_its_date(
    backend: Backend,  # noqa: F811
    tmp_path: Path,
) -> None:
    deadly = {"class": '"quarantined"', "identity": '"contract"', "kind": '"crash"'}
    ledger = write_ledger(
        tmp_path,
        entry(**deadly, when="{ rows = '7..' }"),
        entry(**deadly, expires=in_days(-1)),
    )
    found = check(
        backend("bad", "os.abort() if case.seed == 4 else None\nreturn []"), ledger=ledger
    )
    assert failing_cases(found, "bad") == {CASES[4].id}
    assert states(found) == [("quarantined", 0, 0), ("expired", 0, 0)]


def test_a_crash_can_be_tolerated_too(backend: Backend, tmp_path: Path) -> None:  # noqa: F811
    ledger = write_ledger(tmp_path, entry(identity='"contract"', kind='"crash"'))
    body = "os.abort() if case.seed == 4 else None\nreturn []"
    found = check(backend("bad", body), ledger=ledger)
    assert (found.exit_code, states(found)) == (0, [("tolerated", 1, 8)])
    assert len(found.losses) == 1


def test_fail_fast_does_not_stop_at_what_is_known(backend: Backend, tmp_path: Path) -> None:  # noqa: F811
    ledger = write_ledger(tmp_path, entry())
    found = check(backend("bad", ALWAYS), ledger=ledger, fail_fast=True, workers=0)
    assert len(found.checks) == len(CASES)
    bare = check(backend("bad", ALWAYS), fail_fast=True, workers=0, run_dir=Path("bare"))
    assert len(bare.checks) < len(CASES)


def test_a_new_failure_is_not_reduced_into_a_known_one(
    backend: Backend,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Trees of at most 3 rows are known to fail; those of 6 are not, and must not shrink to them."""
    ledger = write_ledger(tmp_path, entry(when="{ rows = '..3' }"))
    found = check(backend("bad", ALWAYS), ledger=ledger, reduce=True, workers=0)
    (group,) = found.failures
    assert found.folder.read_case(group.case).num_rows == 4
    bare = check(backend("bad", ALWAYS), reduce=True, workers=0, run_dir=Path("bare"))
    (group,) = bare.failures
    assert bare.folder.read_case(group.case).num_rows == 1


def test_the_reducer_launches_nothing_that_is_quarantined(
    backend: Backend,  # noqa: F811
    tmp_path: Path,
) -> None:
    deadly = {"class": '"quarantined"', "identity": '"contract"', "kind": '"crash"'}
    ledger = write_ledger(tmp_path, entry(**deadly, when="{ page_size = '..2' }"))
    body = "assert case.layout.page_size > 2\nreturn [('visibility', 'reads-sibling')]"
    found = check(backend("bad", body), ledger=ledger, reduce=True, workers=0)
    (group,) = found.failures
    assert found.folder.read_case(group.case).layout.page_size == 4
    assert group.reduced is not None


TRACED = "return [('visibility', 'reads-sibling', {cause!r})]"


@pytest.mark.parametrize("cause", ["", "no-mask"])
def test_where_an_entry_has_a_cause_a_failure_of_none_or_of_another_is_not_tolerated(
    cause: str,
    backend: Backend,  # noqa: F811
    tmp_path: Path,
) -> None:
    ledger = write_ledger(tmp_path, entry(cause='"causal-mask"'))
    found = check(backend("bad", TRACED.format(cause=cause)), ledger=ledger)
    assert (found.exit_code, len(found.failures)) == (1, 1)
    assert states(found) == [("unexpected-pass", 0, 8)]


def test_each_check_is_tolerated_by_its_own_cause_and_none_for_its_neighbours(
    backend: Backend,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Seven checks fail by what is known; an eighth fails in the same way, and nobody knows why."""
    ledger = write_ledger(tmp_path, entry(kind='"*"', cause='"causal-mask"'))
    body = "return [('visibility', 'reads-sibling', 'causal-mask' if case.seed != 6 else '')]"
    found = check(backend("bad", body), ledger=ledger)
    (group,) = found.failures
    assert (found.exit_code, group.checks, group.case) == (1, 1, CASES[6].id)
    assert states(found) == [("tolerated", 7, 8)]
    assert found.matrix["bad"]["visibility"] == {"known": 7, "fail": 1}


def test_any_kind_of_a_cause_is_tolerated_by_one_entry_and_is_not_reduced(
    backend: Backend,  # noqa: F811
    tmp_path: Path,
) -> None:
    ledger = write_ledger(tmp_path, entry(kind='"*"', cause='"causal-mask"'))
    kinds = ("reads-sibling", "misses-ancestor")
    body = f"return [('visibility', kind, 'causal-mask') for kind in {kinds}]"
    found = check(backend("bad", body), ledger=ledger, reduce=True, fail_fast=True, workers=0)
    assert (found.exit_code, found.failures, states(found)) == (0, (), [("tolerated", 8, 8)])
    assert len(found.checks) == len(CASES)
    assert not [event for event in found.events if isinstance(event, Reduced)]


def test_a_failure_of_no_known_cause_is_not_reduced_into_one_that_has_it(
    backend: Backend,  # noqa: F811
    tmp_path: Path,
) -> None:
    ledger = write_ledger(tmp_path, entry(cause='"causal-mask"'))
    body = (
        "return [('visibility', 'reads-sibling', 'causal-mask' if case.num_rows < 4 else 'both')]"
    )
    found = check(backend("bad", body), ledger=ledger, reduce=True, workers=0)
    (group,) = found.failures
    assert found.folder.read_case(group.case).num_rows == 4


def test_entries_of_one_finding_are_over_together_and_not_one_by_one(
    backend: Backend,  # noqa: F811
    tmp_path: Path,
) -> None:
    table = '[[finding]]\nname = "mask"'
    two = [entry(finding='"mask"'), entry(finding='"mask"', kind='"misses-ancestor"')]
    ledger = write_ledger(tmp_path, table, *two)
    found = check(backend("bad", ALWAYS), ledger=ledger)
    assert (found.exit_code, states(found)) == (0, [("tolerated", 8, 8), ("tolerated", 0, 8)])
    (tmp_path / "again").mkdir()
    apart = write_ledger(tmp_path / "again", entry(), entry(kind='"misses-ancestor"'))
    found = check(backend("bad", ALWAYS), ledger=apart, run_dir=tmp_path / "other")
    assert (found.exit_code, states(found)) == (1, [("tolerated", 8, 8), ("unexpected-pass", 0, 8)])


def test_a_ledger_about_a_backend_that_nobody_has_stops_the_run_before_it_begins(
    backend: Backend,  # noqa: F811
    tmp_path: Path,
) -> None:
    ledger = write_ledger(tmp_path, entry(backend='"baad"'))
    with pytest.raises(FileError, match=r"entry 1: backend is 'baad': accepted are .*bad"):
        check(backend("bad", ALWAYS), ledger=ledger)
    assert not Path("run/meta.json").exists()


def test_a_run_without_a_ledger_says_nothing_of_one(backend: Backend) -> None:  # noqa: F811
    found = check(backend("bad", NEVER))
    assert found.ledger == ()
    assert "known failures" not in words(found)
