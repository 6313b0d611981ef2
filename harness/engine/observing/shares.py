"""How much of each row's weight lies on its prefix, with the case's own queries and keys.

Values are 1 in the prefix and 0 in the tree, so that an output is that share: what a cascade merges its two
parts by shows, also where equal weights hide it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from treeproof.contract.backend import Backend, BackendUnavailable
from treeproof.contract.case import VerifyCase
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.checks.prepared import prepare, truth_of
from treeproof.engine.checks.stages import attend_call, close
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.engine.observing.build import observe_build
from treeproof.generate.data import LogicalData
from treeproof.properties.probes import random_data
from treeproof.properties.probes.launch import launch
from treeproof.properties.violation import Violation

Shares = tuple[tuple[float, float], ...]


def prefix_shares(case: VerifyCase, backend: Backend, options: CheckOptions) -> Shares:
    """Seen and due of each real row, in the query head where they are furthest apart; on an object of its
    own. Empty where no request has a prefix, and where attend gives no numbers, of which the check tells."""
    if "attend" not in backend.stages or not any(r.prefix_len for r in case.requests):
        return ()
    trial = Trial(backend, options, prepare(case, options.device, options.leaves))
    data = _on_prefix(trial.prepared.data)
    try:
        seen = _seen(trial, data)
    except (Violation, BackendUnavailable):
        return ()
    due = truth_of(trial.scene, data).out[:, :, 0].cpu()
    worst = (seen - due).abs().argmax(1, keepdim=True)
    pairs = torch.cat((seen.gather(1, worst), due.gather(1, worst)), 1).tolist()
    found, first = [], 0
    for request in case.requests:
        found += [pairs[first + node] for node in request.node_of_row]
        first += request.num_nodes
    return tuple((round(seen, 3), round(due, 3)) for seen, due in found)


def _on_prefix(data: LogicalData) -> LogicalData:
    return replace(
        data,
        v_prefix=tuple(map(torch.ones_like, data.v_prefix)),
        v_tree=tuple(map(torch.zeros_like, data.v_tree)),
    )


def _seen(trial: Trial, data: LogicalData) -> Tensor:
    """(nodes, Hq) float64: any lane of the output, all being alike."""
    scene, backend = trial.scene, trial.backend
    trial.instance = trial.call("plan", backend.make)
    x = observe_build(trial, {})
    laid = random_data.contents(scene, x, data, random_data.QUIET)
    attend, given = (
        attend_call(trial, trial.instance, x),
        garble(x, backend.consumes, scene.case.seed),
    )
    out = launch(attend, scene, given, laid, "random").attended.out
    close(trial, trial.instance)
    return out[scene.node_rows, :, 0].double().cpu()
