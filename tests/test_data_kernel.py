"""The kernels that make data on a GPU, in Triton's interpreter: the same numbers, bit for bit."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

MISSING = importlib.util.find_spec("triton") is None

pytestmark = pytest.mark.skipif(
    MISSING and os.environ.get("TREEPROOF_REQUIRE_OPTIONAL") != "1",
    reason="not installed: triton (pip install triton)",
)

# The interpreter cuts bfloat16 off where a GPU rounds, so that dtype is compared on GPUs only.
NUMBERS = """
import torch
from treeproof.contract.counter import address_hash
from treeproof.generate.data import _PIECES_SCALE, _signed, normal
from treeproof.generate.data_kernel import fill_rows

owner, index = torch.arange(7) % 3 - 2, torch.arange(7) * 100_003
start = _signed(address_hash(12345, 2))
head, lane = torch.arange(3)[:, None], torch.arange(40)
for dtype in (torch.float32, torch.float16):
    for factor in (1.0, 0.7):
        right = normal(12345, 2, owner[:, None, None], index[:, None, None], head, lane) * factor
        for block in (128, 16):
            out = torch.zeros(7, 3, 40, dtype=dtype)
            factors = torch.tensor([_PIECES_SCALE, factor], dtype=torch.float64)
            fill_rows[7, -(-120 // block)](out, owner, index, start, factors, HEADS=3, LANES=40, BLOCK=block)
            print(dtype, factor, block, torch.equal(out, right.to(dtype)))
        print("another seed", torch.equal(out, normal(12346, 2, owner[:, None, None], index[:, None, None], head, lane).to(dtype)))
"""

HASHES = """
import torch
from treeproof.contract.counter import address_hash
from treeproof.generate.data import _signed, hash_tensor
from treeproof.generate.data_kernel import hashed

tall, wide = torch.arange(-300, 300, 7) * 100_003, torch.arange(9)
every = (tall[:, None] * 31 + wide)[:, ::2]  # a view with strides of its own
for words in ((tall,), (tall[:, None], wide), (tall[:, None], every, wide[::2]), (tall[:0],)):
    for seed in (12345, 2**63 - 1):
        got = hashed(_signed(address_hash(seed, 5, -1)), words)
        print("equal", torch.equal(got, hash_tensor(seed, 5, -1, *words)))
    print("order", torch.equal(got, hash_tensor(seed, 5, -1, *words[::-1])))
"""


@pytest.fixture(scope="module")
def said() -> list[str]:
    """What both scripts print, line by line."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", NUMBERS + HASHES], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_kernel_hashes_words_as_the_definition_does(said: list[str]) -> None:
    assert [line for line in said if line.startswith("equal")] == ["equal True"] * 8
    # Of a single word, or of none, the order does not matter.
    assert [line for line in said if line.startswith("order")] == [
        f"order {same}" for same in (True, False, False, True)
    ]


def test_a_kernel_fills_in_the_numbers_that_the_definition_gives(said: list[str]) -> None:
    filled = [line for line in said if line.startswith(("torch.", "another"))]
    assert sum(line.endswith("True") for line in filled) == 8
    assert [line for line in filled if line.endswith("False")] == ["another seed False"] * 4
