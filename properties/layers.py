"""Layers of a model around a backend's attend: each by the input it received, and the logits at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from msgspec.structs import replace
from torch import Tensor

from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.failure import Failure
from treeproof.oracles.path import attend_batch
from treeproof.oracles.target import TargetResult
from treeproof.oracles.target_errors import Errors
from treeproof.properties import kv, output
from treeproof.properties.bound import U_32, Roundings
from treeproof.properties.contract import same_rows
from treeproof.properties.greedy import judge_choice
from treeproof.properties.naming import row_name
from treeproof.properties.probes.launch import Contents, Launched
from treeproof.properties.scene import Scene


@dataclass(frozen=True)
class LayerRun:
    """One layer's launch. `scene`: the case as this layer has it, its window or none; rows and slots are
    those of every layer. `k_after`, `v_after`: its caches as the launch left them."""

    layer: int
    scene: Scene
    contents: Contents
    done: Launched
    k_after: Tensor
    v_after: Tensor


def errors_of(scene: Scene, numerics: Numerics, able: Capabilities) -> Errors:
    """What a float32 model is off by whose attention takes and gives numbers of the case's dtype."""
    shape = scene.case.shape
    u = Roundings.of(shape, numerics, able)
    handed = 0.0 if shape.dtype == "float32" else u.out
    cap = 1.0 if shape.softcap is None else shape.softcap
    return Errors(
        unit=U_32, acc=u.acc, handed=handed, mul=u.mul, p=u.p, v=u.v, merged=u.merged, out=u.out,
        tanh=u.tanh / cap,
    )  # fmt: skip


def judge_layer(
    run: LayerRun, numerics: Numerics, able: Capabilities
) -> tuple[list[Failure], output.Margin]:
    """Its outputs against every path alone, on the very queries, keys and values it was given."""
    scene, held = run.scene, run.contents
    requests, prefix = scene.case.requests, scene.prefix_columns.slot
    before = [request.prefix_len for request in requests]
    rows, homes = scene.node_rows, scene.row_slot[scene.node_rows]
    nodes = [request.num_nodes for request in requests]
    truth = attend_batch(
        [request.tree for request in requests],
        before,
        replace(scene.case.shape, rotary=None),  # what it was given is turned
        _split(held.q[rows], nodes),
        # Prefix pages that no window reaches are given back: whatever slot -1 reads is out of reach.
        _split(held.k[prefix], before),
        _split(held.v[prefix], before),
        _split(held.k[homes], nodes),
        _split(held.v[homes], nodes),
    )
    limit = output.bounds(scene, truth, numerics, able)
    done = run.done.attended
    failures, margin = output.judge(scene, truth, limit, done.out, done.lse, able)
    return [_of_layer(run, failure) for failure in failures], margin


def judge_writes(runs: Sequence[LayerRun]) -> list[Failure]:
    """Each layer's rows in its own cache, and no other layer's cache changed by a later launch."""
    failures = []
    for run in runs:
        failures += [_of_layer(run, failure) for failure in kv.judge_writes(run.scene, run.done)]
        later = ~(
            same_rows(run.done.k_cache, run.k_after) & same_rows(run.done.v_cache, run.v_after)
        )
        if bool(later.any()):
            slot = int(later.nonzero()[0, 0])
            failures.append(
                Failure(
                    identity="kv", kind="other-layer-written", evidence="measured",
                    stage="attend", actual=str(slot),
                    message=f"slot {slot} of layer {run.layer} is written while a later layer runs",
                )
            )  # fmt: skip
    return failures


def judge_end(scene: Scene, truth: TargetResult, logits: Tensor) -> tuple[list[Failure], int]:
    """Logits (T, vocabulary) against the model on every path; and how many rows choose another token
    than the oracle, within what rounding explains."""
    got = logits[scene.node_rows].double().cpu()
    ratio = (got - truth.logits).abs() / truth.limit
    failures = []
    for node in (ratio.amax(1) > 1).nonzero().flatten().tolist()[:12]:
        b, row = scene.rows[int(scene.node_rows[node])]
        token = int(ratio[node].argmax())
        wanted, found = float(truth.logits[node, token]), float(got[node, token])
        failures.append(
            Failure(
                identity="output", kind="wrong-logits", evidence="measured", stage="attend",
                request=b, row=row, expected=f"{wanted:.6g}", actual=f"{found:.6g}",
                message=f"behind all layers, logits of {row_name(scene.case.requests[b], row)} are "
                f"off by {abs(found - wanted):.3g} at token {token}: "
                f"{float(ratio[node, token]):.3g} times the limit",
            )
        )  # fmt: skip
    choices = zip(got.argmax(1).tolist(), truth.logits, truth.limit, strict=True)
    ties = sum(
        judge_choice(exact.tolist(), [float(limit)] * len(exact), chosen) == "tie"
        for chosen, exact, limit in choices
        if chosen != int(torch.argmax(exact))
    )
    return failures, ties


def _split(rows: Tensor, counts: list[int]) -> tuple[Tensor, ...]:
    return torch.split(rows, counts)


def _of_layer(run: LayerRun, failure: Failure) -> Failure:
    window = run.scene.case.shape.window
    kind = "" if window is None else f", whose window is {window}"
    return replace(
        failure,
        kind="wrong-layer" if failure.identity == "output" else failure.kind,
        message=f"in layer {run.layer}{kind}: {failure.message}",
    )
