"""Traversal, sampled: which coin is asked, what it is compared with, what the last token is drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from treeproof.diagnosis.drawing import Drawing
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.world import World

Ways = Iterator[tuple[str, World]]


def _so(right: World, how: Drawing) -> World:
    return replace(right, drawing=how)


@hypothesis(
    "one-coin-for-two", "the coin that refuses the drafts draws the last token as well", "sample",
    narrow="no",
)  # fmt: skip
def one_coin_for_two(right: World) -> Ways:
    yield "", _so(right, Drawing(last="refusing"))


@hypothesis(
    "coin-of-another", "the children of a row are decided by another row's coin", "sample",
    narrow="no",
)  # fmt: skip
def coin_of_another(right: World) -> Ways:
    yield "the root's", _so(right, Drawing(coin="root"))
    yield "the next row's", _so(right, Drawing(coin="next row"))
    yield "that of the row before", _so(right, Drawing(coin="row before"))


@hypothesis(
    "edge-inclusive", "a coin on the very edge counts as below it: <= in place of <", "sample",
    narrow="no",
)  # fmt: skip
def edge_inclusive(right: World) -> Ways:
    yield "where drafts are accepted", _so(right, Drawing(edge="accepts"))
    yield "where the last token is drawn", _so(right, Drawing(edge="draws"))
    yield "where a draft has no probability", _so(right, Drawing(edge="nothing"))


@hypothesis(
    "silently-greedy", "the likeliest token is taken where one is to be sampled", "sample",
    narrow="no",
)  # fmt: skip
def silently_greedy(right: World) -> Ways:
    yield "", _so(right, Drawing(greedy=True))


@hypothesis(
    "refused-not-removed", "drafts that were refused can be drawn as the last token", "sample",
    narrow="no",
)  # fmt: skip
def refused_not_removed(right: World) -> Ways:
    yield "", _so(right, Drawing(weights="all"))
    yield "all but the first", _so(right, Drawing(weights="all but the first"))


@hypothesis(
    "residual-not-renormalised",
    "the last coin is compared with what the refused drafts leave as if that added up to 1",
    "sample",
    narrow="no",
)
def residual_not_renormalised(right: World) -> Ways:
    yield "", _so(right, Drawing(weights="residual of 1"))


@hypothesis(
    "sampled-by-another-row", "after a whole path the last token is drawn by another row's law",
    "sample", narrow="no",
)  # fmt: skip
def sampled_by_another_row(right: World) -> Ways:
    yield "that of the row before", _so(right, Drawing(bonus="parent"))
    yield "that of the root", _so(right, Drawing(bonus="root"))


@hypothesis(
    "thresholds", "the thresholds of acceptance are not those that were given", "sample",
    narrow="no",
)  # fmt: skip
def thresholds(right: World) -> Ways:
    yield "they change places", _so(right, Drawing(thresholds="swapped"))
    yield "they are taken for 1", _so(right, Drawing(thresholds="ignored"))
    yield "those that are 0 are taken for 1", _so(right, Drawing(thresholds="where 0"))


@hypothesis(
    "law-of-the-draft", "a draft is weighed by the law after itself, not by its parent's", "sample",
    narrow="no",
)  # fmt: skip
def law_of_the_draft(right: World) -> Ways:
    yield "", _so(right, Drawing(of_child=True))


SAMPLING: tuple[Hypothesis, ...] = (
    one_coin_for_two,
    coin_of_another,
    edge_inclusive,
    silently_greedy,
    refused_not_removed,
    residual_not_renormalised,
    sampled_by_another_row,
    thresholds,
    law_of_the_draft,
)
