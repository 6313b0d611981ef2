"""Defects beside the catalog: each is caught on its smallest case by the check that it names."""

from collections import Counter
from functools import cache

import pytest

from treeproof.contract.registry import load
from treeproof.engine.check import CheckOptions, check_case
from treeproof.faults.catalog import FAULTS
from treeproof.faults.further import FURTHER

BACKENDS = ("direct-mask", "cascade", "page-table", "swa-window", "topology")

PAIRS = [
    pytest.param(fault, name, id=f"{fault.name}-{name}")
    for fault in FURTHER
    for name in BACKENDS
    if fault.applies(load(name))
]


@pytest.mark.parametrize(("fault", "name"), PAIRS)
def test_the_smallest_case_shows_the_defect_to_the_check_it_names(fault, name):
    right = load(name)
    checked = check_case(fault.smallest, fault.plant(right), CheckOptions())
    seen = {(failure.identity, failure.evidence) for failure in checked.failures}
    assert (fault.identity, fault.evidence) in seen, checked
    assert _failures_without(fault.smallest, name) == ()


@cache
def _failures_without(smallest, name):
    """Many defects share their smallest case."""
    return check_case(smallest, load(name), CheckOptions()).failures


def test_no_defect_bears_a_name_of_the_catalog():
    names = [fault.name for fault in (*FAULTS, *FURTHER)]
    assert sorted(names) == sorted(set(names))


def test_every_backend_and_every_stage_has_defects():
    of_backend = Counter(pair.values[1] for pair in PAIRS)
    of_stage = Counter(fault.stage for fault in FURTHER)
    assert min(of_backend[name] for name in BACKENDS) >= 2
    assert min(of_stage[stage] for stage in ("build", "attend", "accept", "commit")) >= 5


def test_a_third_of_the_defects_has_no_cause_that_anybody_could_name():
    unknown = sum(fault.cause == "unknown" for fault in FURTHER)
    assert len(FURTHER) / 4 < unknown < len(FURTHER) / 2
