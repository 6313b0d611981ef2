"""What a scheduler answers between rounds, each answer judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from treeproof.backends.reference.schedule import schedule
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.asked import Asked, numbers
from treeproof.engine.serving.ends import stop_at
from treeproof.engine.serving.request import Served
from treeproof.properties.serving import judge_runnable, judge_successors


class Scheduling:
    """The backend's scheduler, or the reference's."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.scheduler = Asked(trial, "schedule", schedule)

    def successors(self, served: Served, count: int, sampled: int) -> list[int]:
        """What the drafter reads beside the last `count` columns of a prompt that are ready."""
        prompt, first = served.prompt, served.ready - count
        after = self.scheduler.answer(numbers, "successors", list(prompt), first, count, sampled)
        right = [*prompt, sampled][first + 1 : served.ready + 1]
        stop_at(self.trial, judge_successors(served.number, first, after, right))
        return after

    def ask_who_is_next(self, served: Iterable[Served], in_flight: Sequence[int]) -> None:
        """While a round is under way, whoever is in it cannot begin another one."""
        running = [s.number for s in served if s.prefilled]
        chosen = self.scheduler.answer(numbers, "runnable", running, frozenset(in_flight))
        stop_at(self.trial, judge_runnable(chosen, running, in_flight))
