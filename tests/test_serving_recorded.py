"""What is kept of the rounds of a script for pictures of it, against what the script says by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from test_rounds import TREE, ready, request, served, spoiled, turns

from treeproof.contract.event import Shown
from treeproof.contract.inputs import Committed
from treeproof.contract.registry import Backend, load
from treeproof.contract.script import Finish
from treeproof.engine.check import check_case
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.serving.look import look_script
from treeproof.engine.serving.recorded import MAX_ROUNDS

# Rows in another order than nodes; node 4 is row 1, on the path 0, 2, 1.
CASE = served(
    request(TREE, 5, rows=(0, 3, 2, 4, 1)), request((-1, 0), 4),
    steps=[*ready(0, 1), turns(4, 1), Finish(request=1), turns(2), turns(0)],
    page_size=2,
)  # fmt: skip


def late(right: Callable[..., Committed], x: Any, *given: Any) -> Committed:
    """A commit that spoils a slot from the second round on."""
    done = right(x, *given)
    if int(x.seq_lens.max()) > 5:
        given[1][-1] += 1
    return done


def recorded(backend: Backend) -> Shown:
    _, found = look_script(CASE, backend, CheckOptions())
    assert found is not None
    return found


def test_rounds_are_recorded_up_to_where_it_went_wrong() -> None:
    found = recorded(spoiled("commit", late))
    assert (found.step, [one.step for one in found.rounds]) == (7, [5, 7])
    first, second = found.rounds
    assert [(t.request, t.ready, t.ready_after) for t in first.turns] == [(0, 5, 8), (1, 4, 6)]
    assert [(t.due, t.accepted) for t in first.turns] == [((0, 2, 1), (0, 2, 1)), ((0, 1), (0, 1))]
    assert first.turns[0].parents == (-1, 2, 0, 0, 3)
    assert [len(turn.emitted) for turn in first.turns] == [3, 2]
    # What was emitted is the path's tokens and a bonus, which is the next round's root.
    assert first.turns[0].emitted[:2] == (first.turns[0].tokens[2], first.turns[0].tokens[1])
    (turn,) = second.turns
    assert turn.tokens[0] == first.turns[0].emitted[-1]
    assert (turn.ready, turn.due, turn.accepted, turn.ready_after) == (8, (0, 2), (), None)
    assert len(turn.pages) == 7  # 8 columns and 5 rows, two a page
    assert turn.pages[:4] == first.turns[0].pages[:4]


def test_where_nothing_fails_nothing_is_shown() -> None:
    backend = load("direct-mask")
    assert look_script(CASE, backend, CheckOptions()) == ((), None)
    assert check_case(CASE, backend, CheckOptions()).failures == ()


def test_of_many_rounds_the_last_are_kept() -> None:
    def at_the_end(right: Callable[..., Committed], x: Any, *given: Any) -> Committed:
        done = right(x, *given)
        if int(x.seq_lens.max()) == 5 + MAX_ROUNDS + 2:
            given[1][-1] += 1
        return done

    steps = [*ready(0), *[turns(0)] * (MAX_ROUNDS + 4)]
    script = served(request((-1,), 5), steps=steps)
    _, found = look_script(script, spoiled("commit", at_the_end), CheckOptions())
    assert found is not None
    last = 2 + MAX_ROUNDS + 3
    assert (found.step, len(found.rounds), found.rounds[-1].step) == (last, MAX_ROUNDS, last)
