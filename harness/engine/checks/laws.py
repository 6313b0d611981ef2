"""The exact law of sampled acceptance on the smallest trees, by running every cell of the coins."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from treeproof.backends.reference import build as build_reference
from treeproof.contract.case import KVLayout, MaskLayout, Request, VerifyCase, pages_needed
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.contract.sampling import CHAIN, TARGET_ONLY, Rule, Sampling
from treeproof.contract.shape import AttentionShape
from treeproof.contract.tree import CandidateTree
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.related import staged
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.properties import contract
from treeproof.properties.lattice import Lattice, judge_law, lattices
from treeproof.properties.violation import Violation

_RULES: tuple[Rule, ...] = (TARGET_ONLY, CHAIN)
"""Those that are to have the law of the target."""
_ONE_IN = 4
_MOST = 144
"""Requests in a launch, at most."""
_LANES = 64
"""Of a key: enough for the slots of a launch to be told apart."""


def judge_laws(trial: Trial) -> None:
    """The cell of the law; no other stage of the backend has a part in it."""
    rules = [rule for rule in _RULES if rule in trial.backend.capabilities.sampling]
    wanted = trial.runs("law") and trial.wants("traversal", "measured")
    due = trial.options.due(trial.case.seed, 1, _ONE_IN)
    if not (trial.has("sample") and rules and wanted and due):
        return
    with trial.probing("law"):
        try:
            failures = [_failures(trial, rule) for rule in rules]
        except Violation as violation:
            trial.broke(violation)
            return
        found = [each for each in failures if each is not None]
        if found and not trial.borrows("sample"):
            trial.judged("traversal", "measured", "sample", [f for each in found for f in each])


def _failures(trial: Trial, rule: Rule) -> list[Failure] | None:
    """Of the first tree whose law is wrong, smaller trees coming first; None where none can be run."""
    for lattice in lattices(rule, trial.options.complete):
        together = min(_MOST, len(lattice.last))
        case = _many(together, lattice.parents, trial.case.shape, trial.case.layout)
        if trial.backend.capabilities.refusal(case, trial.options.device) is not None:
            return None
        failures = judge_law(lattice, _runs(trial, lattice, case))
        if failures:
            return failures
    return []


def _runs(trial: Trial, lattice: Lattice, case: VerifyCase) -> list[tuple[int, ...]]:
    """What each request emits, some of them in one launch."""
    made = build_reference(staged(case, trial.options.device)[1])
    x: VerifyInput = garble(made, trial.backend.consumes, trial.case.seed)
    found: list[tuple[int, ...]] = []
    together = len(case.requests)
    for start in range(0, len(lattice.last), together):
        # The last launch is filled up with the first requests.
        chosen = np.arange(start, start + together) % len(lattice.last)

        def handed(table: npt.NDArray[Any], chosen: npt.NDArray[Any] = chosen) -> Tensor:
            return torch.from_numpy(table[chosen]).to(trial.scene.device)

        seen = copied(x)
        if "draft_token" in trial.backend.consumes:
            seen = replace(seen, draft_token=handed(lattice.tokens).flatten())
        given = Sampling(
            lattice.rule,
            handed(lattice.probs).flatten(0, 1),
            handed(lattice.coins).flatten(),
            handed(lattice.last),
            None if lattice.draft is None else handed(lattice.draft),
        )
        result = trial.call("sample", trial.instance.sample, seen, given)
        done = contract.valid_accepted(result, together, x.spec_steps, "sample")
        lines = zip(done.tokens.tolist(), done.accept_len.tolist(), strict=True)
        found += [tuple(run[: max(0, length)]) for run, length in lines]
    return found[: len(lattice.last)]


@lru_cache(maxsize=32)
def _many(
    count: int, parents: tuple[int, ...], shape: AttentionShape, layout: KVLayout
) -> VerifyCase:
    rows = tuple(range(len(parents)))
    one = Request(tree=CandidateTree(rows, parents), row_of_node=rows, prefix_len=1)
    requests = (one,) * count
    layout = msgspec.structs.replace(layout, shared_prefix=0, evicted=False, page_table_pad=0)
    slots = pages_needed(requests, layout) * layout.page_size
    if slots > 1 << min(shape.head_dim, shape.v_head_dim):
        shape = msgspec.structs.replace(shape, head_dim=_LANES, v_head_dim=_LANES)
    layout = msgspec.structs.replace(layout, num_slots=slots)
    return VerifyCase(requests=requests, shape=shape, layout=layout, mask=MaskLayout())
