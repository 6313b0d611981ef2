"""Every planted fault is caught on its smallest case, by the check that it names; and nothing is
caught there without it."""

import pytest

from treeproof.contract.registry import load
from treeproof.engine.check import CheckOptions, check_case
from treeproof.faults.catalog import FAULTS, UnknownFault, named
from treeproof.faults.plant import PlantError, edited

BACKENDS = ("direct-mask", "cascade", "page-table", "swa-window", "topology")

PAIRS = [
    pytest.param(fault, name, id=f"{fault.name}-{name}")
    for fault in FAULTS
    for name in BACKENDS
    if not fault.fatal and fault.applies(load(name))
]


@pytest.mark.parametrize(("fault", "name"), PAIRS)
def test_the_smallest_case_shows_the_fault_to_the_check_it_names(fault, name):
    right = load(name)
    checked = check_case(fault.smallest, fault.plant(right), CheckOptions())
    seen = {(failure.identity, failure.evidence) for failure in checked.failures}
    assert (fault.identity, fault.evidence) in seen, checked
    assert check_case(fault.smallest, right, CheckOptions()).failures == ()


def test_fault_names_are_distinct():
    names = [fault.name for fault in FAULTS]
    assert sorted(names) == sorted(set(names))


def test_an_edit_whose_text_is_not_there_plants_nothing():
    with pytest.raises(PlantError, match="0 times, not once: 'no such line'"):
        edited(load("cascade"), ("no such line", "anything"))


def test_an_edited_backend_leaves_the_right_one_alone():
    before = load("cascade")
    planted = edited(before, ("top = torch.maximum(lse_a, lse_b)", "top = lse_a"))
    assert planted.make is not before.make
    assert load("cascade") is before


def test_an_unknown_fault_is_named_with_what_is_near():
    with pytest.raises(
        UnknownFault, match=r"no fault named 'window-by-rows'; near it: window-by-row"
    ):
        named(("window-by-rows",))
