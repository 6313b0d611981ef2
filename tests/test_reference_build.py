"""The reference builder against numbers recorded from SGLang's tests and against hand-drawn trees."""

import pytest
import torch
from hand_candidates import MODES, SHAPE, TRACE, bits, candidates, tree_block

from treeproof.backends.reference.build import build
from treeproof.contract.case import MaskMode
from treeproof.contract.shape import AttentionShape, Window


@pytest.mark.parametrize("mode", MODES)
def test_the_recorded_trace_is_built_as_sglang_builds_it(mode):
    x = build(candidates(**TRACE, mode=mode))
    assert x.positions.tolist() == [5, 6, 6, 7, 7, 8, 8, 9, 10, 11, 12, 12, 12, 12, 13, 14]
    assert x.retrieve_index.tolist() == [list(range(8)), list(range(8, 16))]
    assert x.retrieve_next_token.tolist() == [
        [1, 3, 4, 5, 6, 7, -1, -1],
        [1, 2, -1, 6, -1, -1, 7, -1],
    ]
    assert x.retrieve_next_sibling.tolist() == [
        [-1, 2, -1, -1, -1, -1, -1, -1],
        [-1, -1, 3, 4, 5, -1, -1, -1],
    ]
    assert x.retrieve_parent_token.tolist() == [
        [-1, 0, 0, 1, 2, 3, 4, 5],
        [-1, 0, 1, 1, 1, 1, 3, 6],
    ]
    assert x.draft_token.tolist() == [
        29974, 29896, 29906, 29889, 29974, 29946, 29896, 29946,
        13, 13, 22550, 4136, 16492, 8439, 29871, 29941,
    ]  # fmt: skip
    assert tree_block(x, 0) == bits(1, 3, 5, 11, 21, 43, 85, 171)
    assert tree_block(x, 1) == bits(1, 3, 7, 11, 19, 35, 75, 203)


def test_the_recorded_trace_fills_248_full_cells_and_sixteen_packed_bytes():
    full = build(candidates(**TRACE, mode=MaskMode.FULL_MASK))
    assert full.mask_indptr[-1] == full.custom_mask.numel() == 248
    packed = build(candidates(**TRACE, mode=MaskMode.QLEN_ONLY_BITPACKING))
    assert packed.custom_mask.dtype == torch.uint8
    assert packed.custom_mask.tolist() == [
        1, 3, 5, 11, 21, 43, 85, 171, 1, 3, 7, 11, 19, 35, 75, 203,
    ]  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_a_hand_drawn_tree_of_two_levels_is_built(mode):
    x = build(candidates([[0, 1, 2]], [[-1, 0, 1]], 2, 2, [5], mode=mode))
    assert x.positions.tolist() == [5, 6, 6, 7]
    assert x.retrieve_index.tolist() == [[0, 1, 2, 3]]
    assert x.retrieve_next_token.tolist() == [[1, 3, -1, -1]]
    assert x.retrieve_next_sibling.tolist() == [[-1, 2, -1, -1]]
    assert tree_block(x, 0) == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]


@pytest.mark.parametrize("mode", MODES)
def test_chains_are_lower_triangular(mode):
    x = build(candidates([[0, 1, 2]] * 2, [[-1, 0, 1]] * 2, 1, 3, [7, 12], mode=mode))
    assert x.positions.tolist() == [7, 8, 9, 10, 12, 13, 14, 15]
    assert tree_block(x, 0) == tree_block(x, 1) == bits(1, 3, 7, 15)


@pytest.mark.parametrize("mode", MODES)
def test_one_step_needs_no_parent_list(mode):
    c = candidates([[0]] * 2, [[], []], 1, 1, [7, 12], mode=mode)
    assert c.parent_list.shape == (2, 0)
    x = build(c)
    assert x.positions.tolist() == [7, 8, 12, 13]
    assert tree_block(x, 0) == tree_block(x, 1) == [[1, 0], [1, 1]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("steps", "prefixes", "selected", "parents", "depths", "down", "right"),
    [
        (4, [5, 7], [0] * 8, [-1], [0, 1, 1, 1, 1, 1, 1, 1],
         [1, -1, -1, -1, -1, -1, -1, -1], [-1, 2, 3, 4, 5, 6, 7, -1]),
        (1, [6, 9], [0, 4, 4, 4, 4, 4, 4, 4], [-1, 0], [0, 1, 1, 1, 1, 1, 1, 1],
         [1, 2, -1, -1, -1, -1, -1, -1], [-1, -1, 3, 4, 5, 6, 7, -1]),
        (8, [8, 11], [0, 4, 8, 12, 16, 20, 24, 28], [-1, 0, 4, 8, 12, 16, 20, 24],
         [0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, -1], [-1] * 8),
    ],
    ids=["star", "fan-cut-by-one-step", "deep-chain"],
)  # fmt: skip
def test_raw_parity_inputs_give_sglangs_positions_and_links(
    mode, steps, prefixes, selected, parents, depths, down, right
):
    # Here selected_index is one column wider than it need be, as SGLang's own parity test has it.
    x = build(candidates([selected] * 2, [parents] * 2, 4, steps, prefixes, rows=[8, 8], mode=mode))
    assert x.positions.tolist() == [prefix + depth for prefix in prefixes for depth in depths]
    assert x.retrieve_next_token.tolist() == [down, down]
    assert x.retrieve_next_sibling.tolist() == [right, right]


CHAIN = [[4, 2, 0], [2, 4, 0]]
MALFORMED = {
    "valid-chain": (
        CHAIN, [[0, 0, 2, 0, 0], [0, 4, 0, 0, 0]], [7, 10, 9, 8, 11, 14, 13, 12],
        [[1, 15, 13, 9]] * 2, [[3, -1, 1, 2]] * 2, [[-1] * 4] * 2,
    ),
    "missing-direct-parent": (
        CHAIN, [[0, 99, 2, 0, 0], [0, 99, 0, 0, 0]], [7, 9, 8, 8, 11, 12, 13, 12],
        [[1, 7, 5, 9], [1, 3, 13, 9]], [[3, -1, 1, -1], [3, -1, -1, 2]], [[-1] * 4] * 2,
    ),
    "missing-ancestor": (
        CHAIN, [[0, 99, 99, 99, 99]] * 2, [7, 8, 8, 8, 11, 12, 12, 12],
        [[1, 3, 5, 9]] * 2, [[3, -1, -1, -1]] * 2, [[-1] * 4] * 2,
    ),
    "cyclic-ancestor": (
        CHAIN, [[0, 2, 2, 0, 0], [0, 4, 4, 0, 0]], [7, 10, 10, 8, 11, 14, 14, 12],
        [[1, 7, 5, 9]] * 2, [[3, -1, 1, -1]] * 2, [[-1, 2, -1, -1]] * 2,
    ),
    "deepest-valid": (
        CHAIN, [[0, 0, 4, 2, 0], [0, 0, 2, 4, 0]], [7, 10, 9, 8, 11, 13, 14, 12],
        [[1, 3, 13, 9], [1, 11, 15, 9]], [[3, 1, -1, 2], [3, 2, -1, 1]], [[-1] * 4] * 2,
    ),
    "cross-row": (
        [[4, 2, 0], [6, 4, 0]], [[0, 6, 4, 0, 0], [0, 0, 6, 4, 0]],
        [7, 10, 8, 8, 11, 14, 14, 12],
        [[1, 3, 5, 9], [1, 7, 7, 9]], [[3, 1, -1, -1], [3, 2, 1, -1]], [[-1] * 4] * 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_selections_end_and_skip_what_is_not_there(name, mode):
    selected, parents, positions, words, down, right = MALFORMED[name]
    x = build(candidates(selected, parents, 2, 3, [7, 11], mode=mode))
    assert x.positions.tolist() == positions
    assert [tree_block(x, b) for b in range(2)] == [bits(*row) for row in words]
    assert x.retrieve_index.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert x.retrieve_next_token.tolist() == down
    assert x.retrieve_next_sibling.tolist() == right


def test_the_five_row_tree_has_the_drawn_mask_and_not_the_causal_one():
    # root -> A -> C and root -> B -> D, rows [root, A, B, C, D]
    x = build(candidates([[0, 1, 2, 4]], [[-1, 0, 1]], 2, 2, [9]))
    assert tree_block(x, 0) == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 0, 1, 0, 1],
    ]
    assert x.positions.tolist() == [9, 10, 10, 11, 11]


def test_siblings_share_a_position_and_the_root_begins_at_the_prefix_length():
    # depths [0, 1, 1, 2] after a prefix of 7
    x = build(candidates([[0, 1, 2]], [[-1, 0, 1]], 2, 2, [7]))
    assert x.positions.tolist() == [7, 8, 8, 9]


@pytest.mark.parametrize("mode", MODES)
def test_ragged_requests_with_padding_keep_their_own_rows(mode):
    x = build(
        candidates(
            [[2, 0, -1], [-1, -1, -1]], [[-1, 0, 5], [9, 9, 9]], 2, 2, [4, 0],
            tokens=[[31, 32, -1], [-1, -1, -1]], bonus=[30, 40],
            rows=[4, 2], nodes=[3, 1], mode=mode, pad_slot=-1,
        )
    )  # fmt: skip
    assert x.qo_indptr.tolist() == [0, 4, 6]
    assert x.draft_token.tolist() == [30, 31, 32, 0, 40, 0]
    assert x.positions.tolist() == [4, 6, 5, 0, 0, 0]
    assert x.out_cache_loc.tolist() == [1004, 1005, 1006, -1, 2000, -1]
    assert x.retrieve_index.tolist() == [[0, 1, 2, -1], [4, -1, -1, -1]]
    assert x.retrieve_next_token.tolist() == [[2, -1, 1, -1], [-1] * 4]
    assert x.retrieve_next_sibling.tolist() == [[-1] * 4] * 2
    assert x.retrieve_parent_token.tolist() == [[-1, 2, 0, -1], [-1] * 4]
    assert tree_block(x, 0)[:3] == [[1, 0, 0, 0], [1, 1, 1, 0], [1, 0, 1, 0]]
    # A padded row sees the root, and nobody sees it.
    assert tree_block(x, 0)[3] == [1, 0, 0, 0]
    assert tree_block(x, 1) == [[1, 0], [1, 0]]


def test_prefix_tables_list_slots_and_pages_of_the_prefix():
    x = build(candidates([[0, 2]] * 2, [[-1, 0, 0]] * 2, 2, 2, [5, 9], page_size=4))
    # Column c of request b is slot 1000 * (b + 1) + c, and 1000 and 2000 begin a page of 4.
    assert x.kv_indptr.tolist() == [0, 5, 14]
    assert x.kv_indices.tolist() == [*range(1000, 1005), *range(2000, 2009)]
    assert x.page_table.tolist()[0][:2] == [250, 251]
    assert x.page_table.tolist()[1] == [500, 501, 502]
    assert x.cache_seqlens.tolist() == [5, 9]


@pytest.mark.parametrize(
    ("window", "starts"),
    [(None, [0] * 6), (1, [5, 6, 7, 9, 10, 11]), (7, [0, 0, 1, 3, 4, 5]), (20, [0] * 6)],
)
def test_window_starts_follow_the_logical_index(window, starts):
    shape = SHAPE
    if window is not None:
        shape = AttentionShape(
            num_q_heads=1,
            num_kv_heads=1,
            head_dim=16,
            v_head_dim=16,
            visibility=Window(width=window),
        )
    x = build(candidates([[0, 2]] * 2, [[-1, 0, 0]] * 2, 2, 2, [5, 9], shape=shape))
    assert x.kv_start.tolist() == starts


def test_a_wrong_parent_cell_shows_in_mask_position_and_links():
    # The negative control of the recorded trace: one reachable cell of parent_list changed.
    parents = [list(row) for row in TRACE["parents"]]
    parents[0][6] = 4  # row 6, pool 24, now hangs below row 3 and no longer below row 4
    x = build(candidates(**{**TRACE, "parents": parents}))
    assert tree_block(x, 0) != bits(1, 3, 5, 11, 21, 43, 85, 171)
    assert x.retrieve_parent_token.tolist()[0] == [-1, 0, 0, 1, 2, 3, 3, 5]
