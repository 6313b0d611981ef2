"""Every planted fault is caught on its smallest case, by the check that it names; and nothing is
caught there without it."""

import re
from collections import Counter
from functools import cache
from zlib import crc32

import pytest
from silent_faults import SILENT

from treeproof.contract.failure import OTHER_CASES, PROBES
from treeproof.contract.registry import load
from treeproof.engine.check import CheckOptions, check_case
from treeproof.faults.catalog import FAULTS, RECORDS, UnknownFault, named
from treeproof.faults.long import LONG
from treeproof.faults.out_of_reach import OUT_OF_REACH
from treeproof.faults.plant import PlantError, edited
from treeproof.faults.smallest import FORK, case, request
from treeproof.scoring.pairs import SUBJECTS, able_to_have

BACKENDS = {name: load(name) for name in SUBJECTS}


def pairs_of(fault):
    """The fault in one of the backends that can have it; in the others where long tests are asked for."""
    names = [*able_to_have(fault, BACKENDS)]
    one = crc32(fault.name.encode()) % max(1, len(names))
    for number, name in enumerate(names):
        marks = [pytest.mark.long] * (number != one)
        yield pytest.param(fault, name, id=f"{fault.name}-{name}", marks=marks)


PAIRS = [pair for fault in FAULTS if not fault.fatal for pair in pairs_of(fault)]


@pytest.mark.parametrize(("fault", "name"), PAIRS)
def test_the_smallest_case_shows_the_fault_to_the_check_it_names(fault, name):
    right = load(name)
    checked = check_case(fault.smallest, fault.plant(right), CheckOptions())
    seen = {(failure.identity, failure.evidence) for failure in checked.failures}
    assert (fault.identity, fault.evidence) in seen, checked
    assert _failures_without(fault.smallest, name) == ()


@cache
def _failures_without(smallest, name):
    """Many faults share their smallest case."""
    return check_case(smallest, load(name), CheckOptions()).failures


def test_every_fault_can_be_planted_into_every_backend_that_can_have_it():
    for fault, name in (pair.values for pair in PAIRS):
        assert fault.plant(load(name)) is not load(name), (fault.name, name)


SILENT_PAIRS = [pair for fault in FAULTS if fault.name in SILENT for pair in pairs_of(fault)]


@pytest.mark.parametrize(("fault", "name"), SILENT_PAIRS)
def test_a_fault_is_silent_where_its_report_says_that_the_backend_is_right(fault, name):
    # Related cases are others than this one, and may have what the fault needs.
    alone = CheckOptions(probes=frozenset(PROBES) - OTHER_CASES)
    assert check_case(SILENT[fault.name], fault.plant(load(name)), alone).failures == ()


def test_every_fault_that_is_silent_somewhere_is_in_the_catalog():
    assert {pair.values[0].name for pair in SILENT_PAIRS} == set(SILENT)


def test_fault_names_are_distinct():
    names = [fault.name for fault in FAULTS]
    assert sorted(names) == sorted(set(names))


def test_faults_that_must_show_at_long_prefixes_are_in_the_catalog():
    assert sorted(LONG) == sorted(set(LONG) & {fault.name for fault in FAULTS})


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


PLANTED = {source for fault in FAULTS for source in fault.sources} & set(RECORDS)


def test_every_record_is_planted_or_out_of_reach_and_never_both():
    assert PLANTED | set(OUT_OF_REACH) == set(RECORDS)
    assert PLANTED & set(OUT_OF_REACH) == set()
    assert len(PLANTED) == 85


def test_how_many_pairs_of_a_fault_and_a_backend_each_stage_has():
    """A predicate that has become too narrow would plant less, and nothing else would tell."""
    of_stage = Counter(pair.values[0].stage for pair in PAIRS)
    by_name = sorted(of_stage.items())
    assert by_name == [
        ("accept", 117), ("attend", 502), ("build", 380), ("commit", 191), ("draft", 17),
        ("extend", 8), ("finish", 11), ("forward", 9), ("merge", 6), ("pool", 65),
        ("process", 18), ("sample", 33), ("schedule", 10), ("select", 8),
    ]  # fmt: skip


def test_every_record_out_of_reach_says_what_it_needs():
    assert set(OUT_OF_REACH) <= set(RECORDS)
    assert all(re.fullmatch(r"needs .+: .+", why) for why in OUT_OF_REACH.values())


@pytest.mark.parametrize(
    ("first", "second", "backend"),
    [
        ("walk-first-child-only", "not-compacted", "topology"),
        ("one-cache-written.k", "accept-len-off-by-one.down", "swa-window"),
        *(
            pytest.param(*names, marks=pytest.mark.long)
            for names in (
                ("walk-root-prediction", "moved-in-place.backwards", "cascade"),
                ("bonus-from-parent.full", "boundary-off-by-one.up", "direct-mask"),
                ("write-skipped.last-row", "next-root.last-column", "page-table"),
                ("last-sibling-linked.zero", "half-moved.lanes", "page-table"),
            )
        ),
    ],
)
def test_two_faults_at_once_are_reported_as_two(first, second, backend):
    one, other = (next(f for f in FAULTS if f.name == name) for name in (first, second))
    # Rows 1 and 2 change places when the chain is accepted, row 3 is the root's other child.
    both_show = case(request((-1, 0, 1, 0), rows=(0, 2, 1, 3), prefix=1), request(FORK))
    right = load(backend)

    def keys(*faults):
        planted = right
        for fault in faults:
            planted = fault.plant(planted)
        return {f.key for f in check_case(both_show, planted, CheckOptions()).failures}

    assert keys() == set()
    assert keys(one)
    assert keys(other)
    assert keys(one).isdisjoint(keys(other))
    assert keys(one, other) == keys(one) | keys(other)
