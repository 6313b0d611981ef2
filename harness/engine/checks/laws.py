"""The exact law of sampled acceptance on the smallest trees, by running every cell of the coins; where a
backend draws them itself, its draws are counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.contract.sampling import CHAIN, RULES, TARGET_ONLY, Rule, Sampling
from treeproof.engine.accepted import Taken, counted
from treeproof.engine.checks.chances import chance_failures
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.many import many
from treeproof.engine.checks.trial import Trial
from treeproof.oracles.law import Law
from treeproof.properties import contract
from treeproof.properties.lattice import Lattice, judge_law, lattices, law_of
from treeproof.properties.violation import Violation

_OF_THE_TARGET: tuple[Rule, ...] = (TARGET_ONLY, CHAIN)
"""Rules that are to have the law of the target."""
_ONE_IN = 4
_MOST = 144
"""Requests in a launch, at most."""


def judge_laws(trial: Trial) -> None:
    """The cell of the law; no other stage of the backend has a part in it."""
    can, wanted = trial.backend.capabilities, trial.wants("traversal", "measured")
    known = [r for r in (RULES if can.own_coins else _OF_THE_TARGET) if r in can.sampling]
    due = trial.options.due(trial.case.seed, 1, _ONE_IN)
    if not (trial.has("sample") and known and trial.runs("law") and wanted and due):
        return
    judge = chance_failures if can.own_coins else _failures
    with trial.probing("law"):
        try:
            failures = [judge(trial, rule) for rule in known]
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
        x = many(trial, lattice.parents, together)
        if x is None:
            return None
        runs = _runs(trial, lattice, x, together)
        law = law_of(lattice, runs)
        failures = judge_law(lattice, law)
        expected = _taken(lattice.wanted, len(runs))
        trial.accepted("sample", counted("law", expected, _taken(law, len(runs))))
        if failures:
            return failures
    return []


def _taken(law: Law, walks: int) -> list[Taken]:
    """Drafts accepted in so many walks of this law; the last token of a run is no draft."""
    return [(len(run) - 1, float(walks * share)) for run, share in law.items()]


def _runs(trial: Trial, lattice: Lattice, x: VerifyInput, together: int) -> list[tuple[int, ...]]:
    """What each request emits, so many of them in one launch."""
    found: list[tuple[int, ...]] = []
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
