"""A malformed selection: a build refuses it, or keeps what is wrong inside the request it is in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from treeproof.contract.failure import Failure, Identity
from treeproof.properties.declared import declarations
from treeproof.properties.scene import Scene
from treeproof.properties.visibility import FOREIGN, Reading

MALFORMED, WHOLE = 0, 1
"""The request whose selection is malformed, and the one beside it."""

_LINKS = ("retrieve_next_token", "retrieve_next_sibling", "retrieve_parent_token")
_ROWS = ("draft_token", "positions", "out_cache_loc")


def judge_malformed(
    scene: Scene, right: Mapping[str, Any], built: Mapping[str, Any], what: str
) -> list[Failure]:
    """`built` from two requests, the first malformed; `right` from the same two, both whole.

    The malformed request's links and lists stay inside it; the other is built as ever. `what` says
    what is wrong with the selection.
    """
    failures = _stray_links(scene, built, what) + _stray_slots(scene, built, what)
    failures += _changed_rows(scene, right, built, what)
    before, after = _readings(scene, right), _readings(scene, built)
    for form, readings in after.items():
        if _reads_others(readings[MALFORMED]):
            failures.append(
                _reaches(f"the {form} of request 0 name keys that are not its own", what)
            )
        if form in before and not _alike(before[form][WHOLE], readings[WHOLE]):
            failures.append(_reaches(f"the {form} of request 1 change", what))
    return failures


def _stray_links(scene: Scene, built: Mapping[str, Any], what: str) -> list[Failure]:
    """Links are local rows, and `retrieve_index` the batch-global ones, of the request itself."""
    rows = scene.case.requests[MALFORMED].num_rows
    failures = []
    for name in (*_LINKS, "retrieve_index"):
        cells = built[name][MALFORMED].tolist() if name in built else []
        failures += [
            _failure(
                "traversal",
                "links-to-other-request",
                f"{name} of request 0, row {row} is {cell}, no row of its own, where {what}",
            )
            for row, cell in enumerate(cells)
            if not -1 <= cell < rows
        ]
    return failures


def _stray_slots(scene: Scene, built: Mapping[str, Any], what: str) -> list[Failure]:
    if "out_cache_loc" not in built:
        return []
    own = {-1, scene.case.layout.pad_slot, *scene.ledger.row_slots(MALFORMED)}
    slots = built["out_cache_loc"][: scene.case.qo_indptr[WHOLE]].tolist()
    return [
        _reaches(f"row {row} of request 0 is written to slot {slot}, which is not its own", what)
        for row, slot in enumerate(slots)
        if slot not in own
    ]


def _changed_rows(
    scene: Scene, right: Mapping[str, Any], built: Mapping[str, Any], what: str
) -> list[Failure]:
    """Fields of the whole request, row by row."""
    begin = scene.case.qo_indptr[WHOLE]
    failures = []
    for name in (*_ROWS, *_LINKS, "retrieve_index"):
        if name not in right or name not in built:
            continue
        rows = slice(begin, None) if name in _ROWS else WHOLE
        was, now = right[name][rows].tolist(), built[name][rows].tolist()
        identity: Identity = "candidate" if name in _ROWS else "traversal"
        kind = "reaches-other-request" if name in _ROWS else "links-to-other-request"
        failures += [
            _failure(
                identity,
                kind,
                f"{name} of request 1, row {row} is {b} instead of {a}, where {what} in request 0",
            )
            for row, (a, b) in enumerate(zip(was, now, strict=True))
            if a != b
        ]
    return failures


def _readings(scene: Scene, built: Mapping[str, Any]) -> dict[str, tuple[Reading, ...]]:
    mode = built.get("mask_mode") or scene.case.mask.mode
    tables = {name: table for name, table in built.items() if name not in _LINKS}
    return {found.form: found.readings for found in declarations(scene, tables, mode)}


def _reads_others(reading: Reading) -> bool:
    foreign = [j for j, column in enumerate(reading.columns) if column == FOREIGN]
    return bool((reading.high[:, foreign] > 0).any())


def _alike(a: Reading, b: Reading) -> bool:
    return a.columns == b.columns and a.slots == b.slots and np.array_equal(a.high, b.high)


def _reaches(says: str, what: str) -> Failure:
    return _failure("candidate", "reaches-other-request", f"{says}, where {what}")


def _failure(identity: Identity, kind: str, message: str) -> Failure:
    """These requests are none of the case's: the message alone says which is meant."""
    return Failure(
        identity=identity, kind=kind, evidence="declared", stage="build", message=message
    )
