"""Measured visibility: tomography and spike put together into what each row read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from treeproof.contract.capabilities import Numerics
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.properties.expected import expected_reads
from treeproof.properties.naming import row_name
from treeproof.properties.probes.checksum import Sums, sum_up
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
    request = case.requests[b]
    wanted = set(_edges_of(request.prefix_len, case.layout.page_size))
    if case.shape.window is not None:
        cuts = sorted({read.first for read in expected_reads(request, case.shape.window)})
        for cut in cuts[:12] + cuts[-4:]:
            wanted |= {cut - 1, cut}
    first = case.evicted_columns(b)
    return sorted(c for c in wanted if first <= c < request.prefix_len)


def _edges_of(prefix: Any, page: int) -> tuple[Any, ...]:
    """Ends, page boundaries and the middle of a prefix, or of many; some may lie outside it."""
    last_page = (prefix - 1) // page * page
    start = prefix * 0
    ends = (start, start + 1, prefix // 2, prefix - 2, prefix - 1)
    return *ends, last_page - 1, last_page, start + page - 1, start + page


def _every_edge(scene: Scene) -> npt.NDArray[np.int64]:
    """(2, n): request and column of the `prefix_edges` of all requests."""
    case = scene.case
    if case.shape.window is not None:
        edges = [prefix_edges(case, b) for b in range(len(case.requests))]
        request = np.repeat(np.arange(len(edges)), [len(own) for own in edges])
        return np.stack((request, np.fromiter(chain.from_iterable(edges), np.int64)))
    prefix = np.array([request.prefix_len for request in case.requests])
    columns = np.sort(np.stack(_edges_of(prefix, case.layout.page_size), axis=1), axis=1)
    fresh = np.diff(columns, axis=1, prepend=-1) > 0
    request, place = np.nonzero(fresh & (columns >= 0) & (columns < prefix[:, None]))
    return np.stack((request, columns[request, place]))


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
    slots = [scene.ledger.at(*scene.tree_columns)]
    if complete:
        slots.append(scene.prefix.slot.cpu().numpy())
    else:
        slots.append(scene.ledger.at(*_every_edge(scene)))
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


class EverythingSummed:
    """Sums over the whole cache, once their launches are made; the device is asked later."""

    def __init__(
        self, attend: AttendCall, scene: Scene, x: VerifyInput, numerics: Numerics
    ) -> None:
        self._again = partial(sum_up, attend, scene, x, numerics)
        self._answers = scene.answers
        self._ask(self._again())

    def _ask(self, sums: Sums) -> None:
        self._finite = sums.finite
        self._told = self._answers.ask(torch.stack((sums.settled, sums.wrong.any())))

    @property
    def adds_up(self) -> bool:
        """Whether the sums alone tell that every row reads what it must, each key once.

        But for a key of next to no weight, which moves no sum. False where some sum is off, and where
        those of two drawings are too large to tell: tomography says more. Raises Violation where an
        output was no number.
        """
        self._finite.require()
        settled, wrong = self._told.numbers
        if not settled and not wrong:
            # Codes of a deep path may add up to much: others, in all likelihood, do not.
            self._ask(self._again(turn=1))
            self._finite.require()
            settled, _ = self._told.numbers
        return bool(settled)


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
    sums = sum_up(attend, scene, x, numerics, lit)
    sums.finite.require()
    return tuple(sums.wrong.nonzero().flatten().tolist())


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
                    message=f"{row_name(scene.case.requests[b], row)} does not give each far prefix "
                    "key its weight: where all weigh alike, their values add up to something else",
                )
            )  # fmt: skip
    return [msgspec.structs.replace(f, probe="checksum") for f in failures]
