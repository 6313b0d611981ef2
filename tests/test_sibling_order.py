"""The order of siblings: `sample` is judged by the links that it walks, and links by what is declared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from treeproof.contract.backend import Backend
from treeproof.contract.event import Checked
from treeproof.contract.inputs import Candidates, VerifyInput
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.registry import load
from treeproof.contract.script import Admit, Prefill, Round, Turn
from treeproof.engine.check import CheckOptions, check_case
from treeproof.faults.catalog import exactly
from treeproof.faults.plant import wrapped
from treeproof.faults.sibling_order import from_the_last
from treeproof.faults.smallest import FORK, case, request, script
from treeproof.generate.pool import candidates
from treeproof.properties.plans import ascending, in_order, plans_of
from treeproof.properties.sibling_order import recover_siblings

BUSHY = (-1, 0, 0, 0, 2, 2, 3)
CASE = case(request(BUSHY, 2), request(FORK, 1, pad_rows=1), seed=4)


def descending(**declared: Any) -> Backend:
    """`topology`, whose links go through siblings from the last."""

    def around(right: Any, c: Candidates) -> VerifyInput:
        built: VerifyInput = right(c)
        return replace(built, **from_the_last(built))

    backend = wrapped(load("topology"), "build", around)
    able = msgspec.structs.replace(backend.capabilities, sibling_order="any")
    return replace(backend, capabilities=msgspec.structs.replace(able, **declared))


def checked(backend: Backend, of: Any = CASE, **options: Any) -> Checked:
    return check_case(of, backend, CheckOptions(**options))


@pytest.mark.parametrize("declared", ["any", "descending"])
def test_a_right_walk_down_links_of_another_order_passes(declared: str) -> None:
    result = checked(descending(sibling_order=declared))
    assert result.failures == ()
    assert {c.status for c in result.cells if c.stage == "sample"} == {"pass"}


def test_links_in_another_order_than_declared_are_told_and_no_walk_down_them() -> None:
    found = checked(descending(sibling_order="ascending")).failures
    assert {(f.kind, f.stage, f.probe) for f in found} == {
        ("wrong-sibling-order", "build", "declared")
    }
    assert [(f.request, f.row) for f in found] == [(0, 0), (0, 2), (1, 0)]
    assert found[0].message == (
        "links go through the children of row 0 (node 0, path 0) as rows [3, 2, 1], declared is "
        "sibling_order='ascending': [1, 2, 3]"
    )
    (first, *_) = checked(
        replace(load("topology"), capabilities=descending(sibling_order="descending").capabilities)
    ).failures
    assert first.kind == "wrong-sibling-order"


@pytest.mark.parametrize(
    "backend", [load("topology"), descending()], ids=["ascending", "descending"]
)
def test_a_walk_against_the_links_it_was_handed_is_wrong_in_either_order(backend: Backend) -> None:
    wrong = exactly("siblings-from-the-last.walked").plant(backend)
    assert ("traversal", "wrong-acceptance") in {f.key for f in checked(wrong).failures}
    assert {f.stage for f in checked(wrong).failures} == {"sample"}


def test_who_reads_no_links_is_judged_by_ascending_rows() -> None:
    """Its walk goes by links of its own, which are what the reference would build."""
    right = load("topology")

    def by_itself(as_it_was: Any, x: VerifyInput, given: Any) -> Any:
        return as_it_was(replace(x, **kept), given)

    kept: dict[str, Any] = {}

    def keeping(as_it_was: Any, c: Candidates) -> VerifyInput:
        built: VerifyInput = as_it_was(c)
        kept.update(
            retrieve_next_token=built.retrieve_next_token,
            retrieve_next_sibling=built.retrieve_next_sibling,
        )
        return replace(built, **from_the_last(built))

    links = {"retrieve_next_token", "retrieve_next_sibling"}
    blind = wrapped(wrapped(right, "build", keeping), "sample", by_itself)
    able = msgspec.structs.replace(right.capabilities, sibling_order="any")
    blind = replace(blind, consumes=right.consumes - links, capabilities=able)
    result = checked(blind, of=case(request(BUSHY, 2), seed=4), probes=frozenset({"sample"}))
    assert result.failures == ()


def test_rounds_go_by_the_links_too() -> None:
    steps = (
        Admit(request=0),
        Prefill(request=0, tokens=8),
        *(
            Round(turns=(Turn(request=0, accept=node),), sample="target-only")
            for node in (2, 5, 0, 6, 3)
        ),
    )
    of = script(request(BUSHY, 3), steps=steps, spare_pages=64)
    for backend in (load("topology"), descending()):
        result = checked(backend, of)
        assert result.failures == ()
        assert result.generated is not None
        assert result.generated.rounds == 5
        (walks,) = result.acceptance
        assert walks.expected == walks.observed
    wrong = exactly("siblings-from-the-last.walked").plant(descending())
    assert {f.stage for f in checked(wrong, of).failures} == {"sample"}


def test_siblings_are_recovered_where_links_describe_the_tree_and_nowhere_else() -> None:
    x = load("topology").make().build(candidates(CASE, SlotLedger.of(CASE)))
    down, right = x.retrieve_next_token.tolist(), x.retrieve_next_sibling.tolist()
    assert recover_siblings(CASE, down, right) == ascending(CASE)
    turned = {name: table.tolist() for name, table in from_the_last(x).items()}
    found = recover_siblings(CASE, *turned.values())
    assert found is not None
    assert found[0][0] == (3, 2, 1)
    assert found[0][2] == (5, 4)
    right[0][3] = (
        7  # behind the last child a row that is none: the tree is told by what is before it
    )
    assert recover_siblings(CASE, down, right) == ascending(CASE)
    right[0][1] = -1  # the second child is lost
    assert recover_siblings(CASE, down, right) is None


def test_a_plan_in_another_order_is_the_same_tree_with_the_same_tokens() -> None:
    plans = plans_of(CASE)
    turned = tuple(tuple(tuple(reversed(c)) for c in below) for below in ascending(CASE))
    other = in_order(plans, turned)
    assert in_order(plans, ascending(CASE)) == plans
    assert in_order(other, ascending(CASE)) == plans
    for one, two in zip(plans, other, strict=True):
        assert dict(zip(one.rows, one.tree.tokens, strict=True)) == dict(
            zip(two.rows, two.tree.tokens, strict=True)
        )
        above = [
            {p.rows[i]: p.rows[up] for i, up in enumerate(p.tree.parents) if up >= 0}
            for p in (one, two)
        ]
        assert above[0] == above[1]
    assert other[0].rows[1:4] == (3, 2, 1)
