"""Our Triton backends in Triton's interpreter: all five identities are theirs, and hold.

These run where Triton is installed (pip install triton). Elsewhere they are skipped, saying so,
unless TREEPROOF_REQUIRE_OPTIONAL=1 makes that an error.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
from backend_scene import CHAIN, FORK, Situation, case_of
from interpreter_worker import Check, interpreter

from treeproof.contract.case import MaskMode
from treeproof.contract.failure import COLUMNS

MISSING = importlib.util.find_spec("triton") is None
HOW = "not installed: triton (pip install triton)"

pytestmark = pytest.mark.skipif(
    MISSING and os.environ.get("TREEPROOF_REQUIRE_OPTIONAL") != "1", reason=HOW
)

BACKENDS = ("direct-mask", "cascade", "page-table", "swa-window", "topology")

TWO_TREES = Situation(trees=(FORK, CHAIN), prefixes=(5, 0), pads=(1, 0), heads=(2, 1))
SITUATIONS = {
    "direct-mask": replace(TWO_TREES, mode=MaskMode.QLEN_ONLY_BITPACKING, dtype="float16"),
    "cascade": replace(TWO_TREES, page=4, window=6, sinks=True),
    "page-table": replace(TWO_TREES, page=2, softcap=3.0),
    "swa-window": replace(TWO_TREES, window=3, dtype="float16"),
    "topology": replace(TWO_TREES, sinks=True, pad_slot=-1),
}
KERNELS = {
    "direct-mask": {"masked_attention"},
    "cascade": {"merge_parts", "paged_attention", "shared_attention"},
    "page-table": {"merge_parts", "paged_attention"},
    "swa-window": {"paged_attention"},
    "topology": {"linked_attention"},
}
STORAGE = {"direct-mask": "layered", "cascade": "interleaved", "topology": "interleaved"}
"""Where the caches are no contiguous ones."""


@pytest.fixture(scope="module")
def check() -> Iterator[Check]:
    assert not MISSING, HOW
    with interpreter() as asked:
        yield asked


def reference(name: str) -> str:
    return f"treeproof.backends.triton_{name.replace('-', '_')}:triton-{name}"


@pytest.mark.parametrize("name", BACKENDS)
def test_every_column_is_judged_by_evidence_of_the_backends_own_and_passes(
    check: Check, name: str
) -> None:
    case = case_of(SITUATIONS[name])
    layout = msgspec.structs.replace(case.layout, storage=STORAGE.get(name, "NHD"))
    result = check(reference(name), msgspec.structs.replace(case, layout=layout))

    assert result.failures == ()
    assert {kernel.mode for kernel in result.kernels} == {"interpreted"}
    assert {kernel.name for kernel in result.kernels} == KERNELS[name]
    statuses = {(cell.identity, cell.evidence): cell.status for cell in result.cells}
    measured = {identity: statuses[identity, "measured"] for identity in COLUMNS}
    assert measured == dict.fromkeys(COLUMNS, "pass")
