"""What each round of a script came to, as far as it came: what a report draws of it."""

from __future__ import annotations

import msgspec

from treeproof.contract.case import VerifyCase
from treeproof.contract.event import ShownRound, ShownTurn
from treeproof.diagnosis.earlier_rounds import StageCall
from treeproof.engine.serving.step import Step
from treeproof.engine.serving.verify import Done

MAX_ROUNDS = 12
"""Rounds that are kept, the last ones: a reduced script has few, and looks wrong in the last."""


class Recorded:
    """The last rounds, the one that is under way among them. Every stage before a failure was judged and
    found right, so what is noted here is what the backend did."""

    def __init__(self) -> None:
        self.rounds: list[ShownRound] = []
        self.cases: list[VerifyCase] = []
        """Of the same rounds, what each is as a verify step by itself."""
        self.calls: list[StageCall] = []
        """Of all rounds, what stages were given and gave."""

    def hear(self, call: StageCall) -> None:
        """Of a stage, before it is judged."""
        self.calls.append(call)

    def begin(self, number: int, made: Step) -> None:
        """Step `number` of the script is a round: trees are drafted, and slots reserved."""
        turns = []
        for b, served in enumerate(made.batch.ready):
            request, turn = made.case.requests[b], made.batch.turns[b]
            tree, rows = request.tree, request.row_of_node
            turns.append(
                ShownTurn(
                    request=served.number,
                    ready=served.ready,
                    tokens=tuple(tree.tokens[node] for node in request.node_of_row),
                    parents=tuple(request.parent_rows),
                    due=tuple(rows[node] for node in tree.path(turn.accept)),
                    pages=tuple(made.batch.pages[b]),
                )
            )
        self.cases = [*self.cases, made.case][-MAX_ROUNDS:]
        self.rounds = [*self.rounds, ShownRound(step=number, turns=tuple(turns))][-MAX_ROUNDS:]

    def end(self, done: Done) -> None:
        """It came to its end, and this is what it emitted and committed."""
        last = self.rounds[-1]
        turns = tuple(
            msgspec.structs.replace(
                turn, accepted=done.rows[b], emitted=done.emitted[b], ready_after=done.ready[b]
            )
            for b, turn in enumerate(last.turns)
        )
        self.rounds[-1] = msgspec.structs.replace(last, turns=turns)
