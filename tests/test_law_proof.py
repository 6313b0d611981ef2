"""Sampled acceptance emits what plain decoding emits, in law: proved, for all tables at once.

What is proved. For a tree and a vocabulary, `exact_law` runs the rule for every way in which coins can
fall, and gives the share of each run of tokens. Here its probabilities are unknowns: any laws whose
probabilities are all above 0, each node its own. Every comparison of the rule comes out the same for
all of them (`Symbol` would refuse otherwise), so the shares are quotients of polynomials that hold for
all these laws together, and equal to `until_it_leaves` as polynomials. Laws with zeros are limits of
them: the length of each coin's interval is continuous in the table, and where the residual that the last
token is drawn from vanishes, so does the share of coming there. The faces themselves are proved for all
trees up to four nodes.

Trees: all shapes up to six nodes, siblings in no order, with every assignment of tokens up to renaming.
The rule finds tokens by comparing them for equality and draws the last one by numbers, of which only the
widths matter to a law; so a renamed tree has the renamed law.

What follows for a backend. A run is a function of links, probabilities and coins. Where a backend emits
what the oracle's walk emits, for the coins of every cell that the walk tells apart, it has the walk's law;
the checks of stage `sample` lay coins on both sides of those edges, and on small trees run every cell.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import chain, combinations
from typing import Any

import pytest

from treeproof.contract.tree import CandidateTree
from treeproof.oracles.autoregressive import assignments, shapes, until_it_leaves
from treeproof.oracles.law import Coins, Tokens, Walk, draw, exact_law, target_only
from treeproof.oracles.symbolic import Symbol, Undecided, any_law, unknown

F = Fraction
Rule = Callable[[CandidateTree, Any], Walk]


def trees(most: int, size: int) -> list[CandidateTree]:
    return [
        tree
        for parents in shapes(most)
        if max(map(parents.count, parents)) <= size
        for tree in assignments(parents, size)
    ]


def differs(rule: Rule, tree: CandidateTree, laws: Any) -> bool:
    """Whether the law is another for some table of this kind."""
    try:
        found = exact_law(rule(tree, laws))
    except Undecided:
        return True
    true = until_it_leaves(tree, laws)
    return found.keys() != true.keys() or any(found[run] != true[run] for run in true)


def test_shapes_are_all_unordered_trees() -> None:
    """1, 1, 2, 4, 9, 20: rooted trees of 1 to 6 nodes (OEIS A000081)."""
    sizes = [len(parents) for parents in shapes(6)]
    assert [sizes.count(n) for n in range(1, 7)] == [1, 1, 2, 4, 9, 20]


def test_assignments_of_a_chain_are_the_partitions_of_its_drafts() -> None:
    """Into at most 3 sets: 1 + 15 + 25 of five."""
    assert len(list(assignments((-1, 0, 1, 2, 3, 4), 3))) == 41
    assert len(list(assignments((-1, 0, 0, 0), 3))) == 1
    assert len(list(assignments((-1, 0, 0, 1), 3))) == 3


def test_the_law_is_that_of_plain_decoding_for_every_table_on_every_tree_of_six_nodes() -> None:
    every = range(3)
    proved = 0
    for tree in trees(6, 3):
        laws = [any_law(tuple(every), 3) for _ in range(len(tree))]
        assert not differs(target_only, tree, laws), tree
        proved += 1
    assert proved == 402


@pytest.mark.long
def test_the_law_is_that_of_plain_decoding_with_four_tokens() -> None:
    proved = 0
    for tree in trees(6, 4):
        laws = [any_law((0, 1, 2, 3), 4) for _ in range(len(tree))]
        assert not differs(target_only, tree, laws), tree
        proved += 1
    assert proved == 555


def supports(size: int) -> list[tuple[int, ...]]:
    tokens = range(size)
    return list(chain.from_iterable(combinations(tokens, n) for n in range(1, size + 1)))


@pytest.mark.parametrize("size", [3, pytest.param(4, marks=pytest.mark.long)])
def test_so_it_is_where_a_node_gives_some_tokens_no_probability(size: int) -> None:
    """One node at a time: what is decided at a node depends on its own law and coin alone."""
    for tree in trees(4, size):
        for node in range(len(tree)):
            for support in supports(size):
                laws = [any_law(tuple(range(size)), size) for _ in range(len(tree))]
                laws[node] = any_law(support, size)
                assert not differs(target_only, tree, laws), (tree, node, support)


def wrong(change: str) -> Rule:
    """The rule with one thing wrong."""

    def rule(tree: CandidateTree, target: Any) -> Walk:
        def walk(coins: Coins) -> Tokens:
            node, emitted, above = 0, [], 0
            while True:
                law, children = target[node], tree.children(node)
                if change == "argmax":
                    best = max(range(len(law)), key=lambda t: float(law[t]))
                    taken = (
                        [tree.tokens[c] for c in children].index(best)
                        if best in [tree.tokens[c] for c in children]
                        else len(children)
                    )
                else:
                    edges, reached = [], F(0)
                    for child in children:
                        reached = reached + law[tree.tokens[child]]
                        edges.append(reached)
                    coin = 0 if change == "one coin for all levels" else node
                    taken = coins.pick(coin, edges)
                if taken < len(children):
                    above, node = node, children[taken]
                    emitted.append(tree.tokens[node])
                    continue
                if change == "argmax":
                    return (*emitted, best)
                refused = {tree.tokens[c] for c in children}
                left = [F(0) if t in refused else share for t, share in enumerate(law)]
                if change == "refused not removed":
                    left = list(law)
                if change == "first refused only":
                    first = tree.tokens[children[0]] if children else -1
                    left = [F(0) if t == first else share for t, share in enumerate(law)]
                if change == "bonus from the parent" and not children:
                    left = list(target[above])
                last = node if change == "coin reused" and children else "last"
                if change == "not renormalised":
                    reached, cuts = F(0), []
                    for share in left:
                        reached = reached + share
                        cuts.append(reached)
                    return (*emitted, min(coins.pick(last, cuts), len(law) - 1))
                return (*emitted, draw(coins, last, left))

        return walk

    return rule


def test_the_rule_of_these_controls_is_right_where_nothing_is_changed() -> None:
    for tree in trees(4, 3):
        laws = [any_law((0, 1, 2), 3) for _ in range(len(tree))]
        assert not differs(wrong("nothing"), tree, laws), tree


TABLE = ((F(1, 2), F(1, 4), F(1, 4)), (F(1, 4), F(1, 8), F(5, 8)), (F(1, 8), F(3, 4), F(1, 8)))


@pytest.mark.parametrize(
    ("change", "smallest"),
    [
        ("coin reused", (-1, 0)),
        ("one coin for all levels", (-1, 0, 1)),
        ("argmax", (-1,)),
        ("refused not removed", (-1, 0)),
        ("first refused only", (-1, 0, 0)),
        ("not renormalised", (-1, 0)),
        ("bonus from the parent", (-1, 0)),
    ],
)
def test_each_wrong_rule_is_refuted_by_the_smallest_tree(
    change: str, smallest: tuple[int, ...]
) -> None:
    """By a table of numbers: `<=` in place of `<` has the same law, and is for given coins to see."""
    refuted = next(
        tree
        for tree in trees(4, 3)
        if differs(wrong(change), tree, [TABLE[v % 3] for v in range(len(tree))])
    )
    assert refuted.parents == smallest


@pytest.mark.parametrize("change", ["coin reused", "refused not removed", "bonus from the parent"])
def test_a_wrong_rule_is_refuted_for_unknown_tables_too(change: str) -> None:
    tree = CandidateTree((0, 0), (-1, 0))
    assert differs(wrong(change), tree, [any_law((0, 1, 2), 3) for _ in range(2)])


def test_unknowns_are_compared_for_all_their_values_or_not_at_all() -> None:
    a, b = unknown(), unknown()
    assert a / (a + b) < 1
    assert (a + b) / (a + b) == 1
    assert a / (a + b) + b / (a + b) == 1
    assert (a * a - b * b) / (a + b) == a - b
    assert a + b > b
    with pytest.raises(Undecided):
        assert a > b
    with pytest.raises(Undecided):
        assert a * a + b * b >= 2 * a * b  # true for all, and not by its coefficients
    with pytest.raises(ZeroDivisionError):
        a / (a - a)
    assert isinstance(a, Symbol)
