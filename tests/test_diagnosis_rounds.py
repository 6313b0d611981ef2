"""Why a round of a script fails is named: by the round as a case of its own, alone or after another one."""

from __future__ import annotations

from typing import Any

import pytest
from test_rounds import TREE, ready, served, spoiled, turns

from treeproof.contract.case import VerifyCase
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.contract.registry import load
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.look import look
from treeproof.faults.catalog import exactly
from treeproof.faults.smallest import request

SCRIPT = served(
    request(TREE, 6), request(TREE, 4, rows=(0, 4, 3, 2, 1)), page_size=2,
    steps=[*ready(0, 1), turns(3, 4), turns(4, 2), turns(1, 3)],
)  # fmt: skip


def cause(fault: str, backend: str, script: VerifyCase | None = None) -> str:
    planted = exactly(fault)
    (found,) = look(script or planted.smallest, planted.into(load(backend)), CheckOptions())
    assert found.cause == "unknown" or found.says
    return found.cause


@pytest.mark.parametrize(
    ("fault", "backend"),
    [
        ("causal-kernel", "cascade"),
        ("not-compacted", "page-table"),
        ("boundary-off-by-one.up", "topology"),
        pytest.param("walk-first-child-only", "direct-mask", marks=pytest.mark.long),
        pytest.param("companion.left-behind", "swa-window", marks=pytest.mark.long),
    ],
)
def test_what_a_single_round_shows_is_named_as_it_is_there(fault: str, backend: str) -> None:
    assert cause(fault, backend, SCRIPT) == exactly(fault).cause != "unknown"


@pytest.mark.parametrize(
    ("fault", "backend"),
    [
        ("last-round.lengths", "topology"),
        ("companion.from-old-boundary", "direct-mask"),
        ("layer-of-first-round.sinks", "swa-window"),
        pytest.param("last-round.plan", "cascade", marks=pytest.mark.long),
        pytest.param("last-round.build", "page-table", marks=pytest.mark.long),
        pytest.param("layer-of-first-round.scales", "cascade", marks=pytest.mark.long),
        pytest.param("layer-of-first-round.window", "topology", marks=pytest.mark.long),
    ],
)
def test_what_shows_after_another_round_alone_is_named_on_an_object_that_has_run_it(
    fault: str, backend: str
) -> None:
    assert cause(fault, backend) == exactly(fault).cause != "unknown"


def test_what_no_statement_explains_is_unknown_and_all_that_was_tried_is_ruled_out() -> None:
    calls: list[int] = []

    def around(right: Any, x: VerifyInput, *tensors: Any) -> Attended:
        """From the third launch on the first lane of each row is another one."""
        calls.append(1)
        done: Attended = right(x, *tensors)
        if len(calls) > 2:
            done.out[..., 0] = 0.125 - done.out[..., 0]
        return done

    script = served(request(prefix=1), steps=[*ready(0), turns(0), turns(0)])
    (found,) = look(script, spoiled("attend", around), CheckOptions())
    assert (found.cause, found.candidates) == ("unknown", ())
    assert {"stale-plan", "causal-mask", "pool-keeps-surplus"} <= set(found.ruled_out)


def test_rounds_that_are_right_have_no_cause() -> None:
    assert look(SCRIPT, load("cascade"), CheckOptions()) == ()
