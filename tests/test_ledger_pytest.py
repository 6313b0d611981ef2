"""The ledger in pytest: what is tolerated is an expected failure, and one that is over fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from ledger_scene import entry, in_days, write_ledger

pytest_plugins = ["pytester"]

FAULTY = Path(__file__).parent.parent / "examples" / "faulty_backend.py"
TESTS = """
import treeproof

test_it = treeproof.make_tests(BACKEND, identity="visibility", examples=120, reduce=False)
"""
GROUP = "float32-4x1-d64-p2-full or float16-4x2-d64v32-p16-full"
SIBLING, DESCENDANT, ANCESTOR, SUM = (
    entry(backend='"causal"', kind=f'"{kind}"')
    for kind in ("reads-sibling", "reads-descendant", "misses-ancestor", "wrong-prefix-sum")
)


def session(
    pytester: pytest.Pytester, *entries: str, backend: str = str(FAULTY), processes: bool = False
) -> pytest.RunResult:
    pytester.makepyfile(TESTS.replace("BACKEND", repr(backend)))
    ledger = write_ledger(pytester.path, *entries)
    spread = ("-n", "2") if processes else ("-p", "no:xdist")
    return pytester.runpytest_subprocess(
        "-k", GROUP, "--treeproof-ledger", str(ledger), "-rx", *spread
    )


@pytest.mark.parametrize("processes", [False, True], ids=["one process", "two"])
def test_what_the_ledger_tolerates_is_an_expected_failure(
    pytester: pytest.Pytester, processes: bool
) -> None:
    result = session(pytester, SIBLING, DESCENDANT, ANCESTOR, SUM, processes=processes)
    outcomes = result.parseoutcomes()
    assert outcomes.keys() & {"xfailed", "failed", "passed"} == {"xfailed"}
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["XFAIL *causal: *visibility: reads-sibling: the mask goes by rows: some/engine#12*"]
    )
    result.stdout.fnmatch_lines(
        ["*1. causal  visibility: reads-sibling: tolerated in * checks: *(31 days left)"]
    )
    result.stdout.fnmatch_lines(["*no identity violated*"])


def test_a_kind_that_no_entry_names_fails_still(pytester: pytest.Pytester) -> None:
    result = session(pytester, DESCENDANT, ANCESTOR, SUM)
    assert result.parseoutcomes()["failed"] >= 1
    result.stdout.fnmatch_lines(["*visibility: reads-sibling*"])


def test_an_expired_entry_tolerates_nothing(pytester: pytest.Pytester) -> None:
    past = entry(backend='"causal"', expires=in_days(-1))
    result = session(pytester, past, DESCENDANT, ANCESTOR, SUM)
    assert result.parseoutcomes()["failed"] >= 1
    result.stdout.fnmatch_lines([f"*expired on {in_days(-1)}, tolerates nothing any more*"])


@pytest.mark.parametrize("processes", [False, True], ids=["one process", "two"])
def test_a_known_failure_that_does_not_fail_any_more_fails_the_session(
    pytester: pytest.Pytester, processes: bool
) -> None:
    over = entry(backend='"cascade"')
    result = session(pytester, over, backend="cascade", processes=processes)
    outcomes = result.parseoutcomes()
    assert outcomes.keys() & {"xfailed", "failed", "passed"} == {"passed"}
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*unexpected pass of ledger entry 1*"])


def test_a_quarantined_case_is_never_launched(pytester: pytest.Pytester) -> None:
    deadly = entry(
        **{"class": '"quarantined"', "backend": '"deadly"', "identity": '"contract"'},
        kind='"crash"',
    )
    pytester.makepyfile(
        """
        import os
        import treeproof

        @treeproof.register("deadly")
        def attend(x, q, k, v, k_cache, v_cache):
            os.abort()

        test_deadly = treeproof.make_tests(attend, examples=120)
        """
    )
    ledger = write_ledger(pytester.path, deadly)
    result = pytester.runpytest_subprocess(
        "-p", "no:xdist", "-k", GROUP, "-rs", "--treeproof-ledger", str(ledger)
    )
    outcomes = result.parseoutcomes()
    assert outcomes.keys() & {"xfailed", "failed", "passed", "skipped"} == {"skipped"}
    assert result.ret == pytest.ExitCode.TESTS_FAILED  # for nothing was checked
    result.stdout.fnmatch_lines(["*quarantined: the mask goes by rows: some/engine#12*"])
    result.stdout.fnmatch_lines(["*1. deadly  contract: crash: * not launched*"])


def test_a_ledger_that_cannot_be_used_is_a_usage_error(pytester: pytest.Pytester) -> None:
    result = session(pytester, entry(reason='"no tracker"'))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: treeproof: *known.toml: entry 1: reason is 'no tracker'*"])


def test_the_table_of_pyproject_names_the_ledger_beside_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS.replace("BACKEND", repr(str(FAULTY))))
    write_ledger(pytester.path, SIBLING, DESCENDANT, ANCESTOR, SUM)
    pytester.makepyprojecttoml("[tool.treeproof]\nledger = 'known.toml'\n")
    result = pytester.runpytest_subprocess("-k", GROUP, "-p", "no:xdist")
    outcomes = result.parseoutcomes()
    assert outcomes.keys() & {"xfailed", "failed", "passed"} == {"xfailed"}
