"""Why a script fails is named: one rule of a pool, or of a scheduler, that gives every answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_rounds import Hasty, Leaking, ready, served, turns, with_pool

from treeproof.backends.reference.pool import PagedPool
from treeproof.contract.case import VerifyCase
from treeproof.contract.registry import load
from treeproof.contract.wire import Reproducer, read_case_file
from treeproof.diagnosis import serving
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.look import look
from treeproof.faults import pooled
from treeproof.faults import served as serving_faults
from treeproof.faults.fault import Fault
from treeproof.faults.smallest import request

CORPUS = Path(__file__).parent / "corpus"


FAULTS = (*serving_faults.FAULTS, *pooled.FAULTS)


def kept(fault: Fault) -> VerifyCase:
    found = read_case_file(CORPUS / f"{fault.name}.json")
    assert isinstance(found, Reproducer)
    return found.case


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_rule_is_named_and_no_other(fault: Fault) -> None:
    planted = fault.plant(load("direct-mask"))
    for case in (fault.smallest, kept(fault)):
        (found,) = look(case, planted, CheckOptions())
        assert (found.cause, found.candidates) == (fault.cause, (fault.cause,))


def test_without_its_statement_a_rule_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    others = tuple(s for s in serving.STATEMENTS if s.name != "pool-keeps-surplus")
    monkeypatch.setattr(serving, "STATEMENTS", others)
    script = served(request((-1, 0), 1), steps=[*ready(0), turns(0)])
    (found,) = look(script, with_pool(Leaking), CheckOptions())
    assert (found.cause, found.candidates) == ("unknown", ())
    assert "pool-keeps-last-page" in found.ruled_out


def test_a_right_pool_has_no_cause_and_a_strange_one_has_none_that_is_known() -> None:
    script = served(request((-1, 0), 2), request((-1, 0), 2), steps=[*ready(0, 1), turns(1, 1)])
    assert look(script, with_pool(PagedPool), CheckOptions()) == ()

    class Mirrored(Hasty):
        """It hands out the same page again and again."""

        def reserve(self, request: int, columns: int) -> tuple[int, ...]:
            return tuple([1] * -(-columns // self.page))

    (found,) = look(script, with_pool(Mirrored), CheckOptions())
    assert found.cause == "unknown"
