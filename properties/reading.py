"""Measured visibility: tomography and spike put together into what each row read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import msgspec
import numpy as np
import torch
from torch import Tensor

from treeproof.contract.capabilities import Numerics
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.properties.expected import expected_reads
from treeproof.properties.naming import row_name
from treeproof.properties.probes.checksum import sum_up
from treeproof.properties.probes.launch import AttendCall
from treeproof.properties.probes.tomography import Weights, channels, weigh
from treeproof.properties.scene import Scene
from treeproof.properties.visibility import MARGIN, Reading, judge
from treeproof.properties.wanted import columns_of, wanted_reads

_MOST_PARTS = 64
"""Parts of the far prefix that are weighed to find what is wrong there: 11 halvings of 131,072 keys
lead to one key, and a kernel that is wrong everywhere says no more."""

_MOST_NAMED = 24


@dataclass(frozen=True, eq=False)
class Measured:
    """What tomography determined of T rows and n slots read by themselves; tensors on the device.

    `low`, `high` (T, n) float64: smallest and largest count over the query heads. `count` (T,)
    float64: keys read, repeats counted; NaN where a row read no tagged key. `strange` (T,) bool: the
    row read memory that no request holds. `off`: flat rows whose far prefix keys do not add up, and
    `far` their readings of the keys that made the difference, one a request.
    """

    scene: Scene
    slots: tuple[int, ...]
    low: Tensor
    high: Tensor
    count: Tensor
    strange: Tensor
    off: tuple[int, ...] = ()
    far: tuple[Reading, ...] = ()

    @cached_property
    def right(self) -> bool:
        """Every row read what it must of these slots, and nothing that nobody holds."""
        want = wanted_reads(self.scene, self.slots)
        wrong = ((self.low - want).abs() > MARGIN) | ((self.high - want).abs() > MARGIN)
        wrong = wrong.any(1) | self.strange
        return not bool((wrong & ~self.scene.padding).any())

    @cached_property
    def readings(self) -> tuple[Reading, ...]:
        """One a request: tree rows and prefix edges, or every key."""
        return _readings(self.scene, self.slots, self.low, self.high)

    @cached_property
    def unowned(self) -> tuple[int, ...]:
        """Flat rows that read memory no request holds."""
        strange = self.strange & ~self.scene.padding
        return tuple(strange.nonzero().flatten().tolist())


def prefix_edges(case: VerifyCase, b: int) -> list[int]:
    """Prefix columns where tables go wrong: ends, page boundaries, window cuts, and the middle."""
    request, page = case.requests[b], case.layout.page_size
    p = request.prefix_len
    wanted = {0, 1, p // 2, p - 2, p - 1}
    last_page = (p - 1) // page * page
    wanted |= {last_page - 1, last_page, page - 1, page}
    if case.shape.window is not None:
        cuts = sorted({read.first for read in expected_reads(request, case.shape.window)})
        for cut in cuts[:12] + cuts[-4:]:
            wanted |= {cut - 1, cut}
    first = case.evicted_columns(b)
    return sorted(c for c in wanted if first <= c < p)


def measure(attend: AttendCall, scene: Scene, x: VerifyInput, *, complete: bool) -> Measured:
    """Tomography: every tree row and prefix edge by itself, or (`complete`) the whole prefix."""
    slots = singled_out(scene, complete=complete)
    weights = weigh(attend, scene, x, [[slot] for slot in slots])
    count = _count(weights.high)
    low, high = _counts(weights, count)
    return Measured(scene, slots, low, high, count, weights.unowned > 0)


@lru_cache(maxsize=8)
def singled_out(scene: Scene, *, complete: bool) -> tuple[int, ...]:
    """Slots that are read one by one in every case: the tree's, and the prefix's or its edges'."""
    requests, ledger = scene.case.requests, scene.ledger
    slots = [own[r.prefix_len :] for own, r in zip(ledger.slots, requests, strict=True)]
    if complete:
        slots.append(scene.prefix.slot.cpu().numpy())
    else:
        slots += [own[prefix_edges(scene.case, b)] for b, own in enumerate(ledger.slots)]
    return tuple(dict.fromkeys(np.concatenate(slots).tolist()))


def screen(
    attend: AttendCall, scene: Scene, x: VerifyInput, measured: Measured, numerics: Numerics
) -> Measured:
    """`measured`, and what is wrong in the prefix between its edges: checksum, then tomography."""
    known = torch.tensor(singled_out(scene, complete=False), device=scene.device)
    lit = _lit(scene, scene.prefix.slot)
    lit[known] = False
    off = _off(attend, scene, x, lit, numerics)
    if not off:
        return measured
    far = lit[scene.prefix.slot].nonzero()[:, 0]
    slots = _halved(attend, scene, x, scene.prefix.slot[far].tolist(), numerics)
    weights = weigh(attend, scene, x, [[slot] for slot in slots])
    readings = _readings(scene, slots, *_counts(weights, measured.count))
    return replace(measured, off=off, far=readings)


def everything_adds_up(
    attend: AttendCall, scene: Scene, x: VerifyInput, numerics: Numerics
) -> bool:
    """Whether sums over the whole cache alone tell that every row reads what it must, each key once.

    But for a key of next to no weight, which moves no sum. False where some sum is off, and where sums
    are too large to tell: tomography says more.
    """
    return bool(sum_up(attend, scene, x, numerics).settled)


def _lit(scene: Scene, slots: Tensor) -> Tensor:
    """(num_slots,) bool."""
    lit = torch.zeros(scene.case.layout.num_slots, dtype=torch.bool, device=scene.device)
    lit[slots] = True
    return lit


def _off(
    attend: AttendCall, scene: Scene, x: VerifyInput, lit: Tensor, numerics: Numerics
) -> tuple[int, ...]:
    """Flat rows whose sums over the `lit` (num_slots,) prefix slots are off."""
    if not bool(lit.any()):
        return ()
    wrong = sum_up(attend, scene, x, numerics, lit).wrong
    return tuple(wrong.nonzero().flatten().tolist())


def _halved(
    attend: AttendCall, scene: Scene, x: VerifyInput, slots: list[int], numerics: Numerics
) -> list[int]:
    """Slots of the parts that are off, few enough for tomography. The whole of `slots` is off."""

    def off(part: list[int]) -> bool:
        lit = _lit(scene, torch.tensor(part, device=scene.device))
        return bool(_off(attend, scene, x, lit, numerics))

    found: list[int] = []
    waiting, weighed, width = [slots], 0, channels(scene)
    while waiting and weighed < _MOST_PARTS and len(found) < 4 * width:
        part = waiting.pop()
        if len(part) <= width:
            found += part
            continue
        first, second = part[: len(part) // 2], part[len(part) // 2 :]
        first_off = off(first)
        # Where the first half is right the second is not, and need not be asked.
        if not first_off or off(second):
            waiting.append(second)
        if first_off:
            waiting.append(first)
        weighed += 2
    return found


def _count(high: Tensor) -> Tensor:
    """Keys each row read: one over its smallest positive weight, for some key is read just once."""
    positive = torch.where(high > 0, high, torch.inf).amin(1)
    return 1 / torch.where(positive.isinf(), torch.nan, positive)


def _counts(weights: Weights, count: Tensor) -> tuple[Tensor, Tensor]:
    """(T, n): smallest and largest count of each key over the heads; 0 where nothing was read."""
    low, high = (weight * count[:, None] for weight in (weights.low, weights.high))
    return low.nan_to_num(), high.nan_to_num()


def _readings(scene: Scene, slots: Sequence[int], low: Tensor, high: Tensor) -> tuple[Reading, ...]:
    readings = []
    least, most = low.cpu().numpy(), high.cpu().numpy()
    columns = columns_of(scene, slots).tolist()
    for b, request in enumerate(scene.case.requests):
        start = scene.case.qo_indptr[b]
        rows = slice(start, start + request.num_nodes)
        readings.append(Reading(b, tuple(columns[b]), tuple(slots), least[rows], most[rows]))
    return tuple(readings)


def judge_measured(scene: Scene, measured: Measured) -> list[Failure]:
    """Failures that tomography shows."""
    if measured.right:
        return []
    failures = []
    for reading in measured.readings:
        failures += judge(scene.case, scene.ledger, reading, "measured")
    named = {(f.request, f.row) for f in failures if f.kind == "reads-unowned"}
    for flat in measured.unowned:
        b, row = scene.rows[flat]
        if (b, row) not in named:
            failures.append(
                Failure(
                    identity="visibility", kind="reads-unowned", evidence="measured",
                    stage="attend", request=b, row=row,
                    message=f"{row_name(scene.case.requests[b], row)} reads memory that no request "
                    "holds (a free page, a page's tail, padding or stale contents)",
                )
            )  # fmt: skip
    return failures


def judge_screened(scene: Scene, measured: Measured) -> list[Failure]:
    """Failures that the checksum shows, by key where tomography then found the key."""
    failures = []
    for reading in measured.far:
        failures += judge(scene.case, scene.ledger, reading, "measured")
    named = {(f.request, f.row) for f in failures}
    for flat in measured.off:
        b, row = scene.rows[flat]
        if (b, row) not in named and len(failures) < _MOST_NAMED:
            failures.append(
                Failure(
                    identity="visibility", kind="wrong-prefix-sum", evidence="measured",
                    stage="attend", request=b, row=row,
                    message=f"{row_name(scene.case.requests[b], row)} does not read each far prefix "
                    "key once: with equal weights their values add up to something else",
                )
            )  # fmt: skip
    return [msgspec.structs.replace(f, probe="checksum") for f in failures]
