"""What sampled acceptance may emit for given coins, against intervals worked out by hand."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from fractions import Fraction

import pytest

from treeproof.contract.tree import CandidateTree
from treeproof.oracles.law import target_only
from treeproof.oracles.sampled import outcomes

F = Fraction
FORK = CandidateTree((7, 0, 1), (-1, 0, 0))
P = (F(1, 2), F(1, 4), F(1, 4))
WALK = target_only(FORK, (P, P, P))


@pytest.mark.parametrize(
    ("coin", "last", "emitted"),
    [
        (F(0), F(0), (0, 0)),
        (F(1, 2) - F(1, 10**9), F(0), (0, 0)),
        (F(1, 2), F(1, 2), (1, 1)),  # on the edge of the first child: it is the second's
        (F(3, 4), F(0), (2,)),  # on the edge of the last: nobody's
        (F(1) - F(1, 10**9), F(9, 10), (2,)),
        (F(0), F(3, 4), (0, 2)),
    ],
)
def test_a_coin_on_an_edge_is_beyond_it(
    coin: Fraction, last: Fraction, emitted: tuple[int, ...]
) -> None:
    assert outcomes(WALK, {0: coin, 1: F(0), 2: F(0), "last": last}) == {emitted}


def near(coin: Hashable, edges: Sequence[Fraction]) -> Fraction:
    return F(1, 100)


@pytest.mark.parametrize(
    ("coin", "emitted"),
    [
        (F(1, 2), {(0, 0), (1, 0)}),
        (F(1, 2) - F(1, 200), {(0, 0), (1, 0)}),
        (F(1, 2) + F(1, 200), {(0, 0), (1, 0)}),
        (F(1, 2) - F(1, 199), {(0, 0)}),
        (F(1, 2) + F(1, 199), {(1, 0)}),
        (F(3, 4), {(1, 0), (2,)}),
    ],
)
def test_a_coin_as_near_an_edge_as_rounding_reaches_is_a_tie_and_one_further_off_is_none(
    coin: Fraction, emitted: set[tuple[int, ...]]
) -> None:
    values: dict[Hashable, Fraction] = {0: coin, 1: F(1, 4), 2: F(1, 4), "last": F(1, 4)}
    assert outcomes(WALK, values, near) == emitted


def test_a_child_without_probability_is_no_tie_either() -> None:
    law = (F(1, 2), F(0), F(1, 2))
    walk = target_only(FORK, (law, P, P))
    values: dict[Hashable, Fraction] = {0: F(1, 2), 1: F(1, 4), 2: F(1, 4), "last": F(1, 4)}
    assert outcomes(walk, values, near) == {(0, 0), (2,)}
