"""What each backend builds, against literals: positions, links, lists and tables of known trees."""

from itertools import pairwise

import pytest
import torch
from backend_scene import BACKENDS, SITUATIONS, Scene

from treeproof.backends.reference.build import build
from treeproof.contract.case import MaskMode
from treeproof.contract.inputs import Candidates
from treeproof.contract.layout import KVLayout
from treeproof.contract.registry import load
from treeproof.contract.shape import AttentionShape, Window

SHAPE = AttentionShape(num_q_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16)


def request(selected, parents, topk, steps, prefix, columns, *, tokens=None, shape=SHAPE):
    """One request by hand; `columns` are the slots of its logical columns, the table's last row."""
    rows = len(selected) + 1
    return Candidates(
        bonus_tokens=torch.tensor([50]),
        parent_list=torch.tensor([parents], dtype=torch.int64).view(1, -1),
        selected_index=torch.tensor([selected]),
        draft_token=torch.tensor([tokens or [51 + i for i in range(len(selected))]]),
        num_rows=torch.tensor([rows]),
        num_nodes=torch.tensor([rows]),
        seq_lens=torch.tensor([prefix]),
        request_slots=torch.tensor([1]),
        req_to_token=torch.tensor([[-1] * len(columns), columns]),
        topk=topk,
        spec_steps=steps,
        shape=shape,
        kv=KVLayout(page_size=1, num_slots=256),
        mask_mode=MaskMode.QLEN_ONLY,
        mask_buffer=torch.ones(rows * rows, dtype=torch.bool),
        fill_prefix_mask=False,
    )


def eight_rows():
    """The recorded eight-row tree: 0 -> 1 -> 3 -> 5 -> 7 and 0 -> 2 -> 4 -> 6, prefix 5."""
    parents = [-1, 0, 1, 2, 3, 4, 8, 9, 10, 20, 24, 21, 28]
    return request([0, 1, 4, 8, 20, 24, 36], parents, 4, 4, 5, list(range(100, 113)))


def fork(prefix, columns, window=None):
    """A root and its two children."""
    shape = SHAPE if window is None else windowed(window)
    return request([0, 1], [], 2, 1, prefix, columns, shape=shape)


def windowed(width):
    return AttentionShape(
        num_q_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16, visibility=Window(width=width)
    )


def lists_of(x):
    bounds, slots = x.kv_indptr.tolist(), x.kv_indices.tolist()
    return [slots[a:b] for a, b in pairwise(bounds)]


@pytest.mark.parametrize("name", BACKENDS)
def test_the_eight_row_tree_has_its_recorded_positions_and_links(name):
    x = load(name).make().build(eight_rows())
    assert x.positions.tolist() == [5, 6, 6, 7, 7, 8, 8, 9]
    assert x.retrieve_index.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert x.retrieve_next_token.tolist() == [[1, 3, 4, 5, 6, 7, -1, -1]]
    assert x.retrieve_next_sibling.tolist() == [[-1, 2, -1, -1, -1, -1, -1, -1]]
    assert x.retrieve_parent_token.tolist() == [[-1, 0, 0, 1, 2, 3, 4, 5]]
    assert x.draft_token.tolist() == [50, 51, 52, 53, 54, 55, 56, 57]
    assert x.out_cache_loc.tolist() == list(range(105, 113))


@pytest.mark.parametrize("name", BACKENDS)
def test_the_bushy_recorded_request_has_its_positions_and_links(name):
    parents = [-1, 0, 1, 2, 3, 4, 5, 6, 7, 24, 28, 20, 21]
    c = request([0, 4, 5, 6, 7, 24, 36], parents, 4, 4, 10, list(range(18)))
    x = load(name).make().build(c)
    assert x.positions.tolist() == [10, 11, 12, 12, 12, 12, 13, 14]
    assert x.retrieve_next_token.tolist() == [[1, 2, -1, 6, -1, -1, 7, -1]]
    assert x.retrieve_next_sibling.tolist() == [[-1, -1, 3, 4, 5, -1, -1, -1]]
    assert x.retrieve_parent_token.tolist() == [[-1, 0, 1, 1, 1, 1, 3, 6]]


@pytest.mark.parametrize("name", BACKENDS)
def test_siblings_share_a_position_and_the_root_begins_at_the_prefix_length(name):
    c = request([0, 1, 2], [-1, 0, 1], 2, 2, 7, list(range(11)))
    assert load(name).make().build(c).positions.tolist() == [7, 8, 8, 9]


@pytest.mark.parametrize("name", BACKENDS)
def test_a_child_may_stand_before_its_parent(name):
    # Rows: root, C (child of A), A, B; pool: A is 0, B is 1, C is 2.
    x = load(name).make().build(request([2, 0, 1], [-1, 0, 1], 2, 2, 3, list(range(7))))
    assert x.positions.tolist() == [3, 5, 4, 4]
    assert x.retrieve_parent_token.tolist() == [[-1, 2, 0, 0]]
    assert x.retrieve_next_token.tolist() == [[2, -1, 1, -1]]
    assert x.retrieve_next_sibling.tolist() == [[-1, -1, 3, -1]]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("label", ["padded-rows", "padded-rows-without-a-slot"])
def test_padding_and_ragged_requests_follow_the_drawn_trees(name, label):
    scene = Scene(SITUATIONS[label])
    x = load(name).make().build(scene.candidates())
    pad_slot = SITUATIONS[label].pad_slot
    width = max(r.num_rows for r in scene.case.requests)
    positions, slots, tokens, parents = [], [], [], []
    for b, r in enumerate(scene.case.requests):
        positions += [r.prefix_len + r.tree.depth[n] for n in r.node_of_row] + [0] * r.pad_rows
        slots += [*scene.ledger.row_slots(b), *[pad_slot] * r.pad_rows]
        tokens += [r.tree.tokens[n] for n in r.node_of_row] + [0] * r.pad_rows
        parents.append([*r.parent_rows, *[-1] * (width - r.num_nodes)])
    assert x.qo_indptr.tolist() == list(scene.case.qo_indptr)
    assert x.positions.tolist() == positions
    assert x.out_cache_loc.tolist() == slots
    assert x.draft_token.tolist() == tokens
    assert x.retrieve_parent_token.tolist() == parents
    index = [
        [*range(first, first + r.num_nodes), *[-1] * (width - r.num_nodes)]
        for first, r in zip(scene.case.qo_indptr, scene.case.requests, strict=False)
    ]
    assert x.retrieve_index.tolist() == index


@pytest.mark.parametrize("name", BACKENDS)
def test_a_row_without_a_selected_parent_is_refused_by_name(name):
    orphan = request([0, 4], [-1, 0, 1], 2, 2, 3, list(range(6)))
    with pytest.raises(ValueError, match=r"selected_index\[0"):
        load(name).make().build(orphan)


def test_direct_mask_writes_the_five_row_mask():
    # root -> A -> C and root -> B -> D, rows [root, A, B, C, D]
    c = request([0, 1, 2, 4], [-1, 0, 1], 2, 2, 9, list(range(14)))
    x = load("direct-mask").make().build(c)
    assert x.custom_mask.int().view(5, 5).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 0, 1, 0, 1],
    ]
    assert x.custom_mask.data_ptr() == c.mask_buffer.data_ptr()


@pytest.mark.parametrize(
    "label", ["ragged-batch", "full-mask", "bit-packed", "bit-packed-wide", "padded-rows"]
)
def test_direct_mask_and_the_reference_write_the_same_cells(label):
    # Two builders that share no line: powers of a matrix here, bounded walks there.
    own, plain = Scene(SITUATIONS[label]).candidates(), Scene(SITUATIONS[label]).candidates()
    x, y = load("direct-mask").make().build(own), build(plain)
    assert torch.equal(x.mask_indptr, y.mask_indptr)
    assert torch.equal(x.custom_mask.view(torch.uint8), y.custom_mask.view(torch.uint8))


def test_cascade_lists_each_rows_own_suffix_and_not_a_range():
    # Candidate slots 8, 9, 10 after eight prefix keys.
    x = load("cascade").make().build(fork(8, list(range(11))))
    assert lists_of(x) == [[8], [8, 9], [8, 10]]
    assert x.cache_seqlens.tolist() == [8]
    assert x.page_table.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]]


COLUMNS = [10, 11, 12, 13, 20, 21, 22]
EXPANDED = [[10, 11, 12, 13, 20], [10, 11, 12, 13, 20, 21], [10, 11, 12, 13, 20, 22]]


def test_page_table_lines_are_the_prefix_and_then_the_path():
    x = load("page-table").make().build(fork(4, COLUMNS))
    lines, lengths = x.page_table.tolist(), x.cache_seqlens.tolist()
    assert [line[:n] for line, n in zip(lines, lengths, strict=True)] == EXPANDED


def test_swa_window_lists_are_the_prefix_and_then_the_path():
    assert lists_of(load("swa-window").make().build(fork(4, COLUMNS))) == EXPANDED


def test_swa_window_cuts_at_the_logical_index_and_not_at_the_row():
    # Row 2 (slot 22) has logical index 5 like its sibling: a window of 3 begins at key 3 for both.
    x = load("swa-window").make().build(fork(4, COLUMNS, window=3))
    assert x.kv_start.tolist() == [2, 3, 3]


@pytest.mark.parametrize(
    ("name", "label"),
    [("direct-mask", "mask"), ("cascade", "page"), ("page-table", "page"), ("swa-window", "kv_"),
     ("topology", "links")],
)  # fmt: skip
def test_each_backend_builds_its_own_representation_and_no_other(name, label):
    kinds = {"mask": {"custom_mask", "mask_indptr"}, "links": set()}
    kinds["kv_"] = {"kv_indptr", "kv_indices", "kv_start"}
    kinds["page"] = {"page_table", "cache_seqlens"}
    x = load(name).make().build(fork(4, COLUMNS))
    built = {field for kind in kinds.values() for field in kind if getattr(x, field) is not None}
    assert kinds[label] <= built
    if name != "direct-mask":
        assert x.custom_mask is None


@pytest.mark.parametrize("name", BACKENDS)
def test_rows_that_are_one_candidate_are_siblings_or_refused(name):
    """The star of SGLang's parity tests, whose rows are all the first child of the root."""
    c = request([0] * 4, [-1], 4, 4, 5, list(range(5, 15)))
    if name == "cascade":
        with pytest.raises(
            ValueError, match=r"selected_index\[0\] is \[0, 0, 0, 0\]: a candidate is"
        ):
            load(name).make().build(c)
        return
    x = load(name).make().build(c)
    assert x.positions.tolist() == [5, 6, 6, 6, 6]
    assert x.retrieve_next_token.tolist() == [[1, -1, -1, -1, -1]]
    assert x.retrieve_next_sibling.tolist() == [[-1, 2, 3, 4, -1]]


@pytest.mark.parametrize("name", BACKENDS)
def test_a_parent_that_comes_later_in_the_pool_is_found_or_refused(name):
    """Of SGLang's malformed selections the one that is a chain: candidate 2 hangs below 4, which no
    drafting phase leaves, and rows go up from the leaf."""
    c = request([2, 4, 0], [0, 4, 0, 0, 0], 2, 3, 11, list(range(11, 26)))
    if name == "cascade":
        with pytest.raises(
            ValueError, match=r"selected_index\[0, 0\] is 2: its parent 4 comes after"
        ):
            load(name).make().build(c)
        return
    x = load(name).make().build(c)
    assert x.positions.tolist() == [11, 14, 13, 12]
    assert x.retrieve_next_token.tolist() == [[3, -1, 1, 2]]
    assert x.retrieve_next_sibling.tolist() == [[-1, -1, -1, -1]]
