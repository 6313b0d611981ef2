"""What lies by the slots beside keys and values moves with them: in single rounds, and over many."""

from __future__ import annotations

import pytest

from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Failure
from treeproof.contract.registry import load
from treeproof.contract.script import Admit, Prefill, Round, Turn
from treeproof.engine.check import check_case
from treeproof.engine.checks.options import CheckOptions
from treeproof.faults.catalog import exactly
from treeproof.faults.smallest import FORK, SERVED, case, request

TREE = (-1, 0, 0, 2)
SINGLE = case(request(TREE, prefix=3), page_size=2, spare_pages=3)
SCRIPT = case(
    request(TREE, prefix=3),
    script=[
        Admit(request=0),
        Prefill(request=0),
        *(Round(turns=(Turn(request=0, accept=node),)) for node in (1, 3, 0)),
    ],
    page_size=2,
    spare_pages=8,
    **SERVED,
)
VARIANTS = ("left-behind", "by-page", "by-old-lengths")


def failures(shown: VerifyCase, variant: str | None, backend: str) -> tuple[Failure, ...]:
    right = load(backend)
    planted = right if variant is None else exactly(f"companion.{variant}").into(right)
    return check_case(shown, planted, CheckOptions()).failures


@pytest.mark.parametrize("backend", ["direct-mask", "cascade"])
def test_nothing_is_said_of_commits_that_move_every_pool(backend: str) -> None:
    assert failures(SINGLE, None, backend) == ()
    assert failures(SCRIPT, None, backend) == ()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_single_round_shows_a_pool_that_is_moved_otherwise(variant: str) -> None:
    found = failures(SINGLE, variant, "cascade")
    assert {(f.identity, f.stage, f.evidence) for f in found} == {("kv", "commit", "measured")}
    # Probes of later rounds see it again; the first of them says where it is.
    assert found[0].message.endswith(", in what lies beside keys and values")


@pytest.mark.parametrize("variant", [*VARIANTS, "from-old-boundary"])
def test_a_script_shows_a_pool_that_is_moved_otherwise(variant: str) -> None:
    found = failures(SCRIPT, variant, "direct-mask")
    assert {(f.identity, f.stage) for f in found} == {("kv", "commit")}
    assert ", in layer 1; seen in step" in found[0].message


def test_a_wrong_move_of_keys_and_values_is_told_once() -> None:
    shown = case(request(FORK))
    planted = exactly("not-compacted").into(load("cascade"))
    found = check_case(shown, planted, CheckOptions()).failures
    assert not any("beside" in failure.message for failure in found)
    assert found
