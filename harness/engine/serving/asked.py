"""An object that serves many rounds: the backend's own where it has the stage, or the reference's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import index
from typing import Any, TypeVar

from treeproof.diagnosis.serving import FULL, Call
from treeproof.engine.checks.trial import Trial

Answer = TypeVar("Answer", list[int], "list[int] | None")


class Asked:
    """What a stage returned, and all that it has answered since: `calls`."""

    def __init__(
        self, trial: Trial, stage: str, reference: Callable[..., Any], *arguments: Any
    ) -> None:
        self.calls: list[Call] = []
        self._trial, self._stage = trial, stage
        if trial.has(stage):
            self._object = trial.call(stage, getattr(trial.instance, stage), *arguments)
        else:
            self._object = reference(*arguments)

    def answer(self, read: Callable[..., Answer], method: str, *arguments: Any) -> Answer:
        """`read(object, method, *arguments)`. What it raises is a Violation of the stage."""
        function = partial(read, self._object, method)
        answer: Answer
        if self._trial.has(self._stage):
            answer = self._trial.call(self._stage, function, *arguments)
        else:
            answer = function(*arguments)
        self.calls.append(Call(method, arguments, FULL if answer is None else answer))
        return answer


def numbers(asked: Any, method: str, *arguments: Any) -> list[int]:
    """The answer as plain numbers. Whatever else it is, it raises here, in the stage that gave it."""
    return [index(one) for one in getattr(asked, method)(*arguments)]
