"""Rejection sampling of a chain emits what plain decoding emits, in law: proved, for all tables at once.

What is proved. Drafts are drawn by a law q after each run of tokens, and the rule accepts or refuses them
by the target's law p; both are any laws, after every run others. Whatever was emitted so far, the next
token has to be distributed by p: `exact_law` runs the rule for every way in which the coins of drafts
and rule can fall, and the shares of all runs are compared as quotients of polynomials.

For which tables. The rule does one thing where q(x) <= p(x) and another where not, so the pairs (p, q)
fall into faces: which tokens p has more of, which q, and which either has none of. A face is
parametrised by unknowns above 0 without a condition between them (`Face`), so that each comparison comes
out alike on all of it; of three tokens there are 103 faces, and every pair of laws lies on one.

Which faces together. Coins are drawn apart, and those asked at a node are compared with numbers of that
node's own pair alone. So a cell's share is a product with one factor a node; in the equation after a run,
what its nodes contribute is a factor of both sides, and what nodes further down contribute adds up to 1.
It holds for all tables if it does with each node's pair on each face, whatever the others are. In CI each
face is tried at some node of each length, other nodes on other faces; nightly at each node.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import pytest

from treeproof.contract.tree import CandidateTree
from treeproof.oracles.drawn import Rule, Unlike, drawn, unlike_the_target
from treeproof.oracles.law import Coins, Distribution, Tokens, Walk, draw, exact_law
from treeproof.oracles.rules import Chain, Laws, chain
from treeproof.oracles.sampled import outcomes
from treeproof.oracles.symbolic import any_law, faces

F = Fraction
SIZE = 3
LENGTHS = (1, 2, 3, 4, 5)
WITHOUT_ZEROS = 6
"""The first so many faces have neither probabilities of 0 nor equal ones."""
After = Callable[[Tokens], Distribution]


def runs(longest: int, size: int = SIZE) -> list[Tokens]:
    return [run for length in range(longest + 1) for run in product(range(size), repeat=length)]


def unlike(rule: Rule, drafts: int, p: After, q: After, size: int = SIZE) -> Unlike | None:
    return unlike_the_target(exact_law(drawn(rule, drafts, p, q)), p, drafts, size)


def on_faces(
    drafts: int, turn: int, size: int = SIZE, depth: int | None = None
) -> tuple[After, After, set[tuple[Tokens, int]]]:
    """p and q, the pair after the i-th run on face i + turn; and each run that tokens lead to, with its
    face. Given a depth, runs of other lengths are on faces without probabilities of 0, and left out."""
    every = faces(size)
    lying = {}
    for number, run in enumerate(runs(drafts - 1, size)):
        free = depth is None or len(run) == depth
        lying[run] = (number + turn) % (len(every) if free else WITHOUT_ZEROS)
    pairs = {run: every[face].any_pair(size) for run, face in lying.items()}
    last = {run: any_law(tuple(range(size)), size) for run in product(range(size), repeat=drafts)}

    def p(before: Tokens) -> Distribution:
        return pairs[before][0] if before in pairs else last[before]

    def q(before: Tokens) -> Distribution:
        return pairs[before][1]

    reached = {
        (run, face)
        for run, face in lying.items()
        if depth in (None, len(run))
        and all(p(run[:at])[t] != 0 and q(run[:at])[t] != 0 for at, t in enumerate(run))
    }
    return p, q, reached


def test_faces_are_all_that_three_and_four_tokens_have() -> None:
    """Each table of small whole numbers lies on one face; none is left without a table."""

    def face(p: Tokens, q: Tokens) -> tuple[Tokens, Tokens, Tokens]:
        both = list(enumerate(zip(p, q, strict=True)))
        return (
            tuple(t for t, (a, b) in both if a > b),
            tuple(t for t, (a, b) in both if a < b),
            tuple(t for t, (a, b) in both if min(a, b)),
        )

    for size, whole in ((3, 6), (4, 8)):
        laws = [law for law in product(range(whole + 1), repeat=size) if sum(law) == whole]
        known = {(f.more, f.less, f.common) for f in faces(size)}
        assert {face(p, q) for p in laws for q in laws} == known
    assert [len(faces(size)) for size in (2, 3, 4)] == [11, 103, 815]
    assert all(len(face.common) == SIZE for face in faces(SIZE)[:WITHOUT_ZEROS])


STRIDE = 13
"""From one turn to the next: prime to the number of faces, so that all turns come."""


@pytest.mark.parametrize("drafts", LENGTHS)
def test_the_law_of_a_chain_is_that_of_plain_decoding_for_every_table(drafts: int) -> None:
    every = set(range(len(faces(SIZE))))
    met: set[int] = set()
    for turn in every:
        p, q, reached = on_faces(drafts, turn * STRIDE)
        new = {face for _, face in reached} - met
        if new:
            assert unlike(chain, drafts, p, q) is None, (drafts, turn)
            met |= new
    assert met == every


@pytest.mark.long
@pytest.mark.parametrize("drafts", LENGTHS[:4])
def test_so_it_is_with_each_node_on_each_face(drafts: int) -> None:
    every = range(len(faces(SIZE)))
    met: set[tuple[Tokens, int]] = set()
    for depth in range(drafts):
        for turn in every:
            p, q, reached = on_faces(drafts, turn, depth=depth)
            assert unlike(chain, drafts, p, q) is None, (drafts, depth, turn)
            met |= reached
    assert met == set(product(runs(drafts - 1), every))


@pytest.mark.long
@pytest.mark.parametrize("drafts", [1, 2])
def test_so_it_is_with_four_tokens(drafts: int) -> None:
    for turn in range(len(faces(4))):
        p, q, _ = on_faces(drafts, turn, 4)
        assert unlike(chain, drafts, p, q, 4) is None, (drafts, turn)


def wrong(change: str) -> Rule:
    """The rule with one thing wrong."""

    def rule(tree: Chain, target: Laws, draft: Laws) -> Walk:
        def walk(coins: Coins) -> Tokens:
            emitted: tuple[int, ...] = ()
            for node in range(len(tree)):
                p = target[node]
                if not tree.children(node):
                    left: Any = p
                    if change == "bonus from the row before" and node:
                        left = target[node - 1]
                    if change == "bonus from a residual" and node:
                        q = draft[node - 1]
                        left = [max(a - b, F(0)) for a, b in zip(p, q, strict=True)]
                        left = left if any(share > 0 for share in left) else p
                    return (*emitted, draw(coins, "last", left))
                token = tree.tokens[node + 1]
                q = draft[node]
                if change == "proposal of the row before":
                    q = draft[max(node - 1, 0)]
                if change == "proposal of the next row" and tree.children(node + 1):
                    q = draft[node + 1]
                if change == "proposal taken for uniform":
                    q = [F(1, len(p))] * len(p)
                edge = min(p[token] / q[token], F(1)) if q[token] > 0 else F(0)
                if change == "target alone accepts":
                    edge = p[token]
                coin: Any = 0 if change == "one coin for all rows" else node
                if coins.pick(coin, [edge]) == 0:
                    emitted = (*emitted, token)
                    continue
                left = [max(a - b, F(0)) for a, b in zip(p, q, strict=True)]
                if change == "residual of the target":
                    left = list(p)
                if change == "residual without the refused draft alone":
                    left = [share if t != token else F(0) for t, share in enumerate(p)]
                if change == "residual of the draft":
                    left = [max(b - a, F(0)) for a, b in zip(p, q, strict=True)]
                if change == "argmax of the residual":
                    return (*emitted, max(range(len(left)), key=lambda t: left[t]))
                if change == "residual not renormalised":
                    cuts = [sum(left[: t + 1], F(0)) for t in range(len(left))]
                    return (*emitted, min(coins.pick("last", cuts), len(left) - 1))
                if not any(share > 0 for share in left):
                    left = list(p)  # by the wrong proposal nothing is left
                last = coin if change == "coin reused" else "last"
                return (*emitted, draw(coins, last, left))
            raise AssertionError("a chain ends in a leaf")

        return walk

    return rule


PAIRS = (
    ((F(1, 8), F(3, 8), F(1, 2)), (F(1, 2), F(1, 4), F(1, 4))),
    ((F(1, 4), F(1, 4), F(1, 2)), (F(5, 8), F(1, 8), F(1, 4))),
    ((F(1, 2), F(3, 8), F(1, 8)), (F(1, 4), F(1, 2), F(1, 4))),
)
"""p and q, by the sum of the tokens emitted."""


def tabled(rule: Rule, drafts: int) -> Unlike | None:
    def p(before: Tokens) -> Distribution:
        return PAIRS[(len(before) + sum(before)) % 3][0]

    def q(before: Tokens) -> Distribution:
        return PAIRS[(len(before) + sum(before)) % 3][1]

    return unlike(rule, drafts, p, q)


@pytest.mark.parametrize("drafts", LENGTHS[:3])
def test_the_rule_of_these_controls_is_right_where_nothing_is_changed(drafts: int) -> None:
    assert tabled(wrong("nothing"), drafts) is None
    p, q, _ = on_faces(drafts, 0)
    assert unlike(wrong("nothing"), drafts, p, q) is None


@pytest.mark.parametrize(
    ("change", "smallest"),
    [
        ("coin reused", 1),
        ("one coin for all rows", 2),
        ("argmax of the residual", 1),
        ("residual of the target", 1),
        ("residual without the refused draft alone", 1),
        ("residual of the draft", 1),
        ("residual not renormalised", 1),
        ("proposal of the row before", 2),
        ("proposal of the next row", 2),
        ("proposal taken for uniform", 1),
        ("target alone accepts", 1),
        ("bonus from the row before", 1),
        ("bonus from a residual", 1),
    ],
)
def test_each_wrong_rule_is_refuted_by_the_shortest_chain(change: str, smallest: int) -> None:
    assert next(drafts for drafts in (0, *LENGTHS) if tabled(wrong(change), drafts)) == smallest


@pytest.mark.parametrize(
    "change",
    [
        "residual of the target",
        "residual without the refused draft alone",
        "residual of the draft",
        "residual not renormalised",
        "target alone accepts",
        "bonus from the row before",
    ],
)
def test_a_wrong_rule_is_refuted_for_unknown_tables_too(change: str) -> None:
    p, q, _ = on_faces(1, 0)
    assert unlike(wrong(change), 1, p, q)


def test_a_coin_on_the_edge_has_no_share_in_a_law_and_is_refuted_as_a_given_coin() -> None:
    """`<=` in place of `<`: the same law, and another token where the coin is p / q."""
    tree, (p, q) = CandidateTree((0, 0), (-1, 0)), PAIRS[0]
    coins = {0: p[0] / q[0], "last": F(0)}

    def inclusive(coin: Coins) -> Tokens:
        token = tree.tokens[1]
        if coin.pick(0, [p[token] / q[token] + F(1, 10**9)]) == 0:
            return (token, draw(coin, "last", p))
        return (draw(coin, "last", [max(a - b, F(0)) for a, b in zip(p, q, strict=True)]),)

    (right,) = outcomes(chain(tree, [p, p], [q]), coins)
    assert right == (1,)
    assert outcomes(inclusive, coins) == {(0, 0)}


def test_what_is_no_run_of_tokens_is_told() -> None:
    def p(before: Tokens) -> Distribution:
        return (F(1, 2), F(1, 2))

    right = {(0,): F(1, 2), (1,): F(1, 2)}
    assert unlike_the_target(right, p, 1, 2) is None
    for run in ((), (2,), (0, 1, 1)):
        law = {(0,): F(1, 4), (1,): F(1, 4), run: F(1, 2)}
        assert unlike_the_target(law, p, 1, 2) == Unlike(run, F(1, 2), F(0))
