"""KV: every row's keys and values land in its slot and nowhere else; a commit keeps the path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from treeproof.contract.failure import Evidence, Failure
from treeproof.contract.inputs import Committed
from treeproof.properties.contract import same_bits, same_rows
from treeproof.properties.naming import row_name
from treeproof.properties.probes.launch import Launched
from treeproof.properties.scene import Scene
from treeproof.properties.traversal import Prediction

Rows = tuple[tuple[int | None, ...], ...]

COMPANIONS = "what lies beside keys and values"
"""Pools that are no layer's and move with the accepted path: hidden rows, indexer keys."""


def _failure(
    kind: str,
    evidence: Evidence,
    stage: str,
    message: str,
    *,
    request: int | None = None,
    row: int | None = None,
    column: int | None = None,
    expected: str = "",
    actual: str = "",
) -> Failure:
    return Failure(
        identity="kv",
        kind=kind,
        evidence=evidence,
        stage=stage,
        message=message,
        request=request,
        row=row,
        column=column,
        expected=expected,
        actual=actual,
    )


def judge_out_cache_loc(scene: Scene, out_cache_loc: Sequence[int], stage: str) -> list[Failure]:
    """Declared: `out_cache_loc` of each row against the ledger's slot; padding names no slot."""
    failures = []
    pad = scene.case.layout.pad_slot
    for (b, row), found, true in zip(
        scene.rows, out_cache_loc, scene.row_slot.tolist(), strict=True
    ):
        if true < 0:
            if found not in (-1, pad):
                failures.append(
                    _failure(
                        "padding-slot", "declared", stage,
                        f"padded row {row} is to be written to slot {found}, expected "
                        f"{'-1' if pad < 0 else f'-1 or the pad slot {pad}'}",
                        request=b, row=row, expected=str(pad), actual=str(found),
                    )
                )  # fmt: skip
        elif found != true:
            name = row_name(scene.case.requests[b], row)
            failures.append(
                _failure(
                    "wrong-slot", "declared", stage,
                    f"{name} is to be written to slot {found}{_holder(scene, found)}, "
                    f"expected slot {true}",
                    request=b, row=row, expected=str(true), actual=str(found),
                )
            )  # fmt: skip
    return failures


def _holder(scene: Scene, slot: int) -> str:
    owner = scene.ledger.owner.get(slot)
    if owner is None:
        return " (held by nobody)"
    return f" (column {owner[1]} of request {owner[0]})"


def recover_slots(out_cache_loc: Sequence[int], slots: Sequence[Sequence[int]]) -> Rows:
    """Declared: which row is sent to each request's i-th slot, as flat rows.

    None where none is, or more than one: which of them stays there is not determined.
    """
    row_of: dict[int, int | None] = {}
    for row, slot in enumerate(out_cache_loc):
        row_of[slot] = None if slot in row_of else row
    return tuple(tuple(row_of.get(slot) for slot in own) for own in slots)


def judge_writes(scene: Scene, done: Launched) -> list[Failure]:
    """`Written` at once."""
    return Written(scene, done).judge()


class Written:
    """Measured: after the launch every row's slot holds its K and V, and nothing else moved.

    The device is asked once where everything is right, and may be asked later.
    """

    def __init__(self, scene: Scene, done: Launched) -> None:
        self._scene, self._done, own, real = scene, done, scene.tree_slots, scene.real_index
        stored = done.k_stored, done.v_stored
        if scene.num_rows > len(scene.real):
            stored = stored[0][real], stored[1][real]
        right = same_rows(done.k_cache[own], stored[0]) & same_rows(done.v_cache[own], stored[1])
        changed = ~(same_rows(done.k_cache, done.k_before) & same_rows(done.v_cache, done.v_before))
        changed.index_fill_(0, own, False)
        if scene.case.layout.pad_slot >= 0:
            changed[scene.case.layout.pad_slot].fill_(False)
        self._right, self._changed = right, changed
        self._wrong = scene.answers.ask(torch.stack([~right.all(), changed.any()]))

    def judge(self) -> list[Failure]:
        scene = self._scene
        failures = judge_strayed(self._done.strayed, "attend")
        if not self._wrong:
            return failures
        for i in (~self._right).nonzero().flatten().tolist()[:12]:
            b, row = scene.rows[scene.real[i]]
            slot = int(scene.tree_slots[i])
            failures.append(
                _failure(
                    "not-written", "measured", "attend",
                    f"slot {slot} does not hold K and V of {row_name(scene.case.requests[b], row)} "
                    "after the launch",
                    request=b, row=row,
                )
            )  # fmt: skip
        for slot in self._changed.nonzero().flatten().tolist()[:12]:
            failures.append(
                _failure(
                    "written-elsewhere", "measured", "attend",
                    f"slot {slot}{_holder(scene, slot)} was written; no verify row lives there",
                )
            )  # fmt: skip
        return failures


def judge_strayed(slots: Sequence[int], stage: str) -> list[Failure]:
    """Measured: memory of other layers was written beside these slots."""
    return [
        _failure(
            "other-layer-written", "measured", stage,
            f"{stage} writes into another layer's cache, beside slot {slot}",
        )
        for slot in slots[:12]
    ]  # fmt: skip


@dataclass(frozen=True)
class Move:
    """What a commit of one prediction must do to the cache.

    `content` (num_slots,): slot whose old content each slot must hold; `judged` (num_slots,) bool:
    all slots but the tree's columns past the boundary and the pad slot, which are free.
    """

    prediction: Prediction
    content: Tensor
    judged: Tensor


def moves(scene: Scene, rounds: Sequence[Prediction]) -> tuple[Move, ...]:
    """The move of each prediction: columns [P, P + len) take the rows of the accepted path."""
    found = []
    for prediction in rounds:
        content = np.arange(scene.case.layout.num_slots)
        judged = np.ones(len(content), dtype=bool)
        if scene.case.layout.pad_slot >= 0:
            judged[scene.case.layout.pad_slot] = False
        for request, own, path in zip(
            scene.case.requests, scene.ledger.slots, prediction.rows, strict=True
        ):
            slots = own[request.prefix_len :]
            judged[slots[len(path) :]] = False
            content[slots[: len(path)]] = slots[list(path)]
        found.append(Move(prediction, scene.on_device(content), scene.on_device(judged)))
    return tuple(found)


def judge_commit(
    scene: Scene,
    move: Move,
    done: Committed,
    before: tuple[Tensor, Tensor],
    after: tuple[Tensor, Tensor],
) -> list[Failure]:
    """Measured: columns [P, P + len) hold the accepted path; boundary, bonus, all else unmoved."""
    wanted = [cache[move.content] for cache in before]
    wrong: list[int] = []
    if not all(map(same_bits, after, wanted)):  # or differ where nobody looks
        right = same_rows(after[0], wanted[0]) & same_rows(after[1], wanted[1])
        wrong = (move.judged & ~right).nonzero().flatten().tolist()
    failures = [_misplaced(scene, move.prediction, slot) for slot in wrong[:8]]
    seq_lens, roots = done.seq_lens.tolist(), done.next_root.tolist()
    for b, request in enumerate(scene.case.requests):
        boundary = request.prefix_len + len(move.prediction.rows[b])
        bonus = move.prediction.emitted[b][-1]
        if seq_lens[b] != boundary:
            failures.append(
                _failure(
                    "wrong-boundary", "measured", "commit",
                    f"the new KV-ready length of request {b} is {seq_lens[b]}, expected {boundary} "
                    f"= {request.prefix_len} + {boundary - request.prefix_len} accepted rows",
                    request=b, expected=str(boundary), actual=str(seq_lens[b]),
                )
            )  # fmt: skip
        if roots[b] != bonus:
            failures.append(
                _failure(
                    "wrong-next-root", "measured", "commit",
                    f"next round's root of request {b} is token {roots[b]}, expected the bonus "
                    f"{bonus}",
                    request=b, expected=str(bonus), actual=str(roots[b]),
                )
            )  # fmt: skip
    return failures


def _misplaced(scene: Scene, prediction: Prediction, slot: int) -> Failure:
    """The failure of a slot that does not hold what it must after a commit."""
    b, column = scene.ledger.owner.get(slot, (-1, -1))
    place = column - scene.case.requests[b].prefix_len
    if b < 0 or place < 0:
        return _failure(
            "commit-writes-elsewhere", "measured", "commit",
            f"slot {slot}{_holder(scene, slot)} changed in the commit",
            request=b if b >= 0 else None, column=column if b >= 0 else None,
        )  # fmt: skip
    request, row = scene.case.requests[b], prediction.rows[b][place]
    return _failure(
        "path-not-compacted", "measured", "commit",
        f"column {column} does not hold {row_name(request, row)} after the commit",
        request=b, row=row, column=column,
    )  # fmt: skip


def in_pool(failure: Failure, pool: str) -> Failure:
    """The failure of a commit, and in which of several pools it is; empty: in the only one or the first."""
    return replace(failure, message=f"{failure.message}, in {pool}") if pool else failure
