"""The drafter's run over an accepted path: other hidden states, tokens, positions or keys than right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.renewed import Cell, Place, made
from treeproof.diagnosis.world import World


def _each(right: World, name: str, cells: dict[str, Cell]) -> Iterator[tuple[str, World]]:
    for detail, cell in cells.items():
        yield detail, replace(right, extend=made({name: cell}))


def _last_row(place: Place) -> int:
    return place.ground.case.num_rows - 1


@hypothesis(
    "hidden-of-another-row", "the drafter gets the hidden state of another row than the accepted one",
    "extend", narrow="no",
)  # fmt: skip
def hidden_of_another_row(right: World) -> Iterator[tuple[str, World]]:
    def strided(p: Place) -> int:
        width = max(max(request.tree.depth) for request in p.ground.requests) + 1
        return min(p.b * max(width, 2) + p.path[p.j], _last_row(p))

    yield from _each(right, "rows", {
        "the request's first rows": lambda p: min(p.first + p.j, _last_row(p)),
        "the launch's first rows": lambda p: min(p.j, _last_row(p)),
        "counted by steps + 1 a request": strided,
        "without the request's first row": lambda p: p.path[p.j],
        "that of the token's own row": lambda p: p.first + p.path[min(p.j + 1, len(p.path) - 1)],
        "that of the row before": lambda p: p.first + p.path[max(p.j - 1, 0)],
        "that of the root": lambda p: p.first,
        "that of the last accepted row": lambda p: p.first + p.path[-1],
    })  # fmt: skip


@hypothesis(
    "next-token-of-row", "a hidden state comes with another token than the one emitted after it",
    "extend", narrow="no",
)  # fmt: skip
def next_token_of_row(right: World) -> Iterator[tuple[str, World]]:
    def own(p: Place) -> int:
        request = p.ground.requests[p.b]
        return request.tree.tokens[request.node_of_row[p.path[p.j]]]

    yield from _each(right, "tokens", {
        "that of its own row": own,
        "the bonus": lambda p: p.emitted[-1],
        "the first": lambda p: p.emitted[0],
        "the one after": lambda p: p.emitted[min(p.j + 1, len(p.emitted) - 1)],
    })  # fmt: skip


@hypothesis(
    "extend-from-new-boundary", "the accepted path stands elsewhere than behind the old boundary",
    "extend", narrow="no",
)  # fmt: skip
def extend_from_new_boundary(right: World) -> Iterator[tuple[str, World]]:
    yield from _each(right, "positions", {
        "behind the new one": lambda p: p.prefix + len(p.path) + p.j,
        "one further": lambda p: p.prefix + p.j + 1,
        "one before": lambda p: p.prefix + p.j - 1,
        "by row": lambda p: p.prefix + p.path[p.j],
        "counted from 0": lambda p: p.j,
    })  # fmt: skip


@hypothesis(
    "drafted-keys-kept", "keys that were drafted along the accepted path are not written anew",
    "extend", narrow="no",
)  # fmt: skip
def drafted_keys_kept(right: World) -> Iterator[tuple[str, World]]:
    def of_row(p: Place) -> int:
        return p.ground.own(p.b, p.path[p.j]).k

    yield from _each(right, "slots", {
        "but the last": lambda p: p.right("slots") if p.j == len(p.path) - 1 else -1,
        "but the first": lambda p: p.right("slots") if p.j == 0 else -1,
        "the last alone": lambda p: -1 if p.j == len(p.path) - 1 else p.right("slots"),
        "all": lambda p: -1,
        "but the rows' own": of_row,
    })  # fmt: skip


EXTENDING: tuple[Hypothesis, ...] = (
    hidden_of_another_row,
    next_token_of_row,
    extend_from_new_boundary,
    drafted_keys_kept,
)
