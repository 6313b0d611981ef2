"""Tree shapes, tokens and row orders, and where shrinking ends."""

from collections import Counter

import pytest
from hypothesis import find, given, settings

from treeproof.contract.tree import CandidateTree
from treeproof.generate.orders import ROW_ORDERS, row_of_node
from treeproof.generate.profiles import settings_of
from treeproof.generate.provider import no_constants
from treeproof.generate.tags import topology
from treeproof.generate.topologies import MAX_KNOB, TOKEN_LAWS, TOPOLOGIES, grow, tokens_of
from treeproof.generate.trees import trees


def tree_of(name, nodes=24, knob=4, salt=9, law="numbered"):
    parents = grow(name, nodes, knob, salt)
    return CandidateTree(tokens_of(parents, law, salt), parents)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 31, 129, 1024])
def test_every_shape_grows_to_any_size(name, nodes):
    for knob in range(1, MAX_KNOB + 1):
        assert len(tree_of(name, nodes, knob)) == nodes


def test_shapes_are_what_their_names_say():
    assert grow("chain", 5, 1, 0) == (-1, 0, 1, 2, 3)
    assert grow("star", 5, 1, 0) == (-1, 0, 0, 0, 0)
    # Spine 0, 2, 4, 6 with the teeth 1, 3, 5.
    assert grow("comb", 7, 1, 0) == (-1, 0, 0, 2, 2, 4, 4)
    assert grow("balanced", 7, 3, 0) == (-1, 0, 0, 1, 1, 2, 2)
    # One inner node below the root, and all others under it.
    assert grow("fan", 6, 1, 0) == (-1, 0, 1, 1, 1, 1)


@pytest.mark.parametrize("name", ["star", "comb", "fan", "balanced", "caterpillar"])
def test_grown_shapes_are_told_apart_again(name):
    assert topology(tree_of(name)) == name


def test_trees_of_unequal_depths_have_leaves_far_apart():
    tree = tree_of("unequal-depths", nodes=40)
    depths = [tree.depth[leaf] for leaf in tree.leaves]
    assert max(depths) - min(depths) >= 8
    assert topology(tree) == "unequal-depths"


@pytest.mark.parametrize(
    ("parents", "name"),
    [
        ((-1,), "root-only"),
        ((-1, 0), "chain"),
        ((-1, 0, 0), "star"),
        ((-1, 0, 0, 1, 1), "comb"),
        ((-1, 0, 0, 0, 1), "balanced"),
        ((-1, 0, 0, 0, 1, 4), "caterpillar"),
        ((-1, 0, 0, 1, 1, 2, 3), "branching"),
        ((-1, 0, 0, 1, 3, 4, 5, 2, 2), "branching"),
    ],
)
def test_topologies_of_small_trees(parents, name):
    assert topology(CandidateTree(tuple(range(len(parents))), parents)) == name


@pytest.mark.parametrize("name", ["chain", "star", "comb", "balanced", "unequal-depths", "random"])
def test_a_smaller_tree_is_the_beginning_of_the_larger(name):
    # Shrinking the size alone then keeps the structure of what is left.
    assert grow(name, 60, 2, 5)[:20] == grow(name, 20, 2, 5)


@pytest.mark.parametrize("law", TOKEN_LAWS)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_siblings_hold_distinct_tokens(name, law):
    parents = grow(name, 129, 4, 3)
    tokens = tokens_of(parents, law, 3)
    assert max(Counter(zip(parents, tokens, strict=True)).values()) == 1


def test_ranked_tokens_are_equal_on_cousins():
    tree = tree_of("balanced", 7, knob=3, law="ranked")
    assert tree.tokens[1:3] == tree.tokens[3:5] == tree.tokens[5:7]


@pytest.mark.parametrize("order", ROW_ORDERS)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_row_order_is_a_permutation_with_the_root_first(name, order):
    tree = tree_of(name)
    rows = row_of_node(tree, order, 7)
    assert sorted(rows) == list(range(24))
    assert rows[0] == 0


def test_row_orders_are_what_their_names_say():
    #        0
    #      1   2
    #     3 4   5
    tree = CandidateTree(tuple(range(6)), (-1, 0, 0, 1, 1, 2))

    def nodes(order, salt=0):
        rows = row_of_node(tree, order, salt)
        return sorted(range(6), key=rows.__getitem__)

    assert nodes("breadth-first") == [0, 1, 2, 3, 4, 5]
    assert nodes("depth-first") == [0, 1, 3, 4, 2, 5]
    assert nodes("leaves-first") == [0, 3, 4, 5, 1, 2]
    for salt in range(20):
        order = nodes("parent-first", salt)
        assert all(order.index(tree.parents[n]) < order.index(n) for n in range(1, 6))
    assert len({tuple(nodes("parent-first", salt)) for salt in range(20)}) > 5
    anywhere = [nodes("any", salt) for salt in range(20)]
    assert any(order.index(3) < order.index(1) for order in anywhere)


def test_breadth_first_rows_sort_trees_numbered_otherwise():
    tree = CandidateTree((0, 1, 2, 3), (-1, 0, 1, 0))
    assert row_of_node(tree, "breadth-first", 0) == (0, 1, 3, 2)


def deepest_fork(tree):
    return max((tree.depth[n] for n in range(len(tree)) if len(tree.children(n)) > 1), default=-1)


@pytest.mark.parametrize(
    ("name", "predicate", "most"),
    [
        ("a sibling pair", lambda t: any(len(t.children(n)) > 1 for n in range(len(t))), 3),
        ("depth 6", lambda t: max(t.depth) >= 6, 7),
        ("33 rows", lambda t: len(t) >= 33, 33),
        ("five children", lambda t: max(len(t.children(n)) for n in range(len(t))) >= 5, 6),
        ("a fork below the root", lambda t: deepest_fork(t) >= 1, 5),
        ("a leaf that is not the deepest", lambda t: len({t.depth[n] for n in t.leaves}) > 1, 4),
    ],
)
def test_shrinking_ends_at_small_trees(name, predicate, most):
    plain = settings(settings_of("ci"), max_examples=1000)
    with no_constants():
        assert len(find(trees(), predicate, settings=plain)) <= most


def test_drawn_trees_reach_every_shape_and_size():
    shapes, sizes = Counter(), Counter()

    @settings_of("ci", examples=600)
    @given(trees())
    def collect(tree):
        shapes[topology(tree)] += 1
        sizes[len(tree) // 16] += 1

    collect()
    named = {*TOPOLOGIES, "branching", "root-only"} - {"random"}
    assert named <= set(shapes)
    assert min(shapes[name] for name in named) >= 5
    assert all(sizes[quarter] > 60 for quarter in range(4))


def test_a_random_shape_is_the_same_on_every_python():
    # Recorded once; only `Random.random`, promised to be stable, decides it.
    recorded = (-1, 0, 1, 2, 0, 0, 2, 2, 7, 2, 8, 10)
    assert grow("random", 12, 2, 1234) == recorded
