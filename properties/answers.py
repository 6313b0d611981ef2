"""Small answers of a device, brought over together: asking one by one makes host and device wait.

An answer is asked for when it is worked out and looked at later. Whoever looks first brings over all
that were asked for until then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(eq=False)
class Answer:
    """A few numbers or bools, on their way."""

    _pool: Answers
    _told: list[float] | None = None

    @property
    def numbers(self) -> list[float]:
        if self._told is None:
            self._pool.bring()
        assert self._told is not None
        return self._told

    def __bool__(self) -> bool:
        """Whether any of them is true."""
        return any(self.numbers)

    def come(self, told: list[float]) -> None:
        self._told = told


@dataclass(eq=False)
class Answers:
    """Of one device."""

    _waiting: list[tuple[Answer, Tensor]] = field(default_factory=list)

    def ask(self, told: Tensor) -> Answer:
        """`told`: a few numbers or bools on the device, which float64 holds exactly."""
        answer = Answer(self)
        self._waiting.append((answer, told.reshape(-1)))
        return answer

    def bring(self) -> None:
        asked, self._waiting = self._waiting, []
        device = asked[0][1].device
        numbers = torch.cat([told.to(device).double() for _, told in asked]).tolist()
        for answer, told in asked:
            answer.come(numbers[: len(told)])
            del numbers[: len(told)]
