import pytest

from treeproof.contract.tree import CandidateTree
from treeproof.oracles.kv import Frontier, committed_columns, committed_slots, frontier, owners
from treeproof.oracles.traversal import Walk

FIVE_ROWS = CandidateTree(tokens=(9, 1, 2, 3, 4), parents=(-1, 0, 0, 1, 2))  # root A B C D


def test_the_boundary_moves_by_the_inputs_and_the_bonus_stands_on_it() -> None:
    # P = 7; R, D1, D2, D3 become KV-ready in columns 7 to 10; B is emitted and stands at 11.
    r, d1, d2, d3, b = 50, 51, 52, 53, 54
    chain = CandidateTree((r, d1, d2, d3), (-1, 0, 1, 2))
    walk = Walk(nodes=(0, 1, 2, 3), tokens=(d1, d2, d3, b))
    assert frontier(7, walk) == Frontier(boundary=11, next_root=b, next_root_position=11)
    assert [chain.tokens[u] for u in committed_columns(chain, walk)] == [r, d1, d2, d3]


def test_nothing_accepted_still_commits_the_root() -> None:
    walk = Walk(nodes=(0,), tokens=(3,))
    assert committed_columns(FIVE_ROWS, walk) == (0,)
    assert frontier(0, walk) == Frontier(1, 3, 1)


def test_an_accepted_branch_is_compacted_into_the_first_columns() -> None:
    # root, B (node 2), D (node 4), verified anywhere, end up in columns P, P + 1, P + 2.
    walk = Walk(nodes=(0, 2, 4), tokens=(2, 4, 77))
    slots = [30, 31, 12, 13, 40, 41, 42]  # columns 0 and 1 are prefix
    assert committed_columns(FIVE_ROWS, walk) == (0, 2, 4)
    assert committed_slots(FIVE_ROWS, 2, walk, slots) == {12: 0, 13: 2, 40: 4}


@pytest.mark.parametrize(
    ("accepted_rows", "front"),
    [  # SGLang's accept_index test, slots 1000 + row, 16 rows a request, no prefix columns listed
        ((0, 1), (1000, 1001)),
        ((0, 2, 5), (1016, 1017, 1018)),
        ((0,), (1032,)),
    ],
)
def test_recorded_commits_land_in_the_front_slots(
    accepted_rows: tuple[int, ...], front: tuple[int, ...]
) -> None:
    # Requests 0, 1, 2 accept rows [0, 1], [16, 18, 21] and [32]; nodes here are local rows.
    parents = [-1, 0, 0, 0, 0, 2, *[0] * 10]
    tree = CandidateTree(tuple(range(16)), tuple(parents))
    walk = Walk(accepted_rows, (*accepted_rows[1:], 99))
    slots = range(front[0], front[0] + 16)
    assert committed_slots(tree, 0, walk, slots) == dict(zip(front, accepted_rows, strict=True))


@pytest.mark.parametrize(
    ("emitted", "bonus"),  # SGLang's bonus test: accept lengths 2, 3, 1
    [((0, 1), 1), ((4, 5, 6), 6), ((8,), 8)],
)
def test_the_recorded_next_root_is_the_last_emitted_token(
    emitted: tuple[int, ...], bonus: int
) -> None:
    assert frontier(100, Walk(tuple(range(len(emitted))), emitted)).next_root == bonus


@pytest.mark.parametrize("nodes", [(), (0, 4), (2, 4), (0, 1, 2), (0, 4, 2)])
def test_a_walk_that_is_no_path_from_the_root_is_refused(nodes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a path from the root is accepted"):
        committed_columns(FIVE_ROWS, Walk(nodes, nodes))


def test_too_few_slots_for_the_commit_are_refused() -> None:
    with pytest.raises(ValueError, match="slots has 4 columns: 5 are committed"):
        committed_slots(FIVE_ROWS, 2, Walk((0, 2, 4), (2, 4, 7)), [3, 4, 5, 6])


def test_owners_are_read_off_the_lists_and_evicted_columns_own_nothing() -> None:
    found = owners([[8, 9, 3], [8, 9, 4, 5], [-1, -1, 7]])
    assert found == {
        8: [(0, 0), (1, 0)],
        9: [(0, 1), (1, 1)],
        3: [(0, 2)],
        4: [(1, 2)],
        5: [(1, 3)],
        7: [(2, 2)],
    }


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([[3, 4, 3]], "slot 3 is column 2 of request 0 and column 0 of request 0"),
        ([[3, 4], [5, 3]], "slot 3 is column 1 of request 1 and column 0 of request 0"),
    ],
)
def test_a_slot_owned_twice_is_refused(columns: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        owners(columns)
