"""Output, processed: what a row's grammar, penalties and parameters follow in place of its path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from treeproof.diagnosis.adjusting import Adjusting
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.world import World

Ways = Iterator[tuple[str, World]]


def _so(right: World, how: Adjusting) -> World:
    return replace(right, adjusting=how)


@hypothesis(
    "grammar-by-rows",
    "the grammar does not advance along the path of a row",
    "process",
    narrow="no",
)
def grammar_by_rows(right: World) -> Ways:
    yield "over all rows before it", _so(right, Adjusting(advanced="rows before"))
    yield "short of the row itself", _so(right, Adjusting(advanced="path without its end"))
    yield "at all", _so(right, Adjusting(advanced="no draft"))


@hypothesis("rows-unmasked", "rows are not masked by the grammar", "process", narrow="no")
def rows_unmasked(right: World) -> Ways:
    yield "none of them", _so(right, Adjusting(unmasked="all"))
    yield "the last row", _so(right, Adjusting(unmasked="the last"))
    yield "draft rows", _so(right, Adjusting(unmasked="drafts"))


@hypothesis(
    "root-counted-twice", "a penalty counts the root once more in the rows below it", "process",
    narrow="no",
)  # fmt: skip
def root_counted_twice(right: World) -> Ways:
    yield "", _so(right, Adjusting(root_twice=True))


@hypothesis(
    "penalty-not-by-path", "a penalty does not count the drafts on a row's path", "process",
    narrow="no",
)  # fmt: skip
def penalty_not_by_path(right: World) -> Ways:
    yield "its own draft alone", _so(right, Adjusting(counted="own draft"))
    yield "those of all rows", _so(right, Adjusting(counted="every row"))
    yield "those of all rows before it", _so(right, Adjusting(counted="rows before"))
    yield "none", _so(right, Adjusting(counted="no draft"))


@hypothesis(
    "parameter-skipped", "draft rows are processed without a parameter of the request", "process",
    narrow="no",
)  # fmt: skip
def parameter_skipped(right: World) -> Ways:
    yield "min-p", _so(right, Adjusting(skipped="min_p"))
    yield "temperature", _so(right, Adjusting(skipped="temperature"))
    yield "bias", _so(right, Adjusting(skipped="bias"))
    yield "repetition penalty", _so(right, Adjusting(skipped="repetition"))


PROCESSING: tuple[Hypothesis, ...] = (
    grammar_by_rows,
    rows_unmasked,
    root_counted_twice,
    penalty_not_by_path,
    parameter_skipped,
)
