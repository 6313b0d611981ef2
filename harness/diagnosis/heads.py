"""Visibility in some heads only: they follow another statement, the others the truth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from treeproof.diagnosis.engine import Inside
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.keys import KEYS
from treeproof.diagnosis.masks import MASKS
from treeproof.diagnosis.pages import PAGES
from treeproof.diagnosis.prefix_length import PREFIX_LENGTH
from treeproof.diagnosis.visibility import VISIBILITY
from treeproof.diagnosis.window import WINDOW
from treeproof.diagnosis.world import World

_BASES = (*VISIBILITY, *MASKS, *WINDOW, *PREFIX_LENGTH, *KEYS, *PAGES)


@hypothesis(
    "one-head-only",
    "some heads read other keys than the others do",
    "attend",
    "forward",
    narrow="no",
)
def one_head_only(right: World) -> Iterator[tuple[str, World]]:
    shape, model = right.ground.case.shape, right.ground.model
    for detail, world, heads in _in_some(right, shape.num_q_heads, shape.group_size):
        yield detail, replace(world, heads=heads, others=right.seen)
    if model is not None:
        every = frozenset(range(model.layers))
        for detail, world, heads in _in_some(right, model.heads, 1):
            inside = Inside(every, heads, world.seen)
            yield f"of an engine, {detail}", replace(right, inside=inside)


def _in_some(right: World, count: int, group: int) -> Iterator[tuple[str, World, frozenset[int]]]:
    """What each statement says, and heads that may follow it, of `count` in groups."""
    if count == 1:
        return
    choices = {
        "the first head": {0},
        "all heads but the first": set(range(1, count)),
        "the last head": {count - 1},
        "all heads but the last": set(range(count - 1)),
        "heads of the first KV head": set(range(group)),
        "heads past the first KV head": set(range(group, count)),
        "heads of the last KV head": set(range(count - group, count)),
        "odd heads": set(range(1, count, 2)),
        "even heads": set(range(0, count, 2)),
        "the first half of the heads": set(range(count // 2)),
        "the second half of the heads": set(range(count // 2, count)),
    }
    # Of few heads many choices are the same; the first name stands for all of them.
    distinct: dict[frozenset[int], str] = {}
    for name, some in choices.items():
        if 0 < len(some) < count:
            distinct.setdefault(frozenset(some), name)
    for base in _BASES:
        for detail, world in base.states(right):
            if world.seen == right.seen or world.written is not right.written:
                continue
            way = f" ({detail})" if detail else ""
            for chosen, name in distinct.items():
                yield f"{name}: {base.name}{way}", world, chosen


HEADS: tuple[Hypothesis, ...] = (one_head_only,)
