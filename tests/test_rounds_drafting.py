"""Scripts drive the stages that draft: what a backend lays out, selects and extends is judged in each round."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_rounds import TREE, checked, ready, served, turns

from treeproof.contract.backend import Backend
from treeproof.contract.drafting import Drafted, DraftStep
from treeproof.contract.inputs import DraftPool, Selected
from treeproof.contract.registry import load
from treeproof.contract.script import Finish
from treeproof.faults import drafts, extends, selects
from treeproof.faults.fault import Fault
from treeproof.faults.smallest import request

FORK = (-1, 0, 0)

SCRIPTS = (
    served(
        request(TREE, 3), request(FORK, 6), steps=[*ready(0, 1), turns(3, 1), turns(4, 2, idle=1)],
        page_size=2, layout={"order": "shuffled"},
    ),
    served(request((-1, 0, 0, 1), 1), steps=[*ready(0), turns(3), turns(1)]),
    # Chains, each accepted whole, pages of one slot.
    served(request((-1, 0, 1), 2), request((-1, 0), 5), steps=[*ready(0, 1), turns(2, 1), turns(0, 0)]),
    served(
        request(TREE, 5, rows=(0, 4, 3, 2, 1)), request(TREE, 9, pad_rows=2),
        steps=[*ready(0), turns(3), *ready(1), turns(0, 4), Finish(request=0), *ready(0), turns(2, 1)],
        page_size=4,
    ),
)  # fmt: skip


def cells(backend: Backend | str, script: int = 0) -> set[tuple[str, str, str, str]]:
    found = checked(SCRIPTS[script], backend)
    assert found.failures == ()
    return {(c.identity, c.evidence, c.stage, c.status) for c in found.cells}


@pytest.mark.parametrize("script", range(len(SCRIPTS)))
def test_each_kind_of_evidence_of_a_drafting_stage_is_a_verdict_of_rounds(script: int) -> None:
    assert cells("reference", script) >= {
        ("position", "declared", "draft", "pass"),
        ("kv", "declared", "draft", "pass"),
        ("visibility", "declared", "draft", "pass"),
        ("candidate", "declared", "select", "pass"),
        ("candidate", "measured", "extend", "pass"),
        ("position", "declared", "extend", "pass"),
        ("kv", "declared", "extend", "pass"),
    }


def test_a_stage_that_a_backend_lacks_is_no_verdict_of_its_rounds() -> None:
    stages = {stage for *_, stage, _ in cells("direct-mask")}
    assert stages.isdisjoint({"draft", "select", "extend"})


def test_what_the_reference_does_inside_a_stage_is_no_evidence_of_it() -> None:
    from treeproof.backends import reference

    right = load("direct-mask")

    class Borrowing(right.make):  # type: ignore[name-defined,misc]
        def draft(self, step: DraftStep) -> Drafted:
            return reference.draft(step)

        def select(self, pool: DraftPool, num_rows: int) -> Selected:
            return reference.select(pool, num_rows)

    found = cells(replace(right, make=Borrowing, stages=right.stages | {"draft", "select"}))
    assert {stage for *_, stage, _ in found}.isdisjoint({"draft", "select"})


# Scores of a script's pools are all different, and fall along the pool.
_NEED_OTHER_SCORES = {"child-before-parent", "selected-by-step", "selection-unordered"}
_PLANTED = [
    fault
    for fault in (*drafts.FAULTS, *selects.FAULTS, *extends.FAULTS)
    if fault.stage in ("draft", "select", "extend") and fault.name not in _NEED_OTHER_SCORES
]


@pytest.mark.parametrize("fault", _PLANTED, ids=lambda fault: fault.name)
def test_faults_of_single_steps_are_seen_in_rounds(fault: Fault) -> None:
    wrong = fault.into(load("reference"))
    found = [checked(script, wrong) for script in SCRIPTS]
    seen = {(f.identity, f.evidence, f.stage) for one in found for f in one.failures}
    assert (fault.identity, fault.evidence, fault.stage) in seen
