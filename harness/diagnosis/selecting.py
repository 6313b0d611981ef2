"""Selection: other candidates are chosen than the best, or other tokens looked up than theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from treeproof.diagnosis.chosen import Line, Token, best, selecting, true_token
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.world import World
from treeproof.properties.selecting import Pool


def _by(key: Callable[[Sequence[float], Sequence[float], int], tuple[float, ...]]) -> Line:
    """The lowest by scores, by a step's own probabilities, and by index; in pool order."""

    def choose(given: Pool, line: int) -> tuple[int, ...]:
        scores = given.pool.scores[line].tolist()
        steps = _steps(scores, given.pool.parents[line].tolist(), given.pool.topk)
        order = sorted(range(len(scores)), key=lambda s: key(scores, steps, s))
        return tuple(sorted(order[: given.num_rows - 1]))

    return choose


def _steps(scores: Sequence[float], parents: Sequence[int], topk: int) -> list[float]:
    """Probability of each candidate after its parent; 0 after what has none."""
    above = [1.0 if s < topk else scores[parents[s // topk]] for s in range(len(scores))]
    return [score / of if of else 0.0 for score, of in zip(scores, above, strict=True)]


@hypothesis(
    "child-before-parent", "of equal candidates a child is selected, and not its parent", "select",
    narrow="no",
)  # fmt: skip
def child_before_parent(right: World) -> Iterator[tuple[str, World]]:
    later = _by(lambda scores, steps, s: (-scores[s], -s))
    yield "the later of equals", replace(right, select=selecting(later))

    def by_topk(given: Pool, line: int) -> tuple[int, ...]:
        found = given.pool.scores[line].topk(given.num_rows - 1).indices
        return tuple(sorted(found.tolist()))

    # torch.topk promises no order among equals, and has one.
    yield "those that torch.topk takes", replace(right, select=selecting(by_topk))


@hypothesis(
    "selected-by-step", "candidates are compared by the probability of their own step", "select",
    narrow="no",
)  # fmt: skip
def selected_by_step(right: World) -> Iterator[tuple[str, World]]:
    alone = _by(lambda scores, steps, s: (-steps[s], s))
    yield "alone", replace(right, select=selecting(alone))


@hypothesis(
    "selection-unordered", "candidates come by score, so that a parent may come after its child",
    "select", narrow="no",
)  # fmt: skip
def selection_unordered(right: World) -> Iterator[tuple[str, World]]:
    def by_score(given: Pool, line: int) -> tuple[int, ...]:
        scores = given.pool.scores[line].tolist()
        return tuple(sorted(best(given, line), key=lambda s: (-scores[s], s)))

    yield "the best first", replace(right, select=selecting(by_score))
    backwards: Line = lambda given, line: best(given, line)[::-1]  # noqa: E731
    yield "the last first", replace(right, select=selecting(backwards))


@hypothesis(
    "draft-ids-unmapped", "a drafter's ids are not looked up in its vocabulary, or not as ids", "select",
    narrow="no",
)  # fmt: skip
def draft_ids_unmapped(right: World) -> Iterator[tuple[str, World]]:
    def added(given: Pool, line: int, s: int) -> int:
        own = int(given.pool.tokens[line, s])
        return own if given.pool.hot_token_id is None else own + true_token(given, line, s)

    ways: dict[str, Token] = {
        "they pass for the target's": lambda given, line, s: int(given.pool.tokens[line, s]),
        "the target's ids are added as offsets": added,
    }
    for detail, token in ways.items():
        yield detail, replace(right, select=selecting(token=token))


@hypothesis(
    "selected-of-neighbour", "a request's candidates are looked up in another request's part of a pool",
    "select", narrow="no",
)  # fmt: skip
def selected_of_neighbour(right: World) -> Iterator[tuple[str, World]]:
    others: dict[str, Callable[[int, int], int]] = {
        "the first's": lambda line, count: 0,
        "the one before": lambda line, count: (line - 1) % count,
        "the one after": lambda line, count: (line + 1) % count,
    }
    for detail, other in others.items():

        def token(given: Pool, line: int, s: int, other: Callable[[int, int], int] = other) -> int:
            return true_token(given, other(line, len(given.requests)), s)

        yield f"tokens of {detail}", replace(right, select=selecting(token=token))


@hypothesis(
    "selected-tokens-shifted", "rows carry the tokens of candidates beside theirs", "select",
    narrow="no",
)  # fmt: skip
def selected_tokens_shifted(right: World) -> Iterator[tuple[str, World]]:
    for by in (1, -1):

        def token(given: Pool, line: int, s: int, by: int = by) -> int:
            return true_token(given, line, min(max(0, s + by), given.tokens.shape[1] - 1))

        yield f"{by:+d} in the pool", replace(right, select=selecting(token=token))


SELECTING: tuple[Hypothesis, ...] = (
    child_before_parent,
    selected_by_step,
    selection_unordered,
    draft_ids_unmapped,
    selected_of_neighbour,
    selected_tokens_shifted,
)
