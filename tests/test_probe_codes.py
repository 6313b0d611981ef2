"""Sign codes tell every slot of every head apart, with the distance that the spike's size assumes."""

from __future__ import annotations

import pytest
import torch

from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.tree import CandidateTree
from treeproof.properties.probes.codes import bits_needed, sign_codes

CPU = torch.device("cpu")


@pytest.mark.parametrize(("slots", "width"), [(16, 8), (256, 8), (94, 16), (1000, 16), (2000, 64)])
@pytest.mark.parametrize("salt", [1, 2, 3, 4])
def test_codes_of_two_slots_differ_in_at_least_one_lane_for_every_repetition(
    slots: int, width: int, salt: int
) -> None:
    codes = sign_codes(slots, 2, width, salt, CPU)
    for head in range(2):
        agreement = codes[:, head] @ codes[:, head].T  # width - 2 * lanes that differ
        agreement.fill_diagonal_(-width)
        assert float(agreement.max()) <= width - 2 * (width // bits_needed(slots))


def test_codes_are_signs_and_differ_between_heads_and_salts() -> None:
    codes = sign_codes(500, 4, 32, 1, CPU)
    assert set(codes.unique().tolist()) == {-1.0, 1.0}
    assert all(bool((codes[:, 0] != codes[:, head]).any(1).all()) for head in (1, 2, 3))
    assert bool((codes != sign_codes(500, 4, 32, 2, CPU)).any())


def test_a_cache_with_more_slots_than_codes_is_refused_by_name() -> None:
    tree = CandidateTree(tokens=(1,), parents=(-1,))
    with pytest.raises(ValueError, match="num_slots is 257: with 8 lanes a head at most 256 slots"):
        VerifyCase(
            requests=(Request(tree=tree, row_of_node=(0,), prefix_len=3),),
            shape=AttentionShape(num_q_heads=1, num_kv_heads=1, head_dim=8, v_head_dim=8),
            layout=KVLayout(page_size=1, num_slots=257),
        )
    with pytest.raises(ValueError, match="257 slots need 9 lanes, head dim is 8"):
        sign_codes(257, 1, 8, 1, CPU)
