"""Measured visibility, second half: K and V of every key are read from the same place.

The chorus screens all rows and keys in a few launches; where a row's answer is off, the spike asks
for its keys one by one and names them.
"""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache

import msgspec
import numpy as np
from torch import Tensor

from treeproof.contract.capabilities import Numerics
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.properties.expected import expected_reads
from treeproof.properties.naming import column_name, row_name
from treeproof.properties.probes.chorus import listen
from treeproof.properties.probes.launch import AttendCall
from treeproof.properties.probes.spike import Aim, can_aim, hits
from treeproof.properties.reading import Measured, prefix_edges, singled_out
from treeproof.properties.scene import Scene
from treeproof.properties.visibility import wrong_places
from treeproof.properties.wanted import OwnReads, own_reads

_ROWS_NAMED = 8
"""Rows whose keys are asked for one by one; a kernel that is wrong everywhere says no more."""


class Heard:
    """What the chorus said of every row, once its launches are made; the device is asked later."""

    def __init__(
        self, attend: AttendCall, scene: Scene, x: VerifyInput, numerics: Numerics
    ) -> None:
        tagged, own = _expected(scene)
        right, self._finite = listen(attend, scene, x, tagged, own, numerics)
        self._wrong = ~right & ~scene.padding
        self._any = scene.answers.ask(self._wrong.any())

    def unheard(self) -> list[int]:
        """Flat rows with a wrong answer. Raises Violation where an output was no number."""
        self._finite.require()
        return self._wrong.nonzero().flatten().tolist() if self._any else []


def judge_pairing(
    attend: AttendCall,
    scene: Scene,
    x: VerifyInput,
    measured: Measured | None,
    heard: Heard | None,
    *,
    probes: Set[str],
    complete: bool,
) -> list[Failure]:
    """Failures where tomography (`measured`, None: off) saw nothing wrong. `complete` asks for every key.

    `heard`: None where the chorus is switched off; a spike alone asks in a complete check only.
    """
    known: set[tuple[int, int, int]] = set()
    if measured is not None and not measured.right:
        known = known.union(*(wrong_places(scene.case, r) for r in measured.readings))
    blamed = {(b, row) for b, row, _ in known}
    unheard = heard.unheard() if heard is not None else []
    suspects = [flat for flat in unheard if scene.rows[flat] not in blamed]
    failures: list[Failure] = []
    if "spike" in probes:
        asked = scene.real if complete else tuple(suspects[:_ROWS_NAMED])
        failures = _name(attend, scene, x, asked, known)
    heard_first = {scene.rows[flat] for flat in suspects}
    # The chorus saw these rows first; what the spike adds is the key.
    failures = [
        msgspec.structs.replace(f, probe="chorus") if (f.request, f.row) in heard_first else f
        for f in failures
    ]
    named = {(f.request, f.row) for f in failures}
    for flat in suspects:
        b, row = scene.rows[flat]
        if (b, row) not in named:
            message = (
                f"{row_name(scene.case.requests[b], row)} mixes keys and values: what answers to a "
                "group of keys is not the mean of their values"
            )
            failures.append(_failure("chorus", "wrong-key", b, row, None, message))
    return failures[:24]


@lru_cache(maxsize=4)
def _expected(scene: Scene) -> tuple[Tensor, OwnReads]:
    """(n,) tagged slots: the tree's and prefix edges; and what rows must read of them."""
    tagged = singled_out(scene, complete=False)
    return scene.on_device(np.array(tagged)), own_reads(scene, tagged)


def _name(
    attend: AttendCall,
    scene: Scene,
    x: VerifyInput,
    asked: tuple[int, ...],
    known: Set[tuple[int, int, int]],
) -> list[Failure]:
    """Ask the rows for every key of the tree and the ends of the prefix, one at a time."""
    case = scene.case
    places: list[tuple[Aim, int, int, int, bool]] = []
    for flat in asked:
        b, row = scene.rows[flat]
        request, columns = case.requests[b], scene.ledger.columns[b]
        read = expected_reads(request, case.shape.window)[row]
        tree = range(request.prefix_len, request.prefix_len + request.num_nodes)
        edges = (c for c in prefix_edges(case, b))
        for column in (*edges, *tree):
            if columns[column] >= 0 and (b, row, column) not in known:
                aim = Aim(flat, columns[column])
                places.append((aim, b, row, column, read.has(column)))
    if not places or not can_aim(scene):
        return []
    results = hits(attend, scene, x, [aim for aim, *_ in places])
    failures = []
    for (_, b, row, column, seen), hit in zip(places, results, strict=True):
        if hit != seen:
            request = case.requests[b]
            name, key = row_name(request, row), column_name(request, column)
            if seen:
                message = (
                    f"{name} does not find {key} by its key: K and V of it are not read from the "
                    "same place, or not at all"
                )
                failures.append(_failure("spike", "wrong-key", b, row, column, message))
            else:
                message = f"{name} finds {key}, which it must not read"
                failures.append(_failure("spike", "finds-hidden-key", b, row, column, message))
    return failures


def _failure(probe: str, kind: str, b: int, row: int, column: int | None, message: str) -> Failure:
    expected = "found" if kind == "wrong-key" else "not found"
    return Failure(
        identity="visibility",
        kind=kind,
        evidence="measured",
        stage="attend",
        request=b,
        row=row,
        column=column,
        message=message,
        expected=expected,
        actual="not found" if kind == "wrong-key" else "found",
        probe=probe,
    )
