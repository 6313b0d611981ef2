"""The drafter's run over an accepted path: which hidden state goes with which token, and where to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.drafting import Extended
from treeproof.contract.failure import Evidence, Failure, Identity
from treeproof.oracles.drafting import Entry, extension
from treeproof.oracles.traversal import Walk
from treeproof.properties.contract import require_tensor
from treeproof.properties.naming import row_name
from treeproof.properties.scene import Scene
from treeproof.properties.traversal import Prediction
from treeproof.properties.violation import Violation, contract_failure

_INTS = (torch.int64, torch.int32)
_BASE, _LANES = 16, 8

Path = list[tuple[int, int, Entry]]
"""Request, number and content of each entry."""
Verdict = tuple[Identity, Evidence, list[Failure]]


def hidden_states(scene: Scene) -> Tensor:
    """(T, 8) in the dtype of the case: the digits of each row's number, from 1 on."""
    row = 1 + torch.arange(len(scene.rows), device=scene.device)[:, None]
    digit = torch.arange(_LANES, device=scene.device)
    return (row // _BASE**digit % _BASE).to(scene.dtype)


def row_of(state: Tensor, scene: Scene) -> int | None:
    """The row of the launch whose hidden state this is; None where it is nobody's."""
    digits = state.double().cpu().tolist()
    if not all(digit in range(_BASE) for digit in digits):  # NaN is in no range
        return None
    row = sum(int(digit) * _BASE**place for place, digit in enumerate(digits)) - 1
    return row if 0 <= row < len(scene.rows) else None


def valid_extended(result: Any, scene: Scene, spec_steps: int, hidden: Tensor) -> Extended:
    """The result of `extend` with its shapes and dtypes checked. Raises Violation."""
    if not isinstance(result, Extended):
        text = f"extend returned {type(result).__name__}, expected Extended"
        raise Violation(contract_failure("wrong-type", "extend", text))
    wide = (len(scene.case.requests), spec_steps + 1)
    for name in ("tokens", "positions", "out_cache_loc"):
        if getattr(result, name) is not None:
            require_tensor(getattr(result, name), name, "extend", wide, _INTS)
    if result.hidden is not None:
        shape = (*wide, hidden.shape[1])
        require_tensor(result.hidden, "hidden", "extend", shape, (hidden.dtype,))
    return result


Found = Mapping[str, tuple[tuple[int | None, ...], ...]]
"""Of one round, a line a request, up to `accept_len`: `rows` of the launch, `tokens`, `positions`,
`slots`; what the stage did not make is left out."""


def recover_extended(done: Extended, scene: Scene, prediction: Prediction) -> Found:
    lengths = [len(rows) for rows in prediction.rows]
    named = {"tokens": done.tokens, "positions": done.positions, "slots": done.out_cache_loc}
    found: dict[str, tuple[tuple[int | None, ...], ...]] = {
        name: tuple(tuple(line[:n]) for line, n in zip(cells.tolist(), lengths, strict=True))
        for name, cells in named.items()
        if cells is not None
    }
    if done.hidden is not None:
        found["rows"] = tuple(
            tuple(row_of(state, scene) for state in line[:n])
            for line, n in zip(done.hidden, lengths, strict=True)
        )
    return found


def entries(scene: Scene, prediction: Prediction) -> tuple[tuple[Entry, ...], ...]:
    """What the oracle says of each request."""
    found = []
    for request, rows, tokens in zip(
        scene.case.requests, prediction.rows, prediction.emitted, strict=True
    ):
        nodes = tuple(request.node_of_row[row] for row in rows)
        found.append(extension(request.prefix_len, Walk(nodes, tuple(tokens))))
    return tuple(found)


def judge_extended(scene: Scene, prediction: Prediction, found: Found) -> Iterator[Verdict]:
    """Failures by identity and evidence, of what was made."""
    true = [
        (b, j, entry)
        for b, line in enumerate(entries(scene, prediction))
        for j, entry in enumerate(line)
    ]
    if "rows" in found or "tokens" in found:
        yield "candidate", "measured", [*_pairs(scene, true, found)]
    if "positions" in found:
        yield "position", "declared", [*_places(scene, true, found)]
    if "slots" in found:
        yield "kv", "declared", [*_slots(scene, true, found)]


def _pairs(scene: Scene, true: Path, found: Found) -> Iterator[Failure]:
    for b, j, entry in true:
        request = scene.case.requests[b]
        row = request.row_of_node[entry.node]
        if "rows" in found and found["rows"][b][j] != scene.case.qo_indptr[b] + row:
            got = _name(scene, found["rows"][b][j])
            text = f"the hidden state is that of {got}, expected {row_name(request, row)}"
            yield _failure("candidate", "wrong-hidden-row", "measured", b, j, row, text)
        if "tokens" in found and found["tokens"][b][j] != entry.token:
            text = (
                f"the token is {found['tokens'][b][j]}, expected {entry.token}, which was emitted"
            )
            yield _failure("candidate", "wrong-next-token", "measured", b, j, row, text)


def _name(scene: Scene, flat: int | None) -> str:
    if flat is None:
        return "no row"
    b, row = scene.rows[flat]
    return f"row {row} of request {b}"


def _places(scene: Scene, true: Path, found: Found) -> Iterator[Failure]:
    for b, j, entry in true:
        if found["positions"][b][j] != entry.position:
            text = f"it stands at position {found['positions'][b][j]}, expected {entry.position}"
            yield _failure("position", "wrong-draft-position", "declared", b, j, None, text)


def _slots(scene: Scene, true: Path, found: Found) -> Iterator[Failure]:
    """Every key that was drafted along the path is written anew, in its column's slot."""
    written = [{*line} for line in found["slots"]]
    for b, j, entry in true:
        slot, got = scene.ledger.columns[b][entry.position], found["slots"][b][j]
        if slot not in written[b]:
            text = (
                f"no entry writes slot {slot} of column {entry.position}: its drafted key is kept"
            )
            yield _failure("kv", "drafted-key-kept", "declared", b, j, None, text)
        elif got != slot:
            text = f"it is written to slot {got}, expected {slot}"
            yield _failure("kv", "wrong-draft-slot", "declared", b, j, None, text)


def _failure(
    identity: Identity, kind: str, evidence: Evidence, b: int, j: int, row: int | None, text: str
) -> Failure:
    return Failure(
        identity=identity, kind=kind, evidence=evidence, stage="extend", request=b, row=row,
        message=f"entry {j} of the accepted path of request {b}: {text}",
    )  # fmt: skip
