"""The kernel that fills in data on a GPU, in Triton's interpreter: the same numbers, bit for bit."""

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
SCRIPT = """
import torch
from treeproof.generate.data import _PIECES_SCALE, hash_tensor, normal
from treeproof.generate.data_kernel import fill_rows

owner, index = torch.arange(7) % 3 - 2, torch.arange(7) * 100_003
states = hash_tensor(12345, 2, owner, index)
head, lane = torch.arange(3)[:, None], torch.arange(40)
for dtype in (torch.float32, torch.float16):
    for factor in (1.0, 0.7):
        right = normal(12345, 2, owner[:, None, None], index[:, None, None], head, lane) * factor
        for block in (128, 16):
            out = torch.zeros(7, 3, 40, dtype=dtype)
            factors = torch.tensor([_PIECES_SCALE, factor], dtype=torch.float64)
            fill_rows[7, -(-120 // block)](out, states, factors, HEADS=3, LANES=40, BLOCK=block)
            print(dtype, factor, block, torch.equal(out, right.to(dtype)))
        print("another seed", torch.equal(out, normal(12346, 2, owner[:, None, None], index[:, None, None], head, lane).to(dtype)))
"""


def test_a_kernel_fills_in_the_numbers_that_the_definition_gives() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}

    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment
    )

    said = done.stdout.splitlines()
    assert sum(line.endswith("True") for line in said) == 8, done.stderr
    assert [line for line in said if line.endswith("False")] == ["another seed False"] * 4
