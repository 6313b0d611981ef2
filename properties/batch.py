"""What a build hands on about its batch: it was given, so it has only to come through unharmed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from treeproof.contract.failure import Failure
from treeproof.contract.inputs import Candidates
from treeproof.properties.contract import same_bits
from treeproof.properties.scene import Scene
from treeproof.properties.violation import contract_failure

_MOST = 8
"""Wrong entries that are put into words for each request."""


def judge_batch(scene: Scene, given: Candidates, built: Mapping[str, Any]) -> list[Failure]:
    """`built` are the fields of a build. One that is right is no evidence: it was handed in."""
    requests = scene.case.requests
    wanted = {
        "seq_lens": [request.prefix_len for request in requests],
        "qo_indptr": list(scene.case.qo_indptr),
        "topk": given.topk,
        "spec_steps": given.spec_steps,
        "shape": given.shape,
        "kv": given.kv,
    }
    lists = [name for name in ("seq_lens", "qo_indptr") if name in built]
    answers = {name: scene.answers.ask(built[name]) for name in lists}
    slots = None
    if "req_to_token" in built or "request_slots" in built:
        table, rows = (
            built.get(name, getattr(given, name)) for name in ("req_to_token", "request_slots")
        )
        # On a device that would be asked twice; elsewhere, what was handed in was right.
        if scene.device.type == "cuda" or not (
            same_bits(table, given.req_to_token) and same_bits(rows, given.request_slots)
        ):
            slots = table, rows, scene.answers.ask(_wrong_slots(scene, table, rows))
    failures = []
    for name, true in wanted.items():
        if name in built:
            if name in answers and answers[name].numbers == true:
                continue
            found = built[name].tolist() if isinstance(built[name], Tensor) else built[name]
            if found != true:
                message = f"build returned {name} {found}, expected {true} as in the candidates"
                failures.append(contract_failure("wrong-batch", "build", message))
    if slots is not None and slots[2]:
        failures += _judge_slots(scene, slots[0].cpu().numpy(), slots[1].tolist())
    return failures


def _wrong_slots(scene: Scene, table: Tensor, table_rows: Tensor) -> Tensor:
    """() bool on the device: whether `_judge_slots` finds anything, or has to look."""
    every, requests = scene.columns, len(scene.case.requests)
    unusual = table.dim() != 2 or table_rows.shape != (requests,)
    if unusual or not len(table) or table.shape[1] < max(scene.ledger.lengths):
        return torch.ones((), dtype=torch.bool)
    table, row = table.to(scene.device), table_rows.to(scene.device).long()
    there = (row >= 0) & (row < len(table))
    found = table[row.clamp(0, len(table) - 1)[every.request], every.column]
    wrong = (found != every.slot) | ~there[every.request]
    return (wrong & (every.slot >= 0)).any()


def _judge_slots(scene: Scene, table: npt.NDArray[Any], table_rows: Any) -> list[Failure]:
    """Row `request_slots[b]` of the table against the ledger; evicted columns are free."""
    failures = []
    for b, own in enumerate(scene.ledger.slots):
        found = table[table_rows[b]] if 0 <= table_rows[b] < len(table) else table.ravel()[:0]
        there = min(len(found), len(own))
        wrong = own >= 0
        wrong[:there] &= found[:there] != own[:there]
        for c in np.flatnonzero(wrong)[:_MOST].tolist():
            names = f"slot {found[c]}" if c < len(found) else "no slot"
            failures.append(
                contract_failure(
                    "wrong-batch", "build",
                    f"build returned req_to_token and request_slots that name {names} for column {c} "
                    f"of request {b}, expected slot {own[c]} as in the candidates",
                )
            )  # fmt: skip
    return failures
