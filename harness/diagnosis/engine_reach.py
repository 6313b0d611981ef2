"""Which rows of an engine move with which token, by who reads whom layer after layer."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np

from treeproof.properties.probes.influence import Influence, changed_rows, edges

Place: TypeAlias = tuple[int, int]
"""Request and column: a token of a prefix, or a row behind it."""

Line: TypeAlias = tuple[tuple[Place, Place], ...]
"""What a row reads: the tokens of each K and of its V."""

Heads: TypeAlias = tuple[int, ...] | None
"""Heads of a model; None: all of one that is not known."""

Layer: TypeAlias = tuple[tuple[tuple[Heads, Line], ...], ...]
"""What each real row of the launch reads, and with which heads."""

_Reach: TypeAlias = dict[Place, frozenset[Place]]


@lru_cache(maxsize=1024)
def moves_of(
    prefix_lens: tuple[int, ...],
    rows: tuple[Place, ...],
    told: tuple[tuple[int, ...], ...],
    layers: tuple[Layer, ...],
) -> Influence:
    """`rows`: the real ones of the launch, those of a request together. `told`: columns of each prefix with which it moves at all.

    A single layer whose heads are not known stands for as many as it takes.
    """
    reach = _reach(prefix_lens, rows, told, layers)
    place = [[one for one in rows if one[0] == b] for b in range(len(prefix_lens))]
    counts = [len(own) for own in place]
    moved = tuple(np.zeros((count, count), dtype=bool) for count in counts)
    for turn in range(max(counts)):
        changed = changed_rows(counts, turn)
        tokens = {place[b][row] for b, row in changed}
        for b, row in changed:
            moved[b][:, row] |= [not tokens.isdisjoint(reach[one]) for one in place[b]]
    columns = tuple(edges(p) for p in prefix_lens)
    prefix = tuple(
        np.array([[(b, c) in reach[one] for c in at] for one in place[b]], dtype=bool).reshape(
            counts[b], len(at)
        )
        for b, at in enumerate(columns)
    )
    strangers = {
        (b, row, other)
        for b, own in enumerate(place)
        for row, one in enumerate(own)
        for other, at in enumerate(columns)
        if other != b and any((other, c) in reach[one] for c in at)
    }
    return Influence(moved, columns, prefix, tuple(sorted(strangers)))


def _reach(
    prefix_lens: tuple[int, ...],
    rows: tuple[Place, ...],
    told: tuple[tuple[int, ...], ...],
    layers: tuple[Layer, ...],
) -> _Reach:
    """The tokens that the logits of each row follow from; of prefixes, those that are changed."""
    reach: _Reach = {row: frozenset([row]) for row in rows}
    held = _prefixes(prefix_lens, told, upto=False)
    known = all(heads is not None for line in layers[0] for heads, _ in line)
    for layer in layers if known else layers * (len(rows) + 1):
        memory = {**held, **reach}
        reach = {row: _after(memory, row, line) for row, line in zip(rows, layer, strict=True)}
        held = _prefixes(prefix_lens, told, upto=True)
        if not known and memory == {**held, **reach}:
            break  # further layers add nothing
    return reach


def _after(memory: _Reach, row: Place, read: tuple[tuple[Heads, Line], ...]) -> frozenset[Place]:
    found = set(memory[row])
    for _, line in read:
        for k, v in line:
            found |= memory[v]
            if len(line) > 1:  # of a single key the score is of no account
                found |= memory[k]
    return frozenset(found)


def _prefixes(
    prefix_lens: tuple[int, ...], told: tuple[tuple[int, ...], ...], *, upto: bool
) -> _Reach:
    """Changed tokens that each token of a prefix follows from: itself, or all up to it."""
    return {
        (b, column): frozenset((b, c) for c in told[b] if c == column or (upto and c < column))
        for b, p in enumerate(prefix_lens)
        for column in range(p)
    }
