"""Reading or writing past the end of what a stage is handed, stage by stage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from mask_stages import MaskStages

from treeproof.contract.backend import describe
from treeproof.contract.capabilities import Numerics
from treeproof.contract.case import AttentionShape, KVLayout, MaskLayout, Request, VerifyCase
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.registry import load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.properties.probes.tails import GUARD, guarded

TREE = CandidateTree(tokens=(11, 12, 13, 14, 15), parents=(-1, 0, 0, 1, 2))
CASE = VerifyCase(
    requests=(
        Request(tree=TREE, row_of_node=(0, 1, 2, 3, 4), prefix_len=7, pad_rows=1),
        Request(tree=TREE, row_of_node=(0, 3, 1, 2, 4), prefix_len=3),
    ),
    shape=AttentionShape(num_q_heads=4, num_kv_heads=2, head_dim=64, v_head_dim=64),
    layout=KVLayout(page_size=4, num_slots=64, order="shuffled"),
    mask=MaskLayout(slack=5, fill_prefix=False),
)


def after_end(tensor: torch.Tensor, step: int = 0) -> torch.Tensor | None:
    """The cell after a tensor's last (or before its first), where memory goes on."""
    at = tensor.storage_offset() + (tensor.numel() if step >= 0 else -1)
    if not 0 <= at < tensor.untyped_storage().nbytes() // tensor.element_size():
        return None
    return tensor.as_strided((1,), (1,), at)


class BuildCountsOneMoreToken(MaskStages):
    def build(self, c: Any) -> VerifyInput:
        x = super().build(c)
        more = after_end(c.bonus_tokens)
        return x if more is None else replace(x, positions=x.positions + more)


class BuildKeepsMaskGarbage(MaskStages):
    """The root's row is left as it was found: its tree block follows 7 prefix cells."""

    def build(self, c: Any) -> VerifyInput:
        was = c.mask_buffer[8:12].clone()
        x = super().build(c)
        assert x.custom_mask is not None
        x.custom_mask[8:12] = was
        return x


class AcceptComparesOneMoreToken(MaskStages):
    def accept(self, x: VerifyInput, target: Any) -> Any:
        done = super().accept(x, target)
        more = after_end(target)
        if more is not None and int(more) > 0:
            return replace(done, accept_len=done.accept_len + 1)
        return done


class CommitMovesOneMoreRow(MaskStages):
    def commit(self, x: VerifyInput, accepted: Accepted, k: Any, v: Any) -> Any:
        done = super().commit(x, accepted, k, v)
        below = after_end(k, -1)
        if below is not None:
            slot = int(x.req_to_token[x.request_slots[0], 0])
            k[slot, 0, 0] += below[0]
        return done


class AttendClearsOneMoreLength(MaskStages):
    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        done = super().attend(x, *tensors)
        more = after_end(x.seq_lens)
        if more is not None:
            more.fill_(-77)
        return done


class AttendWritesBelowTheCache(MaskStages):
    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        done = super().attend(x, *tensors)
        below = after_end(tensors[4], -1)
        if below is not None:
            below.fill_(-77)
        return done


def failures_of(make: type[MaskStages], **changes: Any) -> tuple[Failure, ...]:
    right = load("direct-mask")
    backend = describe(
        make, "planted", consumes=right.consumes | {"seq_lens", "req_to_token", "request_slots"},
        capabilities=right.capabilities, numerics=Numerics(p="float32"),
    )  # fmt: skip
    return check_case(CASE, backend, CheckOptions(probes=frozenset({"tails"}))).failures


def test_the_right_stages_read_and_write_within_their_bounds() -> None:
    assert failures_of(MaskStages) == ()


@pytest.mark.parametrize(
    ("make", "kind", "stage", "named"),
    [
        (BuildCountsOneMoreToken, "depends-on-tail", "build", "positions of build"),
        (BuildKeepsMaskGarbage, "depends-on-tail", "build", "custom_mask of build"),
        (AcceptComparesOneMoreToken, "depends-on-tail", "accept", "the result of accept"),
        (CommitMovesOneMoreRow, "depends-on-tail", "commit", "the result of commit"),
        (AttendClearsOneMoreLength, "writes-past-the-end", "attend", "end of seq_lens"),
        (AttendWritesBelowTheCache, "writes-past-the-end", "attend", "end of v_cache"),
    ],
)
def test_a_stage_that_leaves_its_bounds_is_named(
    make: type[MaskStages], kind: str, stage: str, named: str
) -> None:
    said = {(f.identity, f.kind, f.stage, f.probe) for f in failures_of(make)}
    assert said == {("contract", kind, stage, "tails")}
    assert all(named in f.message for f in failures_of(make))


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.uint32, torch.int64, torch.bfloat16]
)
def test_a_view_holds_what_was_given_between_guards_of_two_kinds(dtype: torch.dtype) -> None:
    given = torch.arange(12).reshape(3, 4).to(dtype)
    free = torch.zeros(3, 4, dtype=torch.bool)
    free[2, 3] = True
    quiet, loud = (guarded(given, loud, {"tensor": free}, 3) for loud in (False, True))
    for one in (quiet, loud):
        assert torch.equal(one.value.long().flatten()[:11], given.long().flatten()[:11])
        assert one.value.storage_offset() == GUARD
        assert one.overwritten() == []
    assert not quiet.guards["tensor"][0].long().any()
    assert loud.guards["tensor"][0].long().any()
