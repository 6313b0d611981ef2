"""What a backend showed on the smallest case of a failure, as an event for pictures."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from report_runs import star

from treeproof.contract.event import Event, Read, Shown
from treeproof.contract.registry import load
from treeproof.engine.check import check_case
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.look import look_and_show
from treeproof.faults.catalog import FAULTS
from treeproof.reports.trace import trace_lines

OPTIONS = CheckOptions()


def shown(fault: str, backend: str) -> Shown:
    planted = next(f for f in FAULTS if f.name == fault).into(load(backend))
    found = look_and_show(star(), planted, OPTIONS)[1]
    assert found is not None
    return found


def test_a_right_backend_reads_what_it_must_and_stays_inside_the_bound() -> None:
    _, found = look_and_show(star(), load("direct-mask"), OPTIONS)
    assert found is not None
    assert [[slot for slot, _ in read.slots] for read in found.reads] == [
        [found.slots[0]], [found.slots[0], found.slots[1]], [found.slots[0], found.slots[2]],
    ]  # fmt: skip
    assert {read.prefix for read in found.reads} == {3.0}
    assert max(max(row) for row in found.errors) < 1
    assert {slot: (k, v) for slot, k, v in found.writes} == {
        slot: (row, row) for row, slot in enumerate(found.slots)
    }
    assert found.positions == (3, 4, 4)
    assert found.links["retrieve_next_sibling"] == ((-1, 2, -1),)
    for reads in found.declared.values():
        assert reads == found.reads


def test_a_leak_shows_in_the_row_that_reads_and_in_its_error() -> None:
    found = shown("causal-kernel", "page-table")
    assert [slot for slot, _ in found.reads[2].slots] == list(found.slots)
    assert [max(row) > 1 for row in found.errors] == [False, False, True]


def test_tables_of_two_stages_say_which_is_wrong() -> None:
    planted = next(f for f in FAULTS if f.name == "causal-kernel").into(load("page-table"))
    checked = check_case(star(), planted, OPTIONS)
    found = {r.source: r.values for r in checked.recovered if r.identity == "visibility"}
    assert found.pop("") == ((-1, 0, 1),)  # measured
    assert found == {"build: page tables": ((-1, 0, 0),), "attend: lists of slots": ((-1, 0, 1),)}
    for source, parents in found.items():
        said = trace_lines(star(), 0, 2, checked)
        assert f"declared, {source}: parent row {parents[0][2]}" in " ".join(said)


def test_a_prefix_that_weighs_too_much_shows_with_the_cases_own_data() -> None:
    """With one key, whose equal weight is 1, no logarithm shows its base."""
    case = star(prefix=1)
    planted = next(f for f in FAULTS if f.name == "base-2-lse.prefix").into(load("cascade"))
    wrong = look_and_show(case, planted, OPTIONS)[1]
    right = look_and_show(case, load("cascade"), OPTIONS)[1]
    assert wrong is not None
    assert right is not None
    assert {read.prefix for read in wrong.reads} == {1.0}
    assert len(wrong.shares) == len(right.shares) == 3
    assert all(abs(seen - due) <= 0.001 for seen, due in right.shares)
    assert all(abs(seen - due) > 0.01 for seen, due in wrong.shares)


def test_an_event_reads_back_as_it_was_written() -> None:
    found = shown("causal-kernel", "page-table")
    assert msgspec.json.decode(msgspec.json.encode(found), type=Event) == found
    assert found.reads[0] == Read(prefix=3.0, slots=((found.slots[0], 1.0),))


def test_wide_cases_and_scripts_are_not_shown() -> None:
    from treeproof.contract.case import Request
    from treeproof.contract.tree import CandidateTree
    from treeproof.engine.observe import observe
    from treeproof.engine.shown import MAX_ROWS
    from treeproof.engine.shown import shown as picture

    rows = MAX_ROWS + 1
    tree = CandidateTree(tuple(range(rows)), (-1, *(0,) * (rows - 1)))
    request = Request(tree=tree, row_of_node=tuple(range(rows)), prefix_len=0)
    seen = observe(star(), load("direct-mask"), OPTIONS)
    assert seen is not None
    wide = msgspec.structs.replace(
        star(),
        requests=(request,),
        shape=msgspec.structs.replace(star().shape, head_dim=16, v_head_dim=16),
        layout=msgspec.structs.replace(star().layout, num_slots=1024),
    )
    assert picture(replace(seen, case=wide), "mine") is None
