"""What a request asks for: its logits processed along paths, its run ended where it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from treeproof.contract.constraints import Constraints
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.stopping import StopRules
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.oracles.processed import Asked
from treeproof.properties.contract import same_bits
from treeproof.properties.finishing import PIECES, SITUATIONS, judge_finished, width
from treeproof.properties.processing import judge_processed
from treeproof.properties.returned import valid_finished, valid_processed
from treeproof.properties.violation import Violation, contract_failure


def judge_requests(trial: Trial, x: VerifyInput) -> None:
    """`process` and `finish`, each judged by itself."""
    stages: tuple[tuple[str, Callable[[], None], bool], ...] = (
        ("process", lambda: _process(trial, x), trial.wants("output", "measured")),
        ("finish", lambda: _finish(trial), trial.wants("traversal", "measured")),
    )
    for stage, judge, wanted in stages:
        if trial.has(stage) and trial.runs(stage) and wanted:
            with trial.probing(stage):
                try:
                    judge()
                except Violation as violation:
                    trial.broke(violation)


def _process(trial: Trial, x: VerifyInput) -> None:
    found = processed(trial, x)
    with trial.timed("check"):
        failures = judge_processed(trial.prepared.processed, found.cpu().numpy())
    if not trial.borrows("process"):
        trial.judged("output", "measured", "process", failures)


def processed(trial: Trial, x: VerifyInput) -> Tensor:
    """(T, V) what the backend made of the logits. Raises Violation."""
    launch = trial.prepared.processed
    seen = garble(x, trial.backend.consumes, trial.case.seed)
    if "draft_token" in trial.backend.consumes:
        tokens = torch.from_numpy(launch.tokens).to(trial.scene.device)
        seen = replace(seen, draft_token=tokens)
    logits = torch.from_numpy(launch.logits).to(trial.scene.device)
    given = constraints(launch.asked, trial.scene.device)
    handed = copied(seen), copied(logits), copied(given)
    result = trial.call("process", trial.instance.process, *handed)
    trial.unchanged("process", seen, handed[0])
    trial.unchanged("process", given, handed[2])
    if not same_bits(logits, handed[1]):
        message = "process changed its inputs logits"
        trial.note(contract_failure("mutates-input", "process", message))
    return valid_processed(result, logits)


def constraints(asked: Sequence[Asked], device: torch.device) -> Constraints:
    """What these requests ask for, as the stage is handed it."""

    def numbers(name: str) -> Tensor:
        return torch.tensor([getattr(one, name) for one in asked], device=device)

    def floats(name: str) -> Tensor:
        return numbers(name).float()

    return Constraints(
        counts=numbers("counts"),
        frequency=floats("frequency"),
        presence=floats("presence"),
        repetition=floats("repetition"),
        bias=floats("bias"),
        temperature=floats("temperature"),
        min_p=floats("min_p"),
        grammar=numbers("grammar"),
        grammar_state=numbers("state"),
    )


def _finish(trial: Trial) -> None:
    device, wide = trial.scene.device, width()

    def padded(rows: list[tuple[int, ...]], size: int) -> Tensor:
        return torch.tensor([[*row, *[-1] * (size - len(row))] for row in rows], device=device)

    runs = [situation.run for situation in SITUATIONS]
    lengths = torch.tensor([len(run) for run in runs], device=device)
    steps = [tuple(range(len(run))) for run in runs]
    given = (
        Accepted(accept_index=padded(steps, wide), accept_len=lengths, tokens=padded(runs, wide)),
        StopRules(
            budget=torch.tensor([s.budget for s in SITUATIONS], device=device),
            stop_tokens=padded([s.stop_tokens for s in SITUATIONS], 2),
            stop_strings=tuple(s.stop_strings for s in SITUATIONS),
            served_text=tuple(s.before for s in SITUATIONS),
            pieces=PIECES,
        ),
    )
    handed = copied(given[0]), copied(given[1])
    result = trial.call("finish", trial.instance.finish, *handed)
    for before, after in zip(given, handed, strict=True):
        trial.unchanged("finish", before, after)
    done = valid_finished(result, len(runs), wide)
    failures = judge_finished(done.tokens.tolist(), done.served.tolist(), done.reason.tolist())
    if not trial.borrows("finish"):
        trial.judged("traversal", "measured", "finish", failures)
