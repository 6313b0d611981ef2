"""The law of a backend, by running all cells of its coins: wrong rules by the smallest tree or chain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

import msgspec
import pytest

from treeproof.contract.backend import Backend
from treeproof.contract.event import Checked
from treeproof.contract.registry import load
from treeproof.contract.sampling import CHAIN, TARGET_ONLY, Rule
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.faults.catalog import exactly
from treeproof.faults.smallest import case, request
from treeproof.oracles.law import Walk, target_only
from treeproof.oracles.rules import chain
from treeproof.oracles.sampled import outcomes
from treeproof.properties.lattice import Lattice, judge_law, lattices, law_of


def knowing(rules: Iterable[Rule]) -> Backend:
    """The reference, as if it knew these rules alone."""
    right = load("reference")
    capabilities = msgspec.structs.replace(right.capabilities, sampling=frozenset(rules))
    return replace(right, capabilities=capabilities)


def checked(backend: Backend, probe: str) -> Checked:
    options = CheckOptions(probes=frozenset({probe}))
    return check_case(case(request((-1, 0))), backend, options)


def walk_of(given: Lattice, i: int) -> Walk:
    tree = CandidateTree(tuple(given.tokens[i].tolist()), given.parents)
    laws = [[Fraction(share) for share in law] for law in given.probs[i].tolist()]
    if given.draft is None:
        return target_only(tree, laws)
    return chain(tree, laws, [[Fraction(q) for q in law] for law in given.draft[i].tolist()])


@pytest.mark.parametrize("complete", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("rule", [TARGET_ONLY, CHAIN])
def test_cells_are_so_laid_that_a_right_rule_has_the_law_exactly(
    rule: Rule, complete: bool
) -> None:
    for given in lattices(rule, complete):
        runs = []
        for i in range(len(given.last)):
            coins = dict(enumerate(map(Fraction, given.coins[i].tolist())))
            coins_and_last = {**coins, "last": Fraction(given.last[i].item())}
            runs += outcomes(walk_of(given, i), coins_and_last)
        assert sum(given.shares) == 1
        assert judge_law(given, law_of(given, runs)) == []
        assert law_of(given, runs) == given.wanted


@pytest.mark.parametrize("rule", [TARGET_ONLY, CHAIN])
def test_a_right_rule_passes(rule: Rule) -> None:
    result = checked(knowing({rule}), "law")
    assert result.failures == ()
    assert [c.status for c in result.cells if c.stage == "sample"] == ["pass"]


@pytest.mark.parametrize(
    ("fault", "drafts", "found"),
    [
        ("one-coin-for-two", 1, "[1] with probability 3/8, expected 1/2"),
        ("one-coin-for-two.levels", 2, "[0, 0] with probability 1/16, expected 1/32"),
        ("silently-greedy", 1, "[0] with probability 0, expected 1/4"),
        ("refused-not-removed", 1, "[0] with probability 5/16, expected 1/4"),
        ("sampled-bonus.parent", 1, "[1] with probability 9/16, expected 1/2"),
        ("another-proposal.uniform", 1, "[0] with probability 3/8, expected 1/4"),
        ("another-proposal.next-step", 2, "[0] with probability 1/2, expected 1/4"),
        ("wrong-residual.of-the-target", 1, "[1] with probability 9/16, expected 1/2"),
        ("wrong-residual.of-the-draft", 1, "[0] with probability 1/2, expected 1/4"),
        ("wrong-residual.likeliest", 1, "[1] with probability 5/8, expected 1/2"),
    ],
)
def test_a_wrong_rule_for_chains_is_told_by_the_shortest_chain(
    fault: str, drafts: int, found: str
) -> None:
    (failure,) = checked(exactly(fault).plant(knowing({CHAIN})), "law").failures
    assert failure.key == ("traversal", "wrong-law")
    assert failure.message.startswith(f"where a chain of {drafts} draft")
    assert f"what is emitted begins with {found} as by plain decoding" in failure.message


@pytest.mark.parametrize("fault", ["edge-inclusive.accept", "another-proposal.rounded"])
def test_what_no_cell_shows_given_coins_do(fault: str) -> None:
    """A coin on the very edge, and proposals that are nearly right."""
    wrong = exactly(fault).plant(knowing({CHAIN}))
    assert checked(wrong, "law").failures == ()
    assert {f.stage for f in checked(wrong, "sample").failures} == {"sample"}
