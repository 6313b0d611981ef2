"""The exact law of sampled acceptance on the smallest trees, by running every cell of the coins."""

from __future__ import annotations

from functools import lru_cache

import msgspec
import torch

from treeproof.backends.reference import build as build_reference
from treeproof.contract.case import KVLayout, MaskLayout, Request, VerifyCase, pages_needed
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.contract.sampling import TARGET_ONLY, Sampling
from treeproof.contract.shape import AttentionShape
from treeproof.contract.tree import CandidateTree
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.related import staged
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.properties import contract
from treeproof.properties.lattice import Lattice, judge_law, lattices
from treeproof.properties.violation import Violation

_ONE_IN = 4
_MOST = 144
"""Requests in a launch."""
_LANES = 64
"""Of a key: enough for the slots of a launch to be told apart."""


def judge_laws(trial: Trial) -> None:
    """The cell of the law; no other stage of the backend has a part in it."""
    able = trial.has("sample") and TARGET_ONLY in trial.backend.capabilities.sampling
    wanted = trial.runs("law") and trial.wants("traversal", "measured")
    if not (able and wanted and trial.options.due(trial.case.seed, 1, _ONE_IN)):
        return
    with trial.probing("law"):
        try:
            failures = _failures(trial)
        except Violation as violation:
            trial.broke(violation)
            return
        if failures is not None and not trial.borrows("sample"):
            trial.judged("traversal", "measured", "sample", failures)


def _failures(trial: Trial) -> list[Failure] | None:
    """Of the first tree whose law is wrong, smaller trees coming first; None where none can be run."""
    for lattice in lattices(trial.options.complete):
        case = _many(lattice.tree.parents, lattice.tree.tokens, trial.case.shape, trial.case.layout)
        if trial.backend.capabilities.refusal(case, trial.options.device) is not None:
            return None
        failures = judge_law(lattice, _runs(trial, lattice, case))
        if failures:
            return failures
    return []


def _runs(trial: Trial, lattice: Lattice, case: VerifyCase) -> list[tuple[int, ...]]:
    """What is emitted in each cell, some of them in one launch."""
    made = build_reference(staged(case, trial.options.device)[1])
    x: VerifyInput = garble(made, trial.backend.consumes, trial.case.seed)
    found: list[tuple[int, ...]] = []
    device = trial.scene.device
    probs = torch.from_numpy(lattice.probs).repeat(_MOST, 1).to(device)
    for start in range(0, len(lattice.last), _MOST):
        # The last launch is filled up with the first cells.
        cells = torch.arange(start, start + _MOST) % len(lattice.last)
        coins = torch.from_numpy(lattice.coins)[cells].flatten().to(device)
        last = torch.from_numpy(lattice.last)[cells].to(device)
        given = Sampling(TARGET_ONLY, probs.clone(), coins, last)
        result = trial.call("sample", trial.instance.sample, copied(x), given)
        done = contract.valid_accepted(result, _MOST, x.spec_steps, "sample")
        whole = min(_MOST, len(lattice.last) - start)
        lines = zip(done.tokens.tolist(), done.accept_len.tolist(), strict=True)
        found += [tuple(run[: max(0, length)]) for run, length in lines][:whole]
    return found


@lru_cache(maxsize=32)
def _many(
    parents: tuple[int, ...], tokens: tuple[int, ...], shape: AttentionShape, layout: KVLayout
) -> VerifyCase:
    one = Request(
        tree=CandidateTree(tokens, parents), row_of_node=tuple(range(len(parents))), prefix_len=1
    )
    requests = (one,) * _MOST
    layout = msgspec.structs.replace(layout, shared_prefix=0, evicted=False, page_table_pad=0)
    slots = pages_needed(requests, layout) * layout.page_size
    if slots > 1 << min(shape.head_dim, shape.v_head_dim):
        shape = msgspec.structs.replace(shape, head_dim=_LANES, v_head_dim=_LANES)
    layout = msgspec.structs.replace(layout, num_slots=slots)
    return VerifyCase(requests=requests, shape=shape, layout=layout, mask=MaskLayout())
