"""What a page draws of a script: its rounds, as they were seen to go or, where nothing was seen, as drawn."""

from __future__ import annotations

from typing import Any

from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Shown, ShownRound, ShownTurn
from treeproof.contract.failure import Failure
from treeproof.contract.script import Round, Turn
from treeproof.engine.simplify import keep_nodes

MAX_DRAWN = 12
"""Rounds that are drawn, the last ones."""


def rounds_of(case: VerifyCase, failure: Failure, found: Shown | None) -> dict[str, Any]:
    """`at` is what the failure is about, in the step in which it was seen. `ready`, `after` and slots of a turn are there only where they were seen: how long a request is
    and where its pages lie is up to the run."""
    seen = () if found is None else found.rounds
    drawn = [_seen(one) for one in seen] if seen else _as_written(case)[-MAX_DRAWN:]
    before = drawn[0]["step"] if drawn else 0
    left_out = sum(isinstance(step, Round) for step in case.script[: max(0, before - 1)])
    return {
        "case": case.id,
        "page": case.layout.page_size,
        "steps": len(case.script),
        "at": [failure.request, failure.row, failure.column],
        "step": found.step if found is not None else 0,
        "otherwise": found is not None and not _same_step(case, failure, found),
        "rounds": drawn,
        "left_out": left_out,
    }


def _same_step(case: VerifyCase, failure: Failure, found: Shown) -> bool:
    """Whether the run that was recorded went wrong where the check did; one that keeps something from
    run to run may not."""
    over = found.step > len(case.script)
    where = "once the script was over" if over else f"in step {found.step} of the script"
    return f"seen {where}" in failure.message


def _seen(one: ShownRound) -> dict[str, Any]:
    return {"step": one.step, "turns": [_seen_turn(turn) for turn in one.turns]}


def _seen_turn(turn: ShownTurn) -> dict[str, Any]:
    return {
        "request": turn.request,
        "ready": turn.ready,
        "tokens": list(turn.tokens),
        "parents": list(turn.parents),
        "due": list(turn.due),
        "pages": list(turn.pages),
        "accepted": list(turn.accepted),
        "emitted": list(turn.emitted),
        "after": turn.ready_after,
    }


def _as_written(case: VerifyCase) -> list[dict[str, Any]]:
    return [
        {"step": number, "turns": [_written_turn(case, turn) for turn in step.turns]}
        for number, step in enumerate(case.script, start=1)
        if isinstance(step, Round)
    ]


def _written_turn(case: VerifyCase, turn: Turn) -> dict[str, Any]:
    request = case.requests[turn.request]
    if turn.nodes is not None and turn.nodes < request.num_nodes:
        request = keep_nodes(request, range(turn.nodes))
    return {
        "request": turn.request,
        "ready": None,
        "tokens": [],
        "parents": list(request.parent_rows),
        "due": [request.row_of_node[node] for node in request.tree.path(turn.accept)],
        "pages": [],
        "accepted": [],
        "emitted": [],
        "after": None,
    }
