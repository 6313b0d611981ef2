"""A candidate tree: what is refused, in which words, and what a tree knows of itself."""

import pytest

from treeproof.contract.tree import MAX_NODES, MAX_TOKEN, CandidateTree

# 0 -> 1, 2, 4; 1 -> 3; 3 -> 5, 6
TREE = CandidateTree(tokens=(9, 1, 2, 3, 4, 5, 6), parents=(-1, 0, 0, 1, 0, 3, 3))


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ((), (), "parents is empty: a tree has at least its root, parents=[-1]"),
        (
            (0,) * 4097,
            (-1, *range(4096)),
            "parents has 4097 nodes: accepted are 1 to 4096",
        ),
        ((1,), (-1, 0), "tokens has 1 entries and parents 2: one token a node"),
        ((1, 2), (0, 0), "parents[0] is 0: node 0 is the root, its parent is -1"),
        (
            (1, 2, 3),
            (-1, 2, 0),
            "parents[1] is 2: accepted are 0 to 0 (a parent is numbered before its child)",
        ),
        (
            (1, 2, 3),
            (-1, 0, 2),
            "parents[2] is 2: accepted are 0 to 1 (a parent is numbered before its child)",
        ),
        (
            (1, 2, 3),
            (-1, 0, -1),
            "parents[2] is -1: accepted are 0 to 1 (a parent is numbered before its child)",
        ),
        ((1, -2), (-1, 0), "tokens[1] is -2: accepted are 0 to 2147483647"),
        ((2**31, 2), (-1, 0), "tokens[0] is 2147483648: accepted are 0 to 2147483647"),
        (
            (1, 7, 8, 7),
            (-1, 0, 0, 0),
            "tokens[3] is 7, and so is tokens[1]: children of node 0 need distinct tokens",
        ),
        ((1, True), (-1, 0), "tokens[1]: Expected `int`, got `bool`"),
        ((1, 2.0), (-1, 0), "tokens[1]: Expected `int`, got `float`"),
        ((1, "2"), (-1, 0), "tokens[1]: Expected `int`, got `str`"),
        ((1, 2), (-1, None), "parents[1]: Expected `int`, got `null`"),
        ("12", (-1, 0), "tokens: Expected `array`, got `str`"),
        (7, (-1, 0), "tokens: Expected `array`, got `int`"),
    ],
)
def test_what_is_no_tree_is_refused_with_node_and_field(
    tokens: object, parents: object, message: str
) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        CandidateTree(tokens=tokens, parents=parents)  # type: ignore[arg-type]
    assert str(refusal.value) == message


def test_the_largest_tree_and_the_largest_token_are_accepted() -> None:
    assert len(CandidateTree(tokens=(0,) * MAX_NODES, parents=(-1, *range(MAX_NODES - 1)))) == 4096
    assert CandidateTree(tokens=(MAX_TOKEN,), parents=(-1,)).tokens == (2147483647,)


def test_cousins_and_a_child_of_the_root_may_repeat_a_token() -> None:
    tree = CandidateTree(tokens=(7, 7, 8, 9, 9), parents=(-1, 0, 0, 1, 2))
    assert tree.tokens == (7, 7, 8, 9, 9)


def test_lists_make_the_same_tree_as_tuples() -> None:
    tree = CandidateTree([1, 2], [-1, 0])  # type: ignore[arg-type]
    assert tree == CandidateTree((1, 2), (-1, 0))
    assert hash(tree) == hash(CandidateTree((1, 2), (-1, 0)))
    assert type(tree.tokens) is tuple


def test_depths_paths_ancestors_children_and_leaves() -> None:
    assert TREE.depth == (0, 1, 1, 2, 1, 3, 3)
    assert [TREE.children(node) for node in range(7)] == [(1, 2, 4), (3,), (), (5, 6), (), (), ()]
    assert TREE.leaves == (2, 4, 5, 6)
    assert TREE.path(6) == (0, 1, 3, 6)
    assert TREE.ancestors(6) == (0, 1, 3)
    assert TREE.path(0) == (0,)
    assert TREE.ancestors(0) == ()


@pytest.mark.parametrize(
    ("parents", "topk"),
    [
        ((-1,), 1),
        ((-1, 0, 1, 2), 1),  # a chain
        ((-1, 0, 0, 0), 3),  # three children
        ((-1, 0, 0, 1, 2), 2),
        ((-1, 0, 0, 1, 1, 2, 2, 3, 4, 5), 3),  # pairs, but three nodes of depth 2 have a child
    ],
)
def test_topk_bounds_children_and_growing_nodes_of_a_level(
    parents: tuple[int, ...], topk: int
) -> None:
    assert CandidateTree(tuple(range(len(parents))), parents).topk == topk
