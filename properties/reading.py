"""Measured visibility: tomography and spike put together into what each row read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import torch

from treeproof.contract.capabilities import Numerics
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.properties.expected import expected_reads
from treeproof.properties.naming import row_name
from treeproof.properties.probes.checksum import off_by, tolerance
from treeproof.properties.probes.launch import AttendCall
from treeproof.properties.probes.tomography import Weights, channels, weigh
from treeproof.properties.scene import Scene
from treeproof.properties.visibility import FOREIGN, Reading, column_of_slot, judge

_MOST_PARTS = 64
"""Parts of the far prefix that are weighed to find what is wrong there: 11 halvings of 131,072 keys
lead to one key, and a kernel that is wrong everywhere says no more."""

_MOST_NAMED = 24


@dataclass(frozen=True)
class Measured:
    """What tomography determined: readings of requests, and the keys each row of the launch read."""

    readings: tuple[Reading, ...]
    """One a request: tree rows and prefix edges, or every key."""
    count: torch.Tensor
    """(T,) float64: keys read, repeats counted; NaN where a row read no tagged key."""
    unowned: tuple[int, ...]
    """Flat rows that read memory no request holds."""
    off: tuple[int, ...] = ()
    """Flat rows whose far prefix keys do not add up."""
    far: tuple[Reading, ...] = ()
    """One a request: the far prefix keys that made the difference."""


def prefix_edges(case: VerifyCase, b: int) -> list[int]:
    """Prefix columns where tables go wrong: ends, page boundaries, window cuts, and the middle."""
    request, page = case.requests[b], case.layout.page_size
    p = request.prefix_len
    wanted = {0, 1, p // 2, p - 2, p - 1}
    last_page = (p - 1) // page * page
    wanted |= {last_page - 1, last_page, page - 1, page}
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
    unowned = tuple(i for i in scene.real if float(weights.unowned[i]) > 0)
    return Measured(_readings(scene, slots, weights, count), count, unowned)


def singled_out(scene: Scene, *, complete: bool) -> list[int]:
    """Slots that are read one by one in every case."""
    slots = list(scene.tree_slots.tolist())
    if complete:
        slots += [slot for slot, _, _ in scene.prefix]
    else:
        for b in range(len(scene.case.requests)):
            slots += [scene.ledger.columns[b][c] for c in prefix_edges(scene.case, b)]
    return list(dict.fromkeys(slots))


def screen(
    attend: AttendCall, scene: Scene, x: VerifyInput, measured: Measured, numerics: Numerics
) -> Measured:
    """`measured`, and what is wrong in the prefix between its edges: checksum, then tomography."""
    known = set(singled_out(scene, complete=False))
    far = [slot for slot, _, _ in scene.prefix if slot not in known]
    limit = tolerance(scene.case.shape.dtype, numerics)
    off = _off(attend, scene, x, far, limit) if far else ()
    if not off:
        return measured
    slots = _halved(attend, scene, x, far, limit)
    weights = weigh(attend, scene, x, [[slot] for slot in slots])
    return replace(measured, off=off, far=_readings(scene, slots, weights, measured.count))


def _off(
    attend: AttendCall, scene: Scene, x: VerifyInput, slots: Sequence[int], limit: float
) -> tuple[int, ...]:
    """Flat rows whose sums over these slots are off."""
    lit = torch.zeros(scene.case.layout.num_slots, dtype=torch.bool, device=scene.device)
    lit[torch.tensor(slots, device=scene.device)] = True
    return tuple((off_by(attend, scene, x, lit) > limit).nonzero().flatten().tolist())


def _halved(
    attend: AttendCall, scene: Scene, x: VerifyInput, slots: list[int], limit: float
) -> list[int]:
    """Slots of the parts that are off, few enough for tomography. The whole of `slots` is off."""
    found: list[int] = []
    waiting, weighed, width = [slots], 0, channels(scene)
    while waiting and weighed < _MOST_PARTS and len(found) < 4 * width:
        part = waiting.pop()
        if len(part) <= width:
            found += part
            continue
        first, second = part[: len(part) // 2], part[len(part) // 2 :]
        first_off = _off(attend, scene, x, first, limit)
        # Where the first half is right the second is not, and need not be asked.
        if not first_off or _off(attend, scene, x, second, limit):
            waiting.append(second)
        if first_off:
            waiting.append(first)
        weighed += 2
    return found


def _count(high: torch.Tensor) -> torch.Tensor:
    """Keys each row read: one over its smallest positive weight, for some key is read just once."""
    positive = torch.where(high > 0, high, torch.inf).amin(1)
    return 1 / torch.where(positive.isinf(), torch.nan, positive)


def _readings(
    scene: Scene, slots: list[int], weights: Weights, count: torch.Tensor
) -> tuple[Reading, ...]:
    readings = []
    low, high = (
        np.nan_to_num((weight * count[:, None]).numpy()) for weight in (weights.low, weights.high)
    )
    for b, request in enumerate(scene.case.requests):
        start = scene.case.qo_indptr[b]
        rows = slice(start, start + request.num_nodes)
        own = column_of_slot(scene.ledger, b)
        columns = tuple(own.get(slot, FOREIGN) for slot in slots)
        readings.append(Reading(b, columns, tuple(slots), low[rows], high[rows]))
    return tuple(readings)


def judge_measured(scene: Scene, measured: Measured) -> list[Failure]:
    """Failures that tomography shows."""
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
