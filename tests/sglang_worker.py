"""Checks in a process of its own, where Triton interprets: this one may have imported it otherwise.

SGLang and Triton are optional. Where they are missing, tests that need them are skipped saying how to
install them, unless TREEPROOF_REQUIRE_OPTIONAL=1 makes that an error.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import msgspec
import pytest

from treeproof.contract.case import (
    AttentionShape,
    KVLayout,
    MaskLayout,
    Request,
    VerifyCase,
    Window,
)
from treeproof.contract.event import Checked, Diagnosed
from treeproof.contract.tree import CandidateTree
from treeproof.contract.wire import encode_case

MISSING = [name for name in ("sglang", "triton") if importlib.util.find_spec(name) is None]
HOW = (
    f"not installed: {', '.join(MISSING)} (pip install --no-deps sglang==0.5.23; "
    "pip install triton)"
)
optional = pytest.mark.skipif(
    bool(MISSING) and os.environ.get("TREEPROOF_REQUIRE_OPTIONAL") != "1", reason=HOW
)

INTERPRETED = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}

_WORKER = """
import sys
import msgspec
import torch
from treeproof.contract.registry import load
from treeproof.contract.wire import decode_case
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.look import look

torch.set_num_threads(1)
for line in sys.stdin:
    what, reference, case = line.split(" ", 2)
    do = {"check": check_case, "look": look}[what]
    found = do(decode_case(case.encode()), load(reference), CheckOptions())
    print(msgspec.json.encode(found).decode(), flush=True)
"""

Check = Callable[[str, VerifyCase], Checked]
"""Backend reference and case to verdicts."""


Look = Callable[[str, VerifyCase], tuple[Diagnosed, ...]]
"""The same to causes."""


@contextmanager
def worker() -> Iterator[Check]:
    with workers() as (check, _):
        yield check


@contextmanager
def workers() -> Iterator[tuple[Check, Look]]:
    """One process; what it loads, it keeps."""
    assert not MISSING, HOW
    process = subprocess.Popen(
        [sys.executable, "-c", _WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **INTERPRETED},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def ask(what: str, reference: str, case: VerifyCase) -> str:
        stdin.write(f"{what} {reference} {encode_case(case).decode().strip()}\n")
        stdin.flush()
        return stdout.readline()

    @cache
    def check(reference: str, case: VerifyCase) -> Checked:
        return msgspec.json.decode(ask("check", reference, case), type=Checked)

    def look(reference: str, case: VerifyCase) -> tuple[Diagnosed, ...]:
        return msgspec.json.decode(ask("look", reference, case), type=tuple[Diagnosed, ...])

    yield check, look
    stdin.close()
    assert process.wait(60) == 0
    stdout.close()


def request(parents: list[int], prefix: int, pad_rows: int = 0) -> Request:
    tree = CandidateTree(tokens=tuple(range(10, 10 + len(parents))), parents=tuple(parents))
    rows = tuple(range(len(parents)))
    return Request(tree=tree, row_of_node=rows, prefix_len=prefix, pad_rows=pad_rows)


def case_of(*requests: Request, window: int | None = None, **fields: Any) -> VerifyCase:
    """One key-value head of 16 lanes, FULL_MASK without prefix cells, unless said otherwise."""
    shape = {"num_q_heads": 2, "num_kv_heads": 1, "head_dim": 16, "v_head_dim": 16}
    shape |= {
        name: fields.pop(name) for name in [*fields] if name in AttentionShape.__struct_fields__
    }
    if window is not None:
        shape["visibility"] = Window(width=window)
    layout = fields.pop("layout", KVLayout(page_size=1, num_slots=64, order="shuffled"))
    mask = fields.pop("mask", MaskLayout(slack=5, fill_prefix=False))
    return VerifyCase(
        requests=requests, shape=AttentionShape(**shape), layout=layout, mask=mask, **fields
    )


def statuses(result: Checked, evidence: str = "measured") -> dict[str, str]:
    return {c.identity: c.status for c in result.cells if c.evidence == evidence}
