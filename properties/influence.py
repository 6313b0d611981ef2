"""Visibility and output of a whole engine, from its logits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from treeproof.contract.failure import Failure
from treeproof.oracles.target import TargetResult
from treeproof.properties.contract import not_finite
from treeproof.properties.naming import row_name
from treeproof.properties.probes.influence import Asked, Influence
from treeproof.properties.scene import Scene
from treeproof.properties.violation import Violation, contract_failure
from treeproof.properties.visibility import Reading, judge


def asked(scene: Scene, tokens: Tensor, prefixes: tuple[Tensor, ...], vocab: int | None) -> Asked:
    """`tokens` (T,) as they were built, brought into the vocabulary."""
    requests = scene.case.requests
    return Asked(
        tokens=tokens if vocab is None else tokens % vocab,
        prefixes=tuple(prefix.to(scene.device) for prefix in prefixes),
        starts=scene.case.qo_indptr[:-1],
        counts=tuple(request.num_nodes for request in requests),
        vocab_size=vocab,
        seed=scene.case.seed,
    )


def valid_logits(logits: object, scene: Scene, vocab: int | None) -> Tensor:
    """Logits of all rows: (T, vocabulary) floats, finite on real rows."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        what = str(logits.dtype) if isinstance(logits, Tensor) else type(logits).__name__
        message = f"forward returned {what}, expected a tensor of floats"
        raise Violation(contract_failure("wrong-type", "forward", message))
    rows = scene.num_rows
    if logits.dim() != 2 or len(logits) != rows or vocab not in (None, logits.shape[1]):
        expected = f"({rows}, {vocab or 'vocabulary'})"
        message = f"logits have shape {tuple(logits.shape)}, expected {expected}"
        raise Violation(contract_failure("wrong-shape", "forward", message))
    bad = not_finite(logits, scene)
    if bool(bad.any()):
        b, row = scene.rows[scene.real[int(bad.nonzero()[0, 0])]]
        message = f"logits are not finite on request {b}, row {row}"
        raise Violation(contract_failure("not-finite", "forward", message))
    return logits.detach().clone()


def readings(scene: Scene, found: Influence) -> tuple[Reading, ...]:
    """Influence as what each row read: prefix edges, then rows."""
    made = []
    for b, request in enumerate(scene.case.requests):
        counts = np.concatenate((found.prefix[b], found.rows[b]), 1).astype(np.float64)
        p = request.prefix_len
        columns = (*found.columns[b], *range(p, p + request.num_nodes))
        slots = tuple(scene.ledger.columns[b][column] for column in columns)
        made.append(Reading(b, columns, slots, counts, counts))
    return tuple(made)


def judge_influence(scene: Scene, found: Influence) -> list[Failure]:
    """What moved and must not, and what must and did not."""
    failures = []
    for reading in readings(scene, found):
        failures += judge(scene.case, scene.ledger, reading, "measured", stage="forward")
    for b, row, other in found.strangers[:12]:
        failures.append(
            Failure(
                identity="visibility", kind="reads-other-request", evidence="measured",
                stage="forward", request=b, row=row,
                message=f"the logits of {row_name(scene.case.requests[b], row)} move with the prefix "
                f"of request {other}",
            )
        )  # fmt: skip
    return failures


def judge_logits(scene: Scene, b: int, truth: TargetResult, logits: Tensor) -> list[Failure]:
    """Request b's logits (T, vocabulary) against the model on every path, within its limit."""
    request = scene.case.requests[b]
    rows = torch.tensor(request.row_of_node) + scene.case.qo_indptr[b]
    off = (logits.double().cpu()[rows] - truth.logits).abs()
    ratio = off / truth.limit
    failures = []
    for node in (ratio.amax(1) > 1).nonzero().flatten().tolist()[:12]:
        row, token = request.row_of_node[node], int(ratio[node].argmax())
        failures.append(
            Failure(
                identity="output", kind="wrong-logits", evidence="measured", stage="forward",
                request=b, row=row, expected=f"{float(truth.logits[node, token]):.6g}",
                actual=f"{float(logits[scene.case.qo_indptr[b] + row, token]):.6g}",
                message=f"logits of {row_name(request, row)} are off by {float(off[node, token]):.3g} "
                f"at token {token}: {float(ratio[node, token]):.3g} times the limit",
            )
        )  # fmt: skip
    return failures
