"""What of the drafts is accepted in a round, by what the target says after each row."""

from __future__ import annotations

from torch import Tensor

from treeproof.backends import reference
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.engine.accepted import counted, once
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.ends import stop_at
from treeproof.engine.serving.stage import ask
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
    failures = traversal.judge_walk(step.case, wanted, index, lengths)
    failures += traversal.judge_bonus(step.case, wanted, accepted.tokens.tolist(), lengths)
    stop_at(trial, failures)
    return accepted, wanted


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
