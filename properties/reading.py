"""Measured visibility: tomography and spike put together into what each row read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from treeproof.contract.capabilities import Numerics
from treeproof.contract.case import VerifyCase
from treeproof.contract.counter import address_hash
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.properties.expected import expected_reads
from treeproof.properties.naming import row_name
from treeproof.properties.probes.launch import AttendCall
from treeproof.properties.probes.tomography import channels, weigh
from treeproof.properties.scene import Scene
from treeproof.properties.visibility import FOREIGN, Counts, Reading, column_of_slot, judge

_COLUMNS_A_CHANNEL = {"float32": 4096, "float16": 128, "bfloat16": 16}
"""How many keys may share a channel: their count must come out within 0.3 after the output's
rounding (2u relative), so 0.15 / u: 1,258,291, 307 and 38, and less is asked for."""

_SCREEN = 211  # address word of the screen's hash


@dataclass(frozen=True)
class Measured:
    """What tomography determined: a reading a request, and the keys each row of the launch read."""

    readings: tuple[Reading, ...]
    count: torch.Tensor
    """(T,) float64: keys read, repeats counted; NaN where a row read no tagged key."""
    unowned: tuple[int, ...]
    """Flat rows that read memory no request holds."""


def _columns_a_channel(dtype: str, numerics: Numerics) -> int:
    """Partial results kept in a narrower dtype than the output's are what rounds the count."""
    kept = dtype if numerics.partial == "input" or not numerics.merges else numerics.partial
    return min(_COLUMNS_A_CHANNEL[dtype], _COLUMNS_A_CHANNEL[kept])


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


def measure(
    attend: AttendCall, scene: Scene, x: VerifyInput, numerics: Numerics, *, complete: bool
) -> Measured:
    """Tomography: every tree row and prefix edge by itself, the far prefix screened in bins.

    Where a bin is off, its columns are read one by one. `complete` reads the whole prefix so.
    """
    case, ledger = scene.case, scene.ledger
    single = list(scene.tree_slots.tolist())
    if complete:
        single += [slot for slot, _, _ in scene.prefix]
    else:
        for b in range(len(case.requests)):
            single += [ledger.columns[b][c] for c in prefix_edges(case, b)]
    single = list(dict.fromkeys(single))
    weights = weigh(attend, scene, x, [[slot] for slot in single])
    count = _count(weights.high)
    low, high = weights.low * count[:, None], weights.high * count[:, None]
    if not complete and len(single) < len(scene.tree_slots) + len(scene.prefix):
        most = _columns_a_channel(scene.case.shape.dtype, numerics)
        suspects = _screen(attend, scene, x, count, set(single), most)
        if suspects:
            more = weigh(attend, scene, x, [[slot] for slot in suspects])
            single += suspects
            low = torch.cat((low, more.low * count[:, None]), 1)
            high = torch.cat((high, more.high * count[:, None]), 1)
    unowned = [i for i in scene.real if float(weights.unowned[i]) > 0]
    return Measured(_readings(scene, single, low, high), count, tuple(unowned))


def _count(high: torch.Tensor) -> torch.Tensor:
    """Keys each row read: one over its smallest positive weight, for some key is read just once."""
    positive = torch.where(high > 0, high, torch.inf).amin(1)
    return 1 / torch.where(positive.isinf(), torch.nan, positive)


def _readings(
    scene: Scene, slots: list[int], low: torch.Tensor, high: torch.Tensor
) -> tuple[Reading, ...]:
    readings = []
    lows, highs = np.nan_to_num(low.numpy()), np.nan_to_num(high.numpy())
    for b, request in enumerate(scene.case.requests):
        start = scene.case.qo_indptr[b]
        rows = slice(start, start + request.num_nodes)
        own = column_of_slot(scene.ledger, b)
        columns = tuple(own.get(slot, FOREIGN) for slot in slots)
        readings.append(Reading(b, columns, tuple(slots), lows[rows], highs[rows]))
    return tuple(readings)


def _screen(
    attend: AttendCall,
    scene: Scene,
    x: VerifyInput,
    count: torch.Tensor,
    known: set[int],
    most: int,
) -> list[int]:
    """Prefix slots of the bins whose counts are off in some row, in two different binnings."""
    case = scene.case
    far = [(slot, b, c) for slot, b, c in scene.prefix if slot not in known]
    longest = max(r.prefix_len for r in case.requests)
    width = channels(scene)
    bins = width * -(-longest // (width * most))
    suspects: dict[int, None] = {}
    for number in range(2):
        tags: list[list[int]] = [[] for _ in range(bins)]
        for slot, b, c in far:
            spread = c + 7 * b if number == 0 else address_hash(case.seed, _SCREEN, b, c)
            tags[spread % bins].append(slot)
        weights = weigh(attend, scene, x, tags)
        low = (weights.low * count[:, None]).numpy()
        high = (weights.high * count[:, None]).numpy()
        wanted = _expected_bins(scene, tags)
        # NaN: a row that read nothing tagged is judged by its tree block already.
        wrong = (np.abs(low - wanted) > 0.3) | (np.abs(high - wanted) > 0.3)
        for tag in np.flatnonzero(wrong[list(scene.real)].any(axis=0)):
            suspects.update(dict.fromkeys(tags[tag]))
    return list(suspects)[: 4 * width]


def _expected_bins(scene: Scene, tags: list[list[int]]) -> Counts:
    """(T, bins): how many slots of each bin a row must read."""
    case = scene.case
    bin_of = {slot: i for i, tag in enumerate(tags) for slot in tag}
    wanted = np.zeros((len(scene.rows), len(tags)))
    for b, request in enumerate(case.requests):
        columns = scene.ledger.columns[b][: request.prefix_len]
        bins = np.array([bin_of.get(slot, len(tags)) for slot in columns], dtype=np.int64)
        cache: dict[int, Counts] = {}
        for row, read in enumerate(expected_reads(request, case.shape.window)):
            if read.first not in cache:
                counted = np.bincount(bins[read.first :], minlength=len(tags) + 1)
                cache[read.first] = counted[: len(tags)].astype(np.float64)
            wanted[case.qo_indptr[b] + row] = cache[read.first]
    return wanted


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
