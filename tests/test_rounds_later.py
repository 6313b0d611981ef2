"""Faults that show in a later round alone: the first round of their script is right, and a later one is not."""

from __future__ import annotations

import msgspec
import pytest
from test_rounds import checked

from treeproof.contract.registry import load
from treeproof.contract.script import Round
from treeproof.faults import later_rounds
from treeproof.faults.fault import Fault


@pytest.mark.parametrize(
    "fault", [*later_rounds.FAULTS, *later_rounds.MORE], ids=lambda fault: fault.name
)
def test_what_is_kept_from_round_to_round_is_seen_in_a_later_one(fault: Fault) -> None:
    wrong, script = fault.into(load("reference")), fault.smallest
    assert checked(script, "reference").failures == ()
    found = checked(script, wrong)
    assert {(f.identity, f.evidence, f.stage) for f in found.failures} == {
        (fault.identity, fault.evidence, fault.stage)
    }
    last = max(i for i, step in enumerate(script.script) if isinstance(step, Round))
    assert found.failures[0].message.endswith(f"seen in step {last + 1} of the script")
    before = msgspec.structs.replace(script, script=script.script[:last])
    assert checked(before, wrong).failures == ()
