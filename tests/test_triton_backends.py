"""Our Triton backends in Triton's interpreter: all five identities are theirs, and hold.

These run where Triton is installed (pip install triton). Elsewhere they are skipped, saying so,
unless TREEPROOF_REQUIRE_OPTIONAL=1 makes that an error.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import pytest
import torch
from backend_scene import CHAIN, FORK, Situation, case_of
from interpreter_worker import Ask, checked, interpreter
from triton_scene import merged, reference, sampled_by_both, wrong_rows, wrong_rows_of

from treeproof.contract.case import MaskMode
from treeproof.contract.failure import COLUMNS
from treeproof.scoring.kill import drawn_cases

MISSING = importlib.util.find_spec("triton") is None
HOW = "not installed: triton (pip install triton)"

pytestmark = pytest.mark.skipif(
    MISSING and os.environ.get("TREEPROOF_REQUIRE_OPTIONAL") != "1", reason=HOW
)

BACKENDS = ("direct-mask", "cascade", "page-table", "swa-window", "topology")

TWO_TREES = Situation(trees=(FORK, CHAIN), prefixes=(5, 0), pads=(1, 0), heads=(2, 1))
SITUATIONS = {
    "direct-mask": replace(
        TWO_TREES, heads=(4, 2), window=4, mode=MaskMode.QLEN_ONLY_BITPACKING, dtype="float16"
    ),
    "cascade": replace(TWO_TREES, page=4, prefixes=(7, 0), window=8, sinks=True),
    "page-table": replace(TWO_TREES, page=4, prefixes=(7, 0), softcap=3.0),
    "swa-window": replace(TWO_TREES, window=3, sinks=True, dtype="float16"),
    "topology": replace(TWO_TREES, sinks=True, pad_slot=-1),
}  # fmt: skip
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
def ask() -> Iterator[Ask]:
    assert not MISSING, HOW
    with interpreter() as asked:
        yield asked


@pytest.mark.parametrize("name", BACKENDS)
def test_every_column_is_judged_by_evidence_of_the_backends_own_and_passes(
    ask: Ask, name: str
) -> None:
    case = case_of(SITUATIONS[name])
    layout = msgspec.structs.replace(case.layout, storage=STORAGE.get(name, "NHD"))
    result = ask(checked, reference(name), msgspec.structs.replace(case, layout=layout))

    assert result.failures == ()
    assert {kernel.mode for kernel in result.kernels} == {"interpreted"}
    assert {kernel.name for kernel in result.kernels} == KERNELS[name]
    statuses = {(cell.identity, cell.evidence): cell.status for cell in result.cells}
    measured = {identity: statuses[identity, "measured"] for identity in COLUMNS}
    assert measured == dict.fromkeys(COLUMNS, "pass")


_SEES = "at[:, None, :] > index[:, :, None] - window"
_HEAD = "kv_head[:, None] * GROUP + line % GROUP"
_MOVED = "tl.load(cache + at + source[:, None] * slot_step, mask=inside, other=0)"
_STORED = "    tl.store(cache + at + target[:, None] * slot_step, moved, mask=inside)"
EDITS = {
    "next-mask-bit": ("direct-mask", "visibility", "masked", "tl.maximum(other, 0), 63", "tl.maximum(other, 0) + 1, 63"),
    "window-of-one-key-more": ("direct-mask", "visibility", "masked", _SEES, _SEES.replace(">", ">=")),
    "heads-dealt-out-in-turn": ("direct-mask", "output", "masked", _HEAD, "kv_head[:, None] + line % GROUP * KV_HEADS"),
    "natural-lse-in-base-2": ("cascade", "output", "softmax", "tl.log(some)", "tl.log2(some)"),
    "sink-counted-twice": ("swa-window", "output", "softmax", "+ tl.exp(sink - higher)", "+ 2 * tl.exp(sink - higher)"),
    "shared-page-offset-dropped": ("cascade", "visibility", "shared", "page * PAGE + key % PAGE", "page * PAGE"),
    "page-offset-dropped": ("page-table", "visibility", "paged", "page * PAGE + key % PAGE", "page * PAGE"),
    "second-part-dropped": ("cascade", "visibility", "merging", "in range(PARTS)", "in range(1)"),
    "list-from-its-start": ("swa-window", "visibility", "paged", " + tl.load(kv_start + row)", ""),
    "root-not-walked-to": ("topology", "visibility", "linked", "mine + node, mask=on_path", "mine + node, mask=on_path & ((node > 0) | (row == first))"),
    "values-of-the-slot-before": ("topology", "visibility", "softmax", "(v[:, None] + slot", "(v[:, None] + tl.maximum(slot - 1, 0)"),
    "bonus-left-out": ("topology", "candidate", "tree_build", "tl.load(bonus + b), token", "0, token"),
    "position-of-the-row": ("topology", "position", "tree_build", "prefix + depth, 0", "prefix + row, 0"),
    "siblings-not-linked": ("topology", "traversal", "tree_build", "sibling < WIDTH", "sibling < 0"),
    "coin-on-the-edge-accepts": ("topology", "traversal", "sampled", "(coin < reached / acc)", "(coin <= reached / acc)"),
    "refused-drafts-are-drawn": ("cascade", "traversal", "sampled", "at == token, 0.0, left", "at == token, left, left"),
    "coin-of-the-root": ("page-table", "traversal", "sampled", "            coin = tl.load(coins + row)\n", ""),
    "drawn-after-the-root": ("swa-window", "traversal", "sampled", "law = probs + row * law_row", "law = probs + tl.load(index + line) * law_row"),
    "stored-while-loading": (
        "topology", "kv", "compaction", _STORED,
        "    for turn in range(WIDTH):\n"
        "        one = inside & (step == turn)[:, None]\n"
        f"        moved = {_MOVED.replace('inside', 'one')}\n"
        f"    {_STORED.replace('inside', 'one')}",
    ),
}  # fmt: skip
"""An edit of one kernel's text and the identity that it breaks, in the situation of its backend above."""


@pytest.mark.parametrize("edit", EDITS)
def test_a_slip_in_a_kernel_is_seen_by_the_identity_that_it_breaks(ask: Ask, edit: str) -> None:
    name, identity, *text = EDITS[edit]
    case = case_of(SITUATIONS[name])
    result = ask(checked, reference(name), case, frozenset({identity}), tuple(text))

    assert {failure.identity for failure in result.failures} == {identity}


@pytest.mark.parametrize("vocabulary", [1, 1024, 2500])
def test_a_vocabulary_of_several_blocks_is_sampled_as_by_the_torch_twin(
    ask: Ask, vocabulary: int
) -> None:
    """A block holds 1,024 tokens; of one token there is nothing to choose."""
    ours, twin = ask(sampled_by_both, "topology", vocabulary)

    assert ours == twin
    last = {line[-1] for launch in ours for line in launch}
    assert vocabulary == 1 or len(last) > 20
    assert vocabulary < 2500 or max(last) > 2048


@pytest.mark.parametrize("name", BACKENDS)
def test_every_row_is_attention_over_its_own_path(ask: Ask, name: str) -> None:
    wrong = ask(wrong_rows, name)

    assert len(wrong) > 20
    assert {label: rows for label, rows in wrong.items() if rows} == {}


@pytest.mark.parametrize("name", ["topology", "direct-mask"])
def test_a_path_longer_than_a_tile_of_keys_goes_on_in_the_next(ask: Ask, name: str) -> None:
    chain = (-1, *range(69)), tuple(range(70))
    deep = Situation(trees=(chain, FORK), prefixes=(9, 70), pads=(0, 2), heads=(2, 1), window=66)

    assert ask(wrong_rows_of, name, deep, deep) == set()


def test_keys_enough_for_two_parts_are_split_and_merged(ask: Ask) -> None:
    long = Situation(trees=(FORK,), prefixes=(300,), pads=(0,), heads=(2, 1), page=16, window=290)
    dropped = ("merging", "in range(PARTS)", "in range(1)")

    assert ask(wrong_rows_of, "page-table", long, long) == set()
    assert ask(wrong_rows_of, "page-table", long, long, dropped) == set(range(7))


@pytest.mark.parametrize("name", BACKENDS)
def test_rows_whose_window_is_left_out_are_seen(ask: Ask, name: str) -> None:
    windowed = replace(TWO_TREES, window=4, prefixes=(5, 2), pads=(0, 0))
    wrong = ask(wrong_rows_of, name, windowed, replace(windowed, window=None))

    assert wrong >= {1, 3, 4, 5, 6}  # rows of depth 1 and more behind five keys
    assert ask(wrong_rows_of, name, windowed, windowed) == set()


@pytest.mark.parametrize("base_2", [False, True], ids=["natural", "base-2"])
@pytest.mark.parametrize(
    "lse", [[0.5, 2.0], [-math.inf, 1.0], [3.0, -90.0, 3.5], [-math.inf, -math.inf]],
    ids=["two-parts", "an-empty-part", "three-parts", "nothing"],
)  # fmt: skip
def test_parts_are_merged_by_their_weight_in_either_base(
    ask: Ask, lse: list[float], base_2: bool
) -> None:
    found = ask(merged, lse, base_2)

    base = 2.0 if base_2 else math.e
    masses = [base**one for one in lse]
    if sum(masses) == 0:
        assert torch.equal(found.out, torch.zeros_like(found.out))
        assert found.lse.item() == -math.inf
        return
    assert found.lse.item() == pytest.approx(math.log(sum(masses), base), abs=1e-6)
    parts = found.parts.double()[:, 0, 0]
    expected = sum(
        mass / sum(masses) * part for mass, part in zip(masses, parts, strict=True) if mass
    )
    assert torch.allclose(found.out[0, 0].double(), expected, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("name", BACKENDS)
def test_drawn_cases_pass_in_every_column(ask: Ask, name: str) -> None:
    small = [
        case
        for case in drawn_cases()
        if case.shape.kv_dtype is None and not case.shape.alibi and case.shape.dtype != "bfloat16"
    ]
    for case in small[:12]:
        result = ask(checked, reference(name), case)
        assert result.failures == ()
        assert "unsupported" not in {cell.status for cell in result.cells}
