import math

import pytest
import torch

from treeproof.oracles.rotary import rotated

# head_dim 8 and base 10,000: lane pairs (0,4) (1,5) (2,6) (3,7) turn by 1, .1, .01, .001 a position.
# Cosines and sines below are from a table, not from a program.


def unit(lane: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.zeros(1, 1, 8, dtype=dtype)
    x[0, 0, lane] = 1
    return x


@pytest.mark.parametrize(
    ("lane", "position", "expected"),
    [
        (0, 3, {0: -0.9899924966, 4: 0.1411200081}),  # 3 radians
        (4, 3, {0: -0.1411200081, 4: -0.9899924966}),
        (1, 3, {1: 0.9553364891, 5: 0.2955202067}),  # 0.3 radians
        (2, 50, {2: 0.8775825619, 6: 0.4794255386}),  # 0.5 radians
        (7, 1000, {3: -0.8414709848, 7: 0.5403023059}),  # 1 radian
        (5, 0, {5: 1.0}),
    ],
)
def test_a_unit_vector_turns_by_the_angle_of_its_lane_pair(
    lane: int, position: int, expected: dict[int, float]
) -> None:
    turned = rotated(unit(lane), torch.tensor([position]), 10_000.0)[0, 0].tolist()
    wanted = [expected.get(i, 0.0) for i in range(8)]
    assert turned == pytest.approx(wanted, abs=6e-8)  # float32 rounds at 2**-24


def test_the_result_is_rounded_to_the_working_dtype_and_no_coarser() -> None:
    # cos 3 = -253.438/256 = -2027.505/2048: bfloat16 counts in 256ths here, float16 in 2048ths.
    at = torch.tensor([3])
    assert rotated(unit(0, torch.bfloat16), at, 10_000.0)[0, 0, 0].item() == -253 / 256
    assert rotated(unit(0, torch.float16), at, 10_000.0)[0, 0, 0].item() == -2028 / 2048


def test_without_a_base_nothing_turns() -> None:
    x = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rotated(x, torch.tensor([0, 5, 9]), None), x.double())


def test_a_far_position_keeps_its_angle_in_float64() -> None:
    # 13,107.1 radians: in float32 such an angle is known to 5e-4 only.
    turned = rotated(unit(1), torch.tensor([131_071]), 10_000.0)[0, 0]
    assert turned[1].item() == pytest.approx(math.cos(13_107.1), abs=6e-8)
    assert turned[5].item() == pytest.approx(math.sin(13_107.1), abs=6e-8)


def test_scores_depend_on_the_distance_of_positions_alone() -> None:
    x = torch.randn(2, 1, 8, generator=torch.Generator().manual_seed(1))

    def score(at_query: int, at_key: int) -> float:
        q, k = rotated(x, torch.tensor([at_query, at_key]), 100.0)[:, 0]
        return float(q @ k)

    assert score(9, 4) == pytest.approx(score(1005, 1000), abs=1e-5)
    assert abs(score(9, 4) - score(9, 5)) > 1e-2  # and do depend on it
