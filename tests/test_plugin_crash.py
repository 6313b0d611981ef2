"""A backend that ends the process of its test is a finding, as it is in a run."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

DEADLY = """
import os
import signal

import treeproof

@treeproof.register("deadly")
def attend(x, q, k, v, k_cache, v_cache):
    os.kill(os.getpid(), signal.SIGSEGV)
"""


def test_what_a_process_was_checking_when_it_died_is_reported_and_kept(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(deadly=DEADLY)
    pytester.makepyfile(
        test_deadly="import treeproof\ntest_it = treeproof.make_tests('deadly.py', examples=1)"
    )
    result = pytester.runpytest_subprocess("-n1", "--treeproof-run-dir=run")
    result.assert_outcomes(failed=1)
    path = "run/failures/deadly-contract-crash.json"
    result.stdout.fnmatch_lines(
        [
            "✗ deadly  contract: crash: deadly in stage attend: the process of the test ended",
            f"treeproof replay {path} --backend deadly.py",
        ]
    )
    assert (pytester.path / path).exists()
