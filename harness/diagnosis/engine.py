"""What a statement says that a whole engine shows: what moves with which token, and the logits.

Many statements say the same of one case; what they say is worked out once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from treeproof.diagnosis.engine_logits import logits_of
from treeproof.diagnosis.engine_reach import Layer, Line, Place, moves_of
from treeproof.diagnosis.evidence import Forward
from treeproof.diagnosis.ground import Ground, Key, Seen
from treeproof.diagnosis.kept import Kept
from treeproof.generate.prefix_tokens import prefix_tokens
from treeproof.properties.probes.influence import Influence, edges

if TYPE_CHECKING:
    from treeproof.diagnosis.world import World

Columns = Callable[[int], Collection[int]]
"""Some columns of a prefix, by its length."""


@dataclass(frozen=True)
class Inside:
    """Layers and heads of an engine whose rows read `seen`, and not what the others read."""

    layers: frozenset[int]
    heads: frozenset[int]
    seen: Seen


@dataclass(frozen=True)
class EngineRun:
    """The evidence `Forward` of a world; nothing is worked out before it is asked for."""

    world: World

    @cached_property
    def moved(self) -> Influence | None:
        if self._layers is None:
            return None
        looked_up = self.world.looked_up
        told = tuple(
            tuple(c for c in edges(p) if looked_up is None or c in looked_up(p))
            for p in self._prefix_lens
        )
        return moves_of(self._prefix_lens, self._rows, told, self._layers)

    @property
    def logits(self) -> Tensor | None:
        return self._run[0]

    @property
    def limit(self) -> Tensor | None:
        return self._run[1]

    @cached_property
    def _run(self) -> tuple[Tensor, Tensor] | tuple[None, None]:
        world, model = self.world, self.world.ground.model
        if model is None or self._layers is None:
            return None, None
        return logits_of(
            model,
            self._prefixes,
            self._rows,
            tuple(token % model.vocab_size for token in world.tokens),
            tuple(world.positions[row.flat] for row in world.ground.rows),
            self._layers,
        )

    @property
    def _rows(self) -> tuple[Place, ...]:
        rows = self.world.ground.rows
        kept: tuple[Place, ...] = self.world.ground.kept(
            "places of rows", lambda: tuple((row.b, row.prefix + row.row) for row in rows)
        )
        return kept

    @property
    def _prefix_lens(self) -> tuple[int, ...]:
        return tuple(request.prefix_len for request in self.world.ground.requests)

    @cached_property
    def _prefixes(self) -> tuple[tuple[int, ...], ...]:
        """Tokens of each prefix; where prefixes are kept, of the first that is found as it is."""
        world, model = self.world, self.world.ground.model
        vocab = None if model is None else model.vocab_size
        own: tuple[tuple[int, ...], ...] = world.ground.kept(
            ("prefixes", vocab),
            lambda: tuple(tuple(t.tolist()) for t in prefix_tokens(world.ground.case, vocab)),
        )
        looked_up = world.looked_up
        if looked_up is None:
            return own
        told = [(len(t), *(t[c] for c in sorted(looked_up(len(t))))) for t in own]
        return tuple(own[told.index(one)] for one in told)

    # --- who reads what ----------------------------------------------------------------------

    @cached_property
    def _layers(self) -> tuple[Layer, ...] | None:
        """Who reads what in each layer; of a model that is not known, in all of them alike.

        None where a row reads what is no token, for an engine has no other memory; and where
        something is stated of the heads of a kernel, which are not those of an engine.
        """
        world, model = self.world, self.world.ground.model
        if world.heads is not None:
            return None
        plain = self._lines(world.seen)
        if plain is None or model is None:
            return None if plain is None else (tuple(((None, line),) for line in plain),)
        every = tuple(range(model.heads))
        whole: Layer = tuple(((every, line),) for line in plain)
        inside = world.inside
        if inside is None:
            return (whole,) * model.layers
        lines = self._lines(inside.seen)
        if lines is None:
            return None
        some = tuple(head for head in every if head in inside.heads)
        rest = tuple(head for head in every if head not in inside.heads)
        part: Layer = tuple(
            tuple((heads, line) for heads, line in ((some, a), (rest, b)) if heads)
            for a, b in zip(lines, plain, strict=True)
        )
        return tuple(part if n in inside.layers else whole for n in range(model.layers))

    def _lines(self, seen: Seen) -> list[Line] | None:
        """What each row reads; the order of keys is of no account."""
        ground, found = self.world.ground, []
        for row, keys in zip(ground.rows, seen, strict=True):
            line = _LINES.of(ground, row, keys, make=partial(_line, ground, row.b, keys))
            if line is None:
                return None
            found.append(line)
        return found


_LINES: Kept[Line | None] = Kept(8192)


def _line(ground: Ground, b: int, keys: Sequence[Key]) -> Line | None:
    places: dict[int, Place] = ground.kept("tokens of slots", partial(_places, ground))[b]
    if not all(key.k in places and key.v in places for key in keys):
        return None
    return tuple(sorted((places[key.k], places[key.v]) for key in keys))


def _places(ground: Ground) -> list[dict[int, Place]]:
    """Of each request, the token in each slot; in a shared one its own."""
    ledger = ground.scene.ledger
    return [
        {**ledger.owner, **{slot: (b, c) for c, slot in enumerate(columns) if slot >= 0}}
        for b, columns in enumerate(ledger.columns)
    ]


def same_forward(found: Forward | EngineRun, run: EngineRun) -> bool:
    """Which rows move to the last one, logits within what float32 may be off."""
    # Moves first: logits take far longer, and are seldom reached.
    if found.moved is None or run.moved is None or not _same_moves(found.moved, run.moved):
        return False
    if found.logits is None or found.logits is run.logits:
        return True
    logits, limit = run.logits, run.limit
    assert logits is not None
    assert limit is not None
    if found.limit is not None:
        limit = limit + found.limit
    return bool(((found.logits - logits).abs() <= limit).all())


def _same_moves(a: Influence, b: Influence) -> bool:
    if a is b:
        return True
    if (a.columns, a.strangers) != (b.columns, b.strangers):
        return False
    pairs = [*zip(a.rows, b.rows, strict=True), *zip(a.prefix, b.prefix, strict=True)]
    return all(np.array_equal(x, y) for x, y in pairs)
