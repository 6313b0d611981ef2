"""A prefix that an engine has kept, found again by less than all of its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from treeproof.diagnosis.engine import Columns
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.world import World


@hypothesis(
    "prefix-key-short",
    "a kept prefix is looked up by some of its tokens, so that another one is taken for it",
    "forward",
    narrow="no",
)
def prefix_key_short(right: World) -> Iterator[tuple[str, World]]:
    page = right.ground.page
    choices: dict[str, Columns] = {
        "all but the last": lambda p: range(p - 1),
        "all but the first": lambda p: range(1, p),
        "the first alone": lambda p: range(p)[:1],
        "the last alone": lambda p: range(p)[-1:],
        "its length alone": lambda p: (),
        "whole pages alone": lambda p: range(p // page * page),
        "the first page alone": lambda p: range(p)[:page],
    }
    for detail, looked_up in choices.items():
        yield detail, replace(right, looked_up=looked_up)


KEPT_PREFIX: tuple[Hypothesis, ...] = (prefix_key_short,)
