"""Visibility in some heads only: they follow another statement, the others the truth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from treeproof.diagnosis.engine import Inside
from treeproof.diagnosis.hypothesis import Hypothesis, States, in_families
from treeproof.diagnosis.keys import KEYS
from treeproof.diagnosis.masks import MASKS
from treeproof.diagnosis.pages import PAGES
from treeproof.diagnosis.prefix_length import PREFIX_LENGTH
from treeproof.diagnosis.scope import some_heads
from treeproof.diagnosis.visibility import VISIBILITY
from treeproof.diagnosis.window import WINDOW
from treeproof.diagnosis.world import World

_BASES = (*VISIBILITY, *MASKS, *WINDOW, *PREFIX_LENGTH, *KEYS, *PAGES)


def _in_some_heads(base: Hypothesis) -> States:
    def states(right: World) -> Iterator[tuple[str, World]]:
        shape = right.ground.case.shape
        choices = some_heads(shape.num_q_heads, shape.group_size)
        for way, world in _statements(base, right):
            for name, heads in choices.items():
                # A case of one head cannot tell; further ones have several.
                all_alike = len(heads) == shape.num_q_heads
                part = world if all_alike else replace(world, heads=heads, others=right.seen)
                yield f"{name}: {way}", part

    return states


def _in_some_heads_of_an_engine(base: Hypothesis) -> States:
    def states(right: World) -> Iterator[tuple[str, World]]:
        model = right.ground.model
        if model is None:
            return
        layers = frozenset(range(model.layers))
        for way, world in _statements(base, right):
            for name, heads in some_heads(model.heads, 1).items():
                if len(heads) < model.heads:
                    inside = Inside(layers, heads, world.seen)
                    yield f"of an engine, {name}: {way}", replace(right, inside=inside)

    return states


def _statements(base: Hypothesis, right: World) -> Iterator[tuple[str, World]]:
    """What a hypothesis says of the keys that are read, and of nothing else."""
    for detail, world in base.states(right):
        if world.seen != right.seen and world.written is right.written:
            yield f"{base.name} ({detail})" if detail else base.name, world


HEADS: tuple[Hypothesis, ...] = (
    in_families(
        "one-head-only",
        "some heads read other keys than the others do",
        frozenset({"attend", "forward"}),
        (*map(_in_some_heads, _BASES), *map(_in_some_heads_of_an_engine, _BASES)),
    ),
)
