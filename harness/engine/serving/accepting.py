"""What of the drafts is accepted in a round, by what the target says after each row."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from treeproof.backends import reference
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.diagnosis.earlier_rounds import Named
from treeproof.engine.accepted import counted, once
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.ends import stop_at
from treeproof.engine.serving.stage import ask, tell
from treeproof.engine.serving.step import Step
from treeproof.oracles.traversal import greedy_walk
from treeproof.properties import contract, traversal
from treeproof.properties.traversal import Prediction


def accept(
    trial: Trial, step: Step, seen: VerifyInput, logits: Tensor
) -> tuple[Accepted, Prediction]:
    """The greedy walk, and what must follow from what the target predicts."""
    predicted = logits.argmax(1)
    if trial.has("accept"):
        result = ask(trial, "accept", seen, predicted, first=step.first)
    else:
        trial.lends("accept")
        result = reference.accept(step.ours, predicted)
    accepted = contract.valid_accepted(result, len(step.case.requests), step.made.spec_steps)
    wanted = _prediction(step, predicted.tolist())
    index, lengths = accepted.accept_index.tolist(), accepted.accept_len.tolist()
    if trial.has("accept"):
        expected = once(len(rows) - 1 for rows in wanted.rows)
        observed = once(length - 1 for length in lengths)
        trial.accepted("accept", counted("rounds", expected, observed))
    made = index, accepted.tokens.tolist(), lengths
    if trial.has("accept"):
        lines = _lines(step, predicted.tolist())
        tell(trial, "accept", step.numbers, lines, {}, partial(_wrong, step, made))
    failures = _judge(step, wanted, *made)
    stop_at(trial, failures)
    return accepted, wanted


def _judge(
    step: Step, wanted: Prediction, index: list[Any], tokens: list[Any], lengths: list[int]
) -> list[Failure]:
    failures = traversal.judge_walk(step.case, wanted, index, lengths)
    return failures + traversal.judge_bonus(step.case, wanted, tokens, lengths)


def _lines(step: Step, predicted: list[int]) -> Named:
    """Of each request, what the target says after its rows."""
    ends = [*step.case.qo_indptr[1:]]
    lines = zip(step.case.qo_indptr, ends, strict=False)
    return {"predictions": tuple(tuple(predicted[a:z]) for a, z in lines)}


def _wrong(
    step: Step, made: tuple[list[Any], list[Any], list[int]], given: Named
) -> frozenset[str]:
    """If the target had said that."""
    wanted = _prediction(step, [token for line in given["predictions"] for token in line])
    return frozenset({"path"} if _judge(step, wanted, *made) else ())


def _prediction(step: Step, tokens: list[int]) -> Prediction:
    """The walk that must follow from what the target predicts at each row."""
    rows, emitted = [], []
    for b, request in enumerate(step.case.requests):
        first = step.case.qo_indptr[b]
        of_node = [tokens[first + row] for row in request.row_of_node]
        walk = greedy_walk(request.tree, of_node, max_len=len(request.tree))
        rows.append(tuple(request.row_of_node[node] for node in walk.nodes))
        emitted.append(tuple(walk.tokens))
    return Prediction(tuple(tokens), tuple(rows), tuple(emitted))
