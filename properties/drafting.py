"""A drafting phase: each branch writes slots of its own, and reads the prefix and its own steps.

What a slot holds is followed step by step, by the slots that are handed out: any layout is right in
which every branch reads what it wrote itself. A key is a number: that of a prefix key is its slot, the
key of a step is numbered behind all slots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from torch import Tensor

from treeproof.contract.failure import Evidence, Failure, Identity
from treeproof.generate.drafting import DraftScene
from treeproof.oracles.drafting import branch_step
from treeproof.properties.contract import same_rows
from treeproof.properties.drafted import Table
from treeproof.properties.tables import Slots

Grid = npt.NDArray[np.int64]
"""(S, B*k): a number for each step of each branch."""

_NOBODY = -1
_MOST_NAMED = 24
"""Failures that are put into words; a layout that is wrong everywhere says no more."""


@dataclass(frozen=True, eq=False)
class Ownership:
    """Who owns what while a batch drafts."""

    scene: DraftScene

    @cached_property
    def prefixes(self) -> tuple[Slots, ...]:
        """Slots of each request's prefix."""
        every = zip(self.scene.slots, self.scene.prefix_lens, strict=True)
        return tuple(slots[:prefix] for slots, prefix in every)

    @cached_property
    def drafting(self) -> Slots:
        """(num_slots,) request whose drafts may take the slot; -1: no request's."""
        owner = np.full(self.scene.layout.num_slots, _NOBODY)
        for b, slots in enumerate(self.scene.slots):
            owner[slots[self.scene.prefix_lens[b] :]] = b
        return owner

    def key(self, step: int, row: int) -> int:
        """Of a step of a branch-row."""
        rows = self.scene.batch * self.scene.topk
        return self.scene.layout.num_slots + step * rows + row

    def place(self, key: int) -> tuple[int, int]:
        """Step and branch-row of such a key."""
        return divmod(key - self.scene.layout.num_slots, self.scene.batch * self.scene.topk)

    @cached_property
    def bare(self) -> Slots:
        """(num_slots,) the key that each slot holds before the first step; -1: none."""
        held = np.full(self.scene.layout.num_slots, _NOBODY)
        for slots in self.prefixes:
            held[slots] = slots
        return held


@dataclass(frozen=True)
class Copy:
    """A slot that is read as the copy of a prefix key, in the branch's own page."""

    slot: int
    source: int
    request: int
    column: int


def judge_positions(scene: DraftScene, positions: Grid) -> list[Failure]:
    failures = []
    for s, row in np.ndindex(positions.shape):
        b = row // scene.topk
        right, found = branch_step(scene.prefix_lens[b], s).position, int(positions[s, row])
        if found != right:
            text = f"stands at position {found}, expected {right}"
            failures.append(
                _failure(scene, "position", "wrong-draft-position", s, row, text, right, found)
            )
    return failures[:_MOST_NAMED]


def judge_slots(own: Ownership, slots: Grid) -> list[Failure]:
    """Every step of every branch has a slot of its request's own, and no other step has it."""
    scene, failures = own.scene, []
    holder: dict[int, tuple[int, int]] = {}
    for s, row in np.ndindex(slots.shape):
        slot, b = int(slots[s, row]), row // scene.topk
        inside = 0 <= slot < len(own.drafting)
        if not inside or own.drafting[slot] != b:
            text = f"is given slot {slot}, which is not free for drafts of its request"
        elif slot in holder:
            other, at = holder[slot]
            text = f"is given slot {slot}, as is step {other} of {_branch(scene, at)}"
        else:
            holder[slot] = (s, row)
            continue
        failures.append(
            _failure(scene, "kv", "wrong-draft-slot", s, row, text, "a slot of its own", slot)
        )
    return failures[:_MOST_NAMED]


def judge_reads(own: Ownership, slots: Grid, table: Table) -> tuple[list[Failure], list[Copy]]:
    """Failures of what a table names; and the copies of prefix keys that it names in their place."""
    failures: list[Failure] = []
    copies: dict[tuple[int, int], Copy] = {}
    held = own.bare.copy()
    for s, lists in enumerate(table.lists):
        for row, slot in enumerate(slots[s]):
            if 0 <= slot < len(held):
                held[slot] = own.key(s, row)
        for row, named in enumerate(lists):
            keys, copied = _keys(own, held, row, named)
            copies |= {(copy.slot, copy.source): copy for copy in copied}
            right = _right(own, s, row)
            if not np.array_equal(np.sort(keys), right):
                failures += _told(own, table.form, s, row, keys, right)
    return failures[:_MOST_NAMED], list(copies.values())


def _right(own: Ownership, step: int, row: int) -> Slots:
    """Keys that a branch-row reads, ascending."""
    b = row // own.scene.topk
    reads = branch_step(own.scene.prefix_lens[b], step)
    steps = np.array([own.key(before, row) for before in reads.own])
    return np.concatenate((np.sort(own.prefixes[b][reads.prefix.start : reads.prefix.stop]), steps))


def _keys(own: Ownership, held: Slots, row: int, named: Slots) -> tuple[Slots, list[Copy]]:
    """Keys that a branch-row reads out of these slots, -1 where there is none, and what of it is a copy:
    where a key of the last, partial page should be, a slot of the request that no step has taken."""
    scene = own.scene
    b, page = row // scene.topk, scene.layout.page_size
    prefix = scene.prefix_lens[b]
    inside = (named >= 0) & (named < len(held))
    keys = np.where(inside, held[np.where(inside, named, 0)], _NOBODY)
    copies = []
    for column in range(prefix - prefix % page, min(prefix, len(named))):
        slot = int(named[column])
        if keys[column] == _NOBODY and inside[column] and own.drafting[slot] == b:
            keys[column] = own.prefixes[b][column]
            copies.append(Copy(slot, int(keys[column]), b, column))
    return keys, copies


def _told(
    own: Ownership, form: str, s: int, row: int, keys: Slots, right: Slots
) -> Iterator[Failure]:
    """One failure a kind: what is missing, and what is read in its place."""
    scene, b = own.scene, row // own.scene.topk
    found, wanted = Counter(keys.tolist()), Counter(right.tolist())
    told: dict[str, str] = {}
    for key in wanted - found:
        told.setdefault(*_missing(own, s, b, key))
    for key in found - wanted:
        told.setdefault(*_strange(own, b, row, key, repeated=key in wanted))
    for kind, text in told.items():
        text = f"{text}, by its {form}"
        yield _failure(scene, "visibility", kind, s, row, text, f"{len(right)} keys", len(keys))


def _missing(own: Ownership, s: int, b: int, key: int) -> tuple[str, str]:
    if key < own.scene.layout.num_slots:
        column = own.prefixes[b].tolist().index(key)
        return "misses-prefix", f"does not read prefix key {column}"
    before, _ = own.place(key)
    if before == s:
        return "misses-self", "does not read its own key"
    return "misses-ancestor", f"does not read the key of its step {before}"


def _strange(own: Ownership, b: int, row: int, key: int, *, repeated: bool) -> tuple[str, str]:
    if key == _NOBODY:
        return "reads-unowned", "reads a slot that holds no key"
    if repeated:
        return "reads-twice", "reads a key more than once"
    if key < own.scene.layout.num_slots:
        return "reads-other-request", f"reads slot {key}, a prefix key of another request"
    step, other = own.place(key)
    where = f"step {step} of {_branch(own.scene, other)}"
    if other // own.scene.topk == b:
        return "reads-sibling", f"reads the key of {where}"
    return "reads-other-request", f"reads the key of {where}"


def judge_contents(
    own: Ownership, copies: list[Copy], k: Tensor, v: Tensor
) -> tuple[list[Failure], bool]:
    """Whether each copy holds what it is a copy of, and nothing but slots to draft in was written.

    `k` and `v` (num_slots, heads, lanes) are the caches after the stage. Also: whether there was
    anything to see, a copy or a write.
    """
    scene, failures = own.scene, []
    before = scene.before
    for copy in copies:
        for name, now, was in (("K", k, before[0]), ("V", v, before[1])):
            if not same_rows(now[copy.slot][None], was[copy.source][None]):
                text = (
                    f"page tables of request {copy.request} name slot {copy.slot} as prefix key "
                    f"{copy.column}: it does not hold the {name} of slot {copy.source}"
                )
                failures.append(_of_contents("tail-not-copied", copy.request, text))
                break
    changed = ~(same_rows(k, before[0]) & same_rows(v, before[1]))
    written = changed.nonzero()[:, 0].tolist()
    for slot in written:
        if own.drafting[slot] == _NOBODY:
            text = f"slot {slot} was written, which is free for nobody's drafts"
            failures.append(_of_contents("written-elsewhere", None, text))
    return failures[:_MOST_NAMED], bool(copies or written)


def _of_contents(kind: str, request: int | None, text: str) -> Failure:
    return Failure(
        identity="kv", kind=kind, evidence="measured", stage="draft", request=request, message=text
    )


def _branch(scene: DraftScene, row: int) -> str:
    return f"branch {row % scene.topk} of request {row // scene.topk}"


def _failure(
    scene: DraftScene, identity: Identity, kind: str, s: int, row: int, text: str,
    expected: object, actual: object,
) -> Failure:  # fmt: skip
    evidence: Evidence = "declared"
    return Failure(
        identity=identity, kind=kind, evidence=evidence, stage="draft", request=row // scene.topk,
        expected=str(expected), actual=str(actual),
        message=f"step {s} of {_branch(scene, row)} {text}",
    )  # fmt: skip
