"""Bitwise equality looks at bits, not at how a tensor lies in memory."""

import pytest
import torch

from treeproof.properties.contract import same_bits


def test_a_single_element_of_a_wider_table_is_compared():
    table = torch.tensor([[1, 2], [3, 4]])
    assert same_bits(table[:1, -1], torch.tensor([2]))
    assert not same_bits(table[:1, -1], torch.tensor([1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_transposed_tables_are_compared_cell_by_cell(dtype):
    table = torch.tensor([[0, 1, 1], [1, 0, 1]], dtype=dtype)
    assert same_bits(table.T, table.T.contiguous())
    assert not same_bits(table.T, table.T.contiguous().logical_not().to(dtype))


def test_zeros_of_either_sign_differ_and_one_nan_equals_itself():
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert same_bits(torch.tensor([torch.nan]), torch.tensor([torch.nan]))
