"""An observation as an event: what a report draws of the smallest case of a failure."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from treeproof.contract.event import Read, Shown
from treeproof.diagnosis.evidence import Attended, Counts, Observation
from treeproof.diagnosis.recomputed import outputs
from treeproof.diagnosis.world import right_of

MAX_ROWS, MAX_CELLS = 256, 4096
"""Real rows of a case of which more than verdicts is kept, and cells of one field."""
NO_NUMBER = 1e9
_FORMS = 6


def shown(seen: Observation, backend: str) -> Shown | None:
    """None of a script, whose columns move, and of a case of more rows than anybody looks at."""
    case = seen.case
    rows = sum(request.num_nodes for request in case.requests)
    if case.script or rows > MAX_ROWS:
        return None
    found = seen.found
    attended: Attended | None = found.get("attend")
    declared: dict[str, dict[int, tuple[Read, ...]]] = {}
    for table in found.get("tables", ()):
        reads = _reads(seen, table.request, table.slots, table.counts)
        declared.setdefault(table.form, {}).setdefault(table.request, reads)
    return Shown(
        backend=backend,
        case=case.id,
        errors=() if attended is None else _errors(seen, attended),
        reads=()
        if attended is None
        else _by_request(
            seen, {r.request: _reads(seen, r.request, r.slots, r.high) for r in attended.reads}
        ),
        declared={
            form: _by_request(seen, of_form) for form, of_form in list(declared.items())[:_FORMS]
        },
        writes=_writes(attended),
        positions=found.get("positions", ()),
        slots=found.get("slots", ()),
        links=found.get("links", {}),
    )


def _errors(seen: Observation, attended: Attended) -> tuple[tuple[float, ...], ...]:
    if attended.out is None:
        return ()
    world = right_of(seen)
    every = range(len(attended.out))
    out, _, limit, _ = outputs(world, every, seen.numerics, seen.capabilities)
    ratio = (attended.out - out).abs() / limit
    ratio = torch.where(attended.out == out, 0.0, ratio).nan_to_num(NO_NUMBER, NO_NUMBER)
    worst = ratio.amax(2).clamp(max=NO_NUMBER)
    return tuple(tuple(float(f"{x:.3g}") for x in row) for row in worst.tolist())


def _reads(
    seen: Observation, request: int, slots: Iterable[int], counts: Counts
) -> tuple[Read, ...]:
    """Of each real row of a request: `counts` (rows, slots)."""
    ground = right_of(seen).ground
    slots = list(slots)
    held = ground.scene.ledger.columns[request][: seen.case.requests[request].prefix_len]
    own = np.isin(slots, [slot for slot in held if slot >= 0])
    rounded = np.where(np.abs(counts - np.round(counts)) < 0.05, np.round(counts), counts)
    found = []
    for row in rounded:
        there = np.flatnonzero((row > 0) & ~own)[: MAX_CELLS // max(1, len(rounded))]
        found.append(
            Read(
                prefix=round(float(row[own].sum()), 2),
                slots=tuple((int(slots[j]), round(float(row[j]), 2)) for j in there),
            )
        )
    return tuple(found)


def _by_request(seen: Observation, found: dict[int, tuple[Read, ...]]) -> tuple[Read, ...]:
    """All requests' rows one after another; none where a request is missing."""
    requests = range(len(seen.case.requests))
    if any(b not in found for b in requests):
        return ()
    return tuple(read for b in requests for read in found[b])


def _writes(attended: Attended | None) -> tuple[tuple[int, int, int], ...]:
    if attended is None or attended.writes is None:
        return ()
    items = sorted(attended.writes.items())[:MAX_CELLS]
    return tuple((slot, k, v) for slot, (k, v) in items)
