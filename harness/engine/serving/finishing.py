"""How much of what a round accepted is served, and who is over then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from treeproof.contract.failure import Failure
from treeproof.contract.inputs import Accepted
from treeproof.contract.stopping import StopRules
from treeproof.diagnosis.earlier_rounds import Named
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.params import NO_LIMIT, ending, pieces
from treeproof.engine.serving.stage import ask, judged, tell
from treeproof.engine.serving.step import Step
from treeproof.oracles.served import Ending, served
from treeproof.properties.finishing import judge_served
from treeproof.properties.returned import valid_finished
from treeproof.properties.traversal import Prediction


@dataclass(frozen=True)
class Served:
    """Of one request: so many tokens of its run are served; `over`: and no more will be."""

    count: int
    over: bool


def finish(
    trial: Trial, step: Step, accepted: Accepted, prediction: Prediction, vocab: int
) -> list[Served]:
    """Of each request, as the oracle has it; where the backend says so itself it is judged."""
    endings = [
        ending(one, vocab, run, step.batch.stop(b))
        for b, (one, run) in enumerate(zip(step.batch.served, prediction.emitted, strict=True))
    ]
    right = [served(run, end) for run, end in zip(prediction.emitted, endings, strict=True)]
    if trial.has("finish"):
        rules = _rules(endings, vocab, accepted.tokens.device)
        result = ask(trial, "finish", accepted, rules, first=step.first)
        done = valid_finished(result, len(endings), accepted.tokens.shape[1])
        made = done.tokens.tolist(), done.served.tolist(), done.reason.tolist()
        gave = dict(
            zip(_WRONG.values(), (tuple(map(tuple, made[0])), *map(tuple, made[1:])), strict=True)
        )

        def judge(ends: Sequence[Ending]) -> list[Failure]:
            lines = zip(prediction.emitted, ends, *made, strict=True)
            return [
                failure
                for b, (run, end, *found) in enumerate(lines)
                for failure in judge_served(f"request {b}", b, run, end, *found)
            ]

        def wrong(given: Named) -> frozenset[str]:
            """If requests ended there."""
            ends = [
                replace(end, **{field: given[name][b][0] for name, field in _ENDS.items()})
                for b, end in enumerate(endings)
            ]
            return frozenset(_WRONG[failure.kind] for failure in judge(ends))

        ends = {
            name: tuple((getattr(end, field),) for end in endings) for name, field in _ENDS.items()
        }
        nothing = {name: ((none,),) * len(endings) for name, none in _NOTHING.items()}
        tell(trial, "finish", step.numbers, ends, gave, wrong, nothing=nothing)
        failures = judge(endings)
        judged(trial, "traversal", "measured", "finish", failures)
    elif any(why != "running" for _, why in right):
        trial.lends("finish")
    return [Served(len(run), why != "running") for run, why in right]


_ENDS = {
    "budgets": "budget",
    "stop tokens": "stop_tokens",
    "stop strings": "stop_strings",
    "text served": "before",
}
"""What a run ends by, in the words of a cause."""
_NOTHING = {"budgets": NO_LIMIT, "stop tokens": frozenset(), "stop strings": ()}
"""Of a request that nothing ends."""
_WRONG = {"wrong-served": "tokens", "wrong-count": "counts", "wrong-reason": "reasons"}
"""What is wrong with a run, by the kind of failure."""


def _rules(endings: list[Ending], vocab: int, device: torch.device) -> StopRules:
    most = max(1, *(len(end.stop_tokens) for end in endings))
    stops = [sorted(end.stop_tokens) for end in endings]

    def numbers(values: object) -> Tensor:
        return torch.tensor(values, device=device)

    return StopRules(
        budget=numbers([end.budget for end in endings]),
        stop_tokens=numbers([[*own, *[-1] * (most - len(own))] for own in stops]),
        stop_strings=tuple(end.stop_strings for end in endings),
        served_text=tuple(end.before for end in endings),
        pieces=pieces(vocab),
    )
