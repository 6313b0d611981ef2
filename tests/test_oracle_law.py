"""The exact law of sampled acceptance, against counting coins one by one on a lattice."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import pytest

from treeproof.contract.tree import CandidateTree
from treeproof.oracles.law import Coins, draw, exact_law, next_token, target_only

F = Fraction
P = (F(1, 2), F(3, 10), F(1, 5))
FORK = CandidateTree((7, 0, 1), (-1, 0, 0))
DEEP = CandidateTree((7, 0, 1, 1, 2), (-1, 0, 0, 1, 1))
LAWS = (P, (F(1, 5), F(1, 5), F(3, 5)), (F(0), F(1, 2), F(1, 2)), P, P)


def counted(
    tree: CandidateTree, laws: Sequence[Sequence[Fraction]], steps: int
) -> dict[tuple[int, ...], Fraction]:
    """The same rule in floating point, for every combination of coins in the middle of `steps`
    equal cells. Exact where no threshold lies inside a cell; written without the oracle's code."""
    middles = [(i + 0.5) / steps for i in range(steps)]
    nodes = [v for v in range(len(tree)) if tree.children(v)]
    seen: Counter[tuple[int, ...]] = Counter()
    for values in itertools.product(middles, repeat=len(nodes) + 1):
        coin = dict(zip(nodes, values, strict=False))
        r, out = 0, []
        while True:
            p = [float(x) for x in laws[r]]
            residual, acc, step = list(p), 0.0, None
            for child in tree.children(r):
                x = tree.tokens[child]
                acc += p[x]
                if p[x] > 0 and coin[r] < acc:
                    step = child
                    break
                residual[x] = 0.0
            if step is None:
                u, cdf = values[-1] * sum(residual), 0.0
                for x, weight in enumerate(residual):
                    cdf += weight
                    if cdf > u:
                        out.append(x)
                        break
                break
            out.append(tree.tokens[step])
            r = step
        seen[tuple(out)] += 1
    total = sum(seen.values())
    return {tokens: F(count, total) for tokens, count in seen.items()}


@pytest.mark.parametrize(
    ("tree", "laws", "steps"),
    [(FORK, LAWS, 10), (DEEP, LAWS, 20), (CandidateTree((7,), (-1,)), (P,), 10)],
    ids=["fork", "two levels", "root only"],
)
def test_the_law_of_all_cells_is_what_counting_coins_gives(
    tree: CandidateTree, laws: Sequence[Sequence[Fraction]], steps: int
) -> None:
    assert exact_law(target_only(tree, laws)) == counted(tree, laws, steps)


def test_the_shares_of_a_law_add_up_to_1() -> None:
    assert sum(exact_law(target_only(DEEP, LAWS)).values()) == 1


def test_a_coin_that_is_asked_twice_is_one_coin() -> None:
    def walk(coins: Coins) -> tuple[int, ...]:
        return tuple(coins.pick("u", [edge]) for edge in (F(1, 2), F(1, 4), F(3, 4)))

    quarter = F(1, 4)
    assert exact_law(walk) == dict.fromkeys([(0, 0, 0), (0, 1, 0), (1, 1, 0), (1, 1, 1)], quarter)


def test_a_draw_gives_each_token_the_share_of_its_weight_and_never_one_of_none() -> None:
    weights = (F(0), F(1, 2), F(0), F(1, 4))
    assert exact_law(lambda coins: (draw(coins, "u", weights),)) == {(1,): F(2, 3), (3,): F(1, 3)}
    with pytest.raises(ValueError, match="weights are all 0"):
        exact_law(lambda coins: (draw(coins, "u", (F(0), F(0))),))


def test_at_thresholds_of_1_every_next_token_has_the_law_of_the_target() -> None:
    law = exact_law(target_only(DEEP, LAWS))
    for node in range(len(DEEP)):
        before = tuple(DEEP.tokens[v] for v in DEEP.path(node)[1:])
        assert next_token(law, before, 3) == list(LAWS[node]), before
    assert next_token(law, (2,), 3) is None  # 2 is no child of the root


def test_lower_thresholds_are_biased_towards_the_drafts() -> None:
    """Negative control of the test above: 0.8 of the mass is accepted in place of 0.5."""
    law = exact_law(target_only(FORK, LAWS, threshold_acc=F(5, 8)))
    assert next_token(law, (), 3) == [F(4, 5), F(1, 5), F(0)]
    sure = exact_law(target_only(FORK, LAWS, threshold_single=F(1, 2)))
    assert next_token(sure, (), 3) == [F(1), F(0), F(0)]


def test_a_threshold_of_0_takes_the_first_child_that_has_any_probability() -> None:
    """SGLang clamps it to 1e-9 from below; without a division by 0 there is nothing to clamp."""
    zero = exact_law(target_only(DEEP, LAWS, threshold_acc=F(0)))
    assert zero == exact_law(target_only(DEEP, LAWS, threshold_acc=F(1, 10**9)))
    assert next_token(zero, (), 3) == [F(1), F(0), F(0)]
    second = exact_law(target_only(FORK, ((F(0), F(1, 2), F(1, 2)), *LAWS[1:]), F(1), F(0)))
    assert next_token(second, (), 3) == [F(0), F(1), F(0)]


def test_a_child_without_probability_is_never_taken() -> None:
    law = exact_law(target_only(FORK, ((F(0), F(1, 2), F(1, 2)), *LAWS[1:])))
    assert not [tokens for tokens in law if tokens[0] == 0]
