"""What is run when: a request waits for the result of its last round, and a drafter for its token."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from treeproof.backends.reference.used import note


def schedule() -> Schedule:
    note("schedule")
    return Schedule()


class Schedule:
    """It keeps nothing."""

    def successors(
        self, prompt: Sequence[int], first: int, count: int, sampled: int
    ) -> Sequence[int]:
        return [*prompt, sampled][first + 1 : first + count + 1]

    def runnable(self, running: Sequence[int], in_flight: Collection[int]) -> Sequence[int]:
        return [request for request in running if request not in in_flight]
