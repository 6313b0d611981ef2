"""torch's scaled_dot_product_attention under a tree mask: right, and seen wrong when made wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from treeproof.backends.adapters import sdpa
from treeproof.contract.capabilities import Numerics
from treeproof.contract.case import (
    AttentionShape,
    KVLayout,
    MaskLayout,
    MaskMode,
    Request,
    VerifyCase,
    Window,
)
from treeproof.contract.event import Checked
from treeproof.contract.registry import load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case

REFERENCE = "treeproof.backends.adapters.sdpa:sdpa-direct-mask"
FORK = Request(
    tree=CandidateTree(tokens=(11, 12, 13), parents=(-1, 0, 0)), row_of_node=(0, 1, 2), prefix_len=0
)
# A child before its parent, and padded rows.
SIX = Request(
    tree=CandidateTree(tokens=(11, 12, 13, 14, 15, 16), parents=(-1, 0, 0, 1, 2, 1)),
    row_of_node=(0, 2, 1, 4, 3, 5),
    prefix_len=21,
    pad_rows=2,
)


def checked(case: VerifyCase, backend: Any = None) -> Checked:
    return check_case(case, backend or load(REFERENCE), CheckOptions())


def statuses(result: Checked) -> dict[str, str]:
    return {c.identity: c.status for c in result.cells if c.evidence == "measured"}


def case_of(*requests: Request, **fields: Any) -> VerifyCase:
    window, mask = fields.pop("window", None), fields.pop("mask", MaskLayout())
    spread = fields.pop("score_spread", 1.0)
    layout = fields.pop("layout", KVLayout(page_size=2, num_slots=64, order="shuffled"))
    shape = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 32, "v_head_dim": 32} | fields
    if window is not None:
        shape["visibility"] = Window(width=window)
    return VerifyCase(
        requests=requests or (FORK, SIX),
        shape=AttentionShape(**shape),
        layout=layout,
        mask=mask,
        score_spread=spread,
    )


RIGHT = {
    "full-mask": case_of(mask=MaskLayout(slack=3, fill_prefix=False)),
    "tree-mask-window": case_of(mask=MaskLayout(mode=MaskMode.QLEN_ONLY, slack=2), window=9),
    "packed-mask-window-of-two": case_of(mask=MaskLayout(mode=MaskMode.QLEN_ONLY_BITPACKING), window=2),
    "values-narrower": case_of(v_head_dim=16, scale=0.4, rotary=10_000.0),
    "bfloat16-sharp": case_of(dtype="bfloat16", score_spread=8.0),
    "float16": case_of(dtype="float16", num_kv_heads=4),
    "evicted": case_of(SIX, window=5, layout=KVLayout(page_size=2, num_slots=64, pad_slot=-1, page_table_pad=-1, evicted=True)),
}  # fmt: skip


@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT)
def test_sdpa_passes_with_every_mask_and_window(case: VerifyCase) -> None:
    result = checked(case)

    assert result.failures == ()
    found = statuses(result)
    assert (found["visibility"], found["output"], found["contract"]) == ("pass",) * 3


def test_declaring_weights_in_float32_is_found_out() -> None:
    backend = replace(load(REFERENCE), numerics=Numerics(p="float32"))

    result = checked(case_of(SIX, dtype="bfloat16", num_kv_heads=4), backend)

    assert {f.kind for f in result.failures} == {"outside-bound"}


@pytest.mark.parametrize(
    ("wrong", "kinds"),
    [
        ("everything", {"reads-sibling", "reads-descendant", "outside-bound"}),
        # Row 0 sees row 1 alone, row 1 itself and row 2, row 2 the root and row 1.
        (
            "a-column-on",
            {
                "misses-self",
                "misses-ancestor",
                "reads-sibling",
                "reads-descendant",
                "outside-bound",
            },
        ),
    ],
)
def test_a_mask_that_says_too_much_or_is_shifted_is_seen(
    monkeypatch: pytest.MonkeyPatch, wrong: str, kinds: set[str]
) -> None:
    right = sdpa.tree_cells
    changed = {
        "everything": lambda x: right(x) | True,
        "a-column-on": lambda x: right(x).roll(1, 1),
    }
    monkeypatch.setattr(sdpa, "tree_cells", changed[wrong])

    result = checked(case_of(FORK))

    assert {f.kind for f in result.failures} == kinds


def test_there_is_no_log_sum_exp_to_judge() -> None:
    case = msgspec.structs.replace(case_of(FORK), seed=3)
    backend = load(REFERENCE)
    seen = []

    class Watched:
        def attend(self, *given: Any) -> Any:
            seen.append(backend.make().attend(*given))
            return seen[-1]

    checked(case, replace(backend, make=Watched))

    assert seen
    assert all(attended.lse is None for attended in seen)
