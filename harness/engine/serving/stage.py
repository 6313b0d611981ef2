"""One call of a stage in a round: what it is handed is left alone, which is looked at in the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from treeproof.contract.failure import Evidence, Failure, Identity
from treeproof.diagnosis.earlier_rounds import Named, StageCall
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.ends import stop_at


@contextmanager
def left_alone(trial: Trial, stage: str, *values: Any, first: bool) -> Iterator[tuple[Any, ...]]:
    """Inputs for a stage; in a first round copies, which are the same afterwards. What a stage does to
    them shows there, and copies and comparisons take as long as the round itself."""
    if not first:
        yield values
        return
    given = tuple(map(copied, values))
    yield given
    for before, after in zip(values, given, strict=True):
        trial.unchanged(stage, before, after)


def judged(
    trial: Trial, identity: Identity, evidence: Evidence, stage: str, failures: Sequence[Failure]
) -> None:
    """A verdict on what a stage made in this round; with failures, the script ends here."""
    stop_at(trial, failures)
    if not trial.borrows(stage):
        trial.judged(identity, evidence, stage, ())


def tell(
    trial: Trial,
    stage: str,
    requests: tuple[int, ...],
    given: Named,
    gave: Named,
    wrong: Callable[[Named], frozenset[str]],
    alike: int = 0,
    nothing: Named | None = None,
) -> None:
    """Of what a stage was given and gave, before it is judged: who looks for a cause is told."""
    if trial.heard is not None:
        trial.heard(StageCall(stage, requests, given, gave, wrong, alike, nothing or {}))


def ask(trial: Trial, stage: str, *values: Any, first: bool, rest: tuple[Any, ...] = ()) -> Any:
    """What the backend's own stage makes of these values. `rest`: numbers, and what is its to change."""
    with left_alone(trial, stage, *values, first=first) as given:
        return trial.call(stage, getattr(trial.instance, stage), *given, *rest)
