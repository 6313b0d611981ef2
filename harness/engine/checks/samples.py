"""What sampled acceptance emits for given probabilities and coins, judged by itself."""

from __future__ import annotations

from dataclasses import replace

import torch

from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.contract.sampling import TARGET_ONLY, Sampling
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.properties import contract
from treeproof.properties.sampling import Sampled, judge_sampled
from treeproof.properties.violation import Violation


def judge_samples(trial: Trial, x: VerifyInput) -> None:
    """A call a launch; no other stage of the backend has a part in it but the links of its build."""
    if not (trial.has("sample") and trial.runs("sample") and trial.wants("traversal", "measured")):
        return
    with trial.probing("sample"):
        try:
            _judge(trial, garble(x, trial.backend.consumes, trial.case.seed))
        except Violation as violation:
            trial.broke(violation)


def _judge(trial: Trial, seen: VerifyInput) -> None:
    failures: list[Failure] = []
    for launch in trial.prepared.sampled:
        x, given = _inputs(trial, seen, launch)
        handed = copied(x), copied(given)
        result = trial.call("sample", trial.instance.sample, *handed)
        for before, after in zip((x, given), handed, strict=True):
            trial.unchanged("sample", before, after)
        done = contract.valid_accepted(result, len(trial.case.requests), x.spec_steps, "sample")
        with trial.timed("check"):
            failures += judge_sampled(
                launch, done.accept_index.tolist(), done.accept_len.tolist(), done.tokens.tolist()
            )
    if not trial.borrows("sample"):
        trial.judged("traversal", "measured", "sample", failures)


def _inputs(trial: Trial, seen: VerifyInput, launch: Sampled) -> tuple[VerifyInput, Sampling]:
    device = trial.scene.device
    x = seen
    if "draft_token" in trial.backend.consumes:
        x = replace(seen, draft_token=torch.from_numpy(launch.tokens).to(device))
    return x, Sampling(
        rule=TARGET_ONLY,
        target_probs=torch.from_numpy(launch.probs).to(device),
        coins=torch.from_numpy(launch.coins).to(device),
        final_coins=torch.from_numpy(launch.last).to(device),
        threshold_single=launch.threshold_single,
        threshold_acc=launch.threshold_acc,
    )
