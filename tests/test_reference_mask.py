"""Masks in three layouts: sizes, undefined cells, packing, and what is refused."""

import pytest
import torch
from hand_candidates import MODES, TRACE, bits, candidates, tree_block

from treeproof.backends.reference.build import build
from treeproof.backends.reference.mask import mask_offsets, packed_dtype
from treeproof.contract.case import MaskMode
from treeproof.contract.inputs import Candidates


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
