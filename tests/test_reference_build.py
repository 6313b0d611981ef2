"""The reference builder against numbers recorded from SGLang's tests and against hand-drawn trees."""

import pytest
import torch

from treeproof.backends.reference.build import build
from treeproof.backends.reference.mask import mask_offsets, packed_dtype
from treeproof.contract.case import AttentionShape, KVLayout, MaskMode, Window
from treeproof.contract.inputs import Candidates

SHAPE = AttentionShape(num_q_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16)
MODES = tuple(MaskMode)


def candidates(
    selected, parents, topk, steps, prefixes, *, tokens=None, bonus=None, mode=MaskMode.QLEN_ONLY,
    rows=None, nodes=None, fill=True, slack=0, shape=SHAPE, page_size=1, pad_slot=0,
):  # fmt: skip
    """Candidates by hand. Column c of request b lives in slot 1000 * (b + 1) + c; table row is B - b."""
    batch, drafted = len(selected), len(selected[0])
    rows = rows or [drafted + 1] * batch
    cells = mask_offsets(mode, prefixes, rows)[-1] + slack
    item = packed_dtype(max(rows)) if mode is MaskMode.QLEN_ONLY_BITPACKING else torch.bool
    garbage = (torch.arange(cells * item.itemsize) % 3 == 0).to(torch.uint8)
    table = torch.full((batch + 1, 256), -7)
    for b in range(batch):
        table[batch - b] = 1000 * (b + 1) + torch.arange(256)
    return Candidates(
        bonus_tokens=torch.tensor(bonus or [7] * batch),
        parent_list=torch.tensor(parents, dtype=torch.int64).view(batch, -1),
        selected_index=torch.tensor(selected, dtype=torch.int64).view(batch, -1),
        draft_token=torch.tensor(tokens or selected, dtype=torch.int64).view(batch, -1),
        num_rows=torch.tensor(rows),
        num_nodes=torch.tensor(nodes or rows),
        seq_lens=torch.tensor(prefixes),
        request_slots=torch.tensor([batch - b for b in range(batch)]),
        req_to_token=table,
        topk=topk,
        spec_steps=steps,
        shape=shape,
        kv=KVLayout(page_size=page_size, num_slots=4096, pad_slot=pad_slot),
        mask_mode=mode,
        mask_buffer=garbage.view(item),
        fill_prefix_mask=fill,
    )


def bits(*words):
    """Rows of a mask from little-endian words: bit j is column j."""
    return [[word >> j & 1 for j in range(len(words))] for word in words]


def tree_block(x, b):
    """(R, R) tree block of request b, decoded here cell by cell."""
    rows = (x.qo_indptr[b + 1] - x.qo_indptr[b]).item()
    prefix, start = x.seq_lens[b].item(), x.mask_indptr[b].item()
    if x.mask_mode is MaskMode.QLEN_ONLY_BITPACKING:
        size = x.custom_mask.element_size()
        octets = x.custom_mask.view(torch.uint8).tolist()[start * size : (start + rows) * size]
        items = [
            int.from_bytes(bytes(octets[i * size : (i + 1) * size]), "little") for i in range(rows)
        ]
        return [[item >> j & 1 for j in range(rows)] for item in items]
    skip = prefix if x.mask_mode is MaskMode.FULL_MASK else 0
    cells = x.custom_mask.int().tolist()
    return [
        cells[start + i * (skip + rows) + skip : start + (i + 1) * (skip + rows)]
        for i in range(rows)
    ]


TRACE = {
    "selected": [[0, 1, 4, 8, 20, 24, 36], [0, 4, 5, 6, 7, 24, 36]],
    "parents": [
        [-1, 0, 1, 2, 3, 4, 8, 9, 10, 20, 24, 21, 28],
        [-1, 0, 1, 2, 3, 4, 5, 6, 7, 24, 28, 20, 21],
    ],
    "topk": 4, "steps": 4, "prefixes": [5, 10], "bonus": [29974, 13],
    "tokens": [
        [29896, 29906, 29889, 29974, 29946, 29896, 29946],
        [13, 22550, 4136, 16492, 8439, 29871, 29941],
    ],
}  # fmt: skip


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


def test_a_full_mask_of_a_long_context_batch_has_134_million_cells_and_the_tree_block_262_thousand():
    full = mask_offsets(MaskMode.FULL_MASK, [32768] * 64, [64] * 64)
    assert full[-1] == 134_479_872
    assert mask_offsets(MaskMode.QLEN_ONLY, [32768] * 64, [64] * 64)[-1] == 262_144


def test_prefix_cells_are_written_only_where_asked():
    written = build(candidates(**TRACE, mode=MaskMode.FULL_MASK))
    c = candidates(**TRACE, mode=MaskMode.FULL_MASK, fill=False)
    before = c.mask_buffer.clone()
    left = build(c)
    for b, prefix in enumerate([5, 10]):
        cells = slice(written.mask_indptr[b], written.mask_indptr[b + 1])
        assert written.custom_mask[cells].view(8, -1)[:, :prefix].all()
        kept = left.custom_mask[cells].view(8, -1)[:, :prefix]
        assert torch.equal(kept, before[cells].view(8, -1)[:, :prefix])
    assert [tree_block(left, b) for b in range(2)] == [tree_block(written, b) for b in range(2)]


@pytest.mark.parametrize("mode", MODES)
def test_cells_past_the_defined_ones_are_left_alone(mode):
    c = candidates(**TRACE, mode=mode, slack=13)
    before = c.mask_buffer.clone()
    x = build(c)
    end = x.mask_indptr[-1]
    assert x.custom_mask.numel() == end + 13
    assert torch.equal(x.custom_mask[end:], before[end:])


@pytest.mark.parametrize(
    ("rows", "item"), [(8, torch.uint8), (9, torch.uint16), (16, torch.uint16), (17, torch.uint32), (32, torch.uint32)]
)  # fmt: skip
def test_packed_rows_use_the_smallest_item_that_holds_them(rows, item):
    chain = list(range(rows - 1))
    x = build(
        candidates(
            [chain], [[-1, *chain[:-1]]], 1, rows - 1, [3], mode=MaskMode.QLEN_ONLY_BITPACKING
        )
    )
    assert x.custom_mask.dtype == item
    assert tree_block(x, 0) == bits(*[(2 << i) - 1 for i in range(rows)])


def test_more_than_32_packed_columns_are_refused():
    with pytest.raises(ValueError, match="33 columns: accepted are 1 to 32"):
        packed_dtype(33)


@pytest.mark.parametrize("mode", MODES)
def test_a_mask_buffer_that_is_too_small_is_refused(mode):
    c = candidates(**TRACE, mode=mode)
    small = Candidates(**{**vars(c), "mask_buffer": c.mask_buffer[:-1]})
    with pytest.raises(ValueError, match=r"mask_buffer has \d+ cells"):
        build(small)


def test_a_packed_buffer_of_the_wrong_item_type_is_refused():
    c = candidates(**TRACE, mode=MaskMode.QLEN_ONLY_BITPACKING)
    with pytest.raises(ValueError, match=r"mask_buffer is torch\.int32"):
        build(Candidates(**{**vars(c), "mask_buffer": torch.zeros(64, dtype=torch.int32)}))


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
