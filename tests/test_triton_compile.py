"""Every kernel of ours compiles for a GPU; which needs Triton, and no GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

MISSING = importlib.util.find_spec("triton") is None

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        MISSING and os.environ.get("TREEPROOF_REQUIRE_OPTIONAL") != "1",
        reason="not installed: triton (pip install triton)",
    ),
]

SIZES = {"KV_HEADS": 2, "GROUP": 4, "D": 80, "DV": 64, "BLOCK_D": 128, "BLOCK_DV": 64, "PAGE": 16}
TILES = {
    "UNITS": 1,
    "BLOCK_M": 16,
    "BLOCK_N": 16,
    "BLOCK": 128,
    "WIDTH": 32,
    "LANES": 80,
    "PARTS": 3,
}
FLAGS = {"UPCAST": False, "CAPPED": True, "HAS_SINKS": True, "FILL_PREFIX": True, "BASE_2": False}
KERNELS = {
    "masked.masked_attention": [
        {"PACKED": False, "PREFIXED": True, "mask": "*u8"},
        {"PACKED": True, "PREFIXED": False, "mask": "*i32"},
    ],
    "shared.shared_attention": [{"out": "*fp32"}, {"PAGE": 1, "out": "*fp32"}],
    "paged.paged_attention": [{"out": "*fp32"}, {"PAGE": 0}],
    "linked.linked_attention": [{}],
    "merging.merge_parts": [{"parts": "*fp32"}, {"BASE_2": True, "HAS_SINKS": False}],
    "compaction.compact": [{"cache": "*i16"}],
    "greedy.accept_greedily": [{}],
    "sampled.sample_tree": [{"BLOCK": 1024}],
    "tree_build.find_parents": [{}],
    "tree_build.build_rows": [
        {"PACKED": False, "PREFIXED": True, "mask": "*u8"},
        {"PACKED": True, "PREFIXED": False, "FILL_PREFIX": False, "mask": "*i32"},
    ],
    "tree_build.list_rows": [{}],
}
"""What each is compiled with beside the values above: constants, and types of arguments."""

COMPILE = """
import importlib, json, sys
from unittest import mock
name, dtype, given = json.loads(sys.argv[1])
with mock.patch("treeproof.backends.adapters.triton_mode.interpreted", return_value=False):
    module, _, function = name.partition(".")
    kernel = getattr(importlib.import_module(f"treeproof.backends.kernels.{module}"), function)
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

floats = {"q": dtype, "k_cache": dtype, "v_cache": dtype, "out": dtype, "parts": dtype}
wide = ("lse", "part_lse", "sinks", "probs", "coins", "final_coins")
numbers = ("units", "blocks", "rows", "width", "steps", "beams", "topk", "pad_slot", "window", "heads",
    "lines", "splits", "q_row", "q_head", "k_slot", "k_head", "v_slot", "v_head", "table_row",
    "slot_step", "head_step", "vocabulary", "law_row")
def typed(argument):
    if argument in given:
        return given[argument] if isinstance(given[argument], str) else "constexpr"
    if argument in floats or argument in wide:
        return "*" + floats.get(argument, "fp32")
    return "fp32" if argument in ("scale", "softcap", "single", "acc") else "i32" if argument in numbers else "*i64"
signature = {argument: typed(argument) for argument in kernel.arg_names}
constants = {(i,): given[a] for i, a in enumerate(kernel.arg_names) if signature[a] == "constexpr"}
compiled = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32))
print(compiled.metadata.shared)
"""

SHARED = 227 << 10
"""Bytes of shared memory that a block may have on compute capability 9.0."""


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("name", KERNELS)
def test_it_compiles_and_fits_on_the_chip(name: str, dtype: str) -> None:
    for variant in KERNELS[name]:
        asked = json.dumps([name, dtype, SIZES | TILES | FLAGS | variant])
        env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
        done = subprocess.run(
            [sys.executable, "-c", COMPILE, asked], capture_output=True, text=True, env=env
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) <= SHARED
