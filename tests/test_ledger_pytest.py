"""The ledger in pytest: what is tolerated is an expected failure, and one that is over fails."""

from __future__ import annotations

import pytest
from ledger_scene import entry, in_days, write_ledger

pytest_plugins = ["pytester"]

RAISER = """
import treeproof

@treeproof.register("raiser")
def attend(x, q, k, v, k_cache, v_cache):
    raise ValueError("not today")
"""
TESTS = """
import treeproof

test_it = treeproof.make_tests(BACKEND, examples=24, reduce=False)
"""
# Two of the shape groups: one for each of two processes.
GROUPS = "float32-2x2 or float32-4x1"
KNOWN = {"backend": '"raiser"', "identity": '"contract"', "kind": '"raises"'}


def session(
    pytester: pytest.Pytester, *entries: str, backend: str = "raiser.py", processes: bool = False
) -> pytest.RunResult:
    (pytester.path / "raiser.py").write_text(RAISER)
    pytester.makepyfile(TESTS.replace("BACKEND", repr(backend)))
    ledger = write_ledger(pytester.path, *entries)
    spread = ("-n", "2") if processes else ("-p", "no:xdist")
    return pytester.runpytest_subprocess(
        "-k", GROUPS, "--treeproof-ledger", str(ledger), "-rx", *spread
    )


def outcomes(result: pytest.RunResult) -> set[str]:
    """Of the items whose cases the backend takes."""
    return result.parseoutcomes().keys() & {"passed", "failed", "xfailed", "xpassed"}


@pytest.mark.parametrize(
    "processes",
    [pytest.param(False, id="one process"), pytest.param(True, id="two", marks=pytest.mark.long)],
)
def test_what_the_ledger_tolerates_is_an_expected_failure(
    pytester: pytest.Pytester, processes: bool
) -> None:
    result = session(pytester, entry(**KNOWN), processes=processes)
    assert outcomes(result) == {"xfailed"}
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        ["XFAIL *raiser: contract: raises: the mask goes by rows: some/engine#12*"]
    )
    result.stdout.fnmatch_lines(
        ["*1. raiser  contract: raises: tolerated in * checks: *(31 days left)"]
    )
    result.stdout.fnmatch_lines(["*no identity violated*"])


@pytest.mark.long
def test_a_kind_that_no_entry_names_fails_still(pytester: pytest.Pytester) -> None:
    result = session(pytester, entry(**{**KNOWN, "kind": '"wrong-shape"'}))
    assert outcomes(result) == {"failed"}
    result.stdout.fnmatch_lines(["*contract: raises*"])


@pytest.mark.long
def test_an_expired_entry_tolerates_nothing(pytester: pytest.Pytester) -> None:
    result = session(pytester, entry(**KNOWN, expires=in_days(-1)))
    assert outcomes(result) == {"failed"}
    result.stdout.fnmatch_lines([f"*expired on {in_days(-1)}, tolerates nothing any more*"])


@pytest.mark.parametrize(
    "processes",
    [pytest.param(False, id="one process", marks=pytest.mark.long), pytest.param(True, id="two")],
)
def test_a_known_failure_that_does_not_fail_any_more_fails_the_session(
    pytester: pytest.Pytester, processes: bool
) -> None:
    over = entry(backend='"cascade"')
    result = session(pytester, over, backend="cascade", processes=processes)
    assert outcomes(result) == {"passed"}
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
        "-p", "no:xdist", "-k", GROUPS, "-rs", "--treeproof-ledger", str(ledger)
    )
    assert outcomes(result) == set()
    assert result.ret == pytest.ExitCode.TESTS_FAILED  # for nothing was checked
    result.stdout.fnmatch_lines(["*quarantined: the mask goes by rows: some/engine#12*"])
    result.stdout.fnmatch_lines(["*1. deadly  contract: crash: * not launched*"])


def test_a_ledger_that_cannot_be_used_is_a_usage_error(pytester: pytest.Pytester) -> None:
    result = session(pytester, entry(reason='"no tracker"'))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: treeproof: *known.toml: entry 1: reason is 'no tracker'*"])


@pytest.mark.long
def test_the_table_of_pyproject_names_the_ledger_beside_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS.replace("BACKEND", "'raiser.py'"))
    (pytester.path / "raiser.py").write_text(RAISER)
    write_ledger(pytester.path, entry(**KNOWN))
    pytester.makepyprojecttoml("[tool.treeproof]\nledger = 'known.toml'\n")
    result = pytester.runpytest_subprocess("-k", GROUPS, "-p", "no:xdist")
    assert outcomes(result) == {"xfailed"}
