"""What a commit leaves in every slot, for chosen sources, targets and orders of the moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from treeproof.diagnosis.evidence import Commit
from treeproof.diagnosis.ground import Ground
from treeproof.properties.traversal import Prediction

Moves = Iterable[tuple[int, int]]
"""(source slot, target slot), all loaded before any is stored."""


def committed(
    ground: Ground,
    moves_of: Callable[[Prediction, int], Moves],
    *,
    one_by_one: bool = False,
    seq_lens: Callable[[Prediction, int], int] | None = None,
    next_root: Callable[[Prediction, int], int] | None = None,
) -> tuple[Commit, ...]:
    """One commit a round. `one_by_one`: every move sees what those before it have stored."""
    found = []
    for prediction in ground.rounds:
        content = np.arange(ground.case.layout.num_slots)
        moves = [move for b in range(len(ground.requests)) for move in moves_of(prediction, b)]
        if one_by_one:
            for source, target in moves:
                content[target] = content[source]
        elif moves:
            sources, targets = (list(side) for side in zip(*moves, strict=True))
            loaded = content[sources]
            for target, value in zip(targets, loaded, strict=True):
                content[target] = value
        lengths, roots = [], []
        for b, request in enumerate(ground.requests):
            right = request.prefix_len + len(prediction.rows[b])
            lengths.append(right if seq_lens is None else seq_lens(prediction, b))
            bonus = prediction.emitted[b][-1]
            roots.append(bonus if next_root is None else next_root(prediction, b))
        found.append(Commit(content, content, tuple(lengths), tuple(roots)))
    return tuple(found)


def moved(
    ground: Ground, slot: Callable[[int, int], int], *, keep: bool = False
) -> tuple[Commit, ...]:
    """Accepted row j of a request goes to the slot of its row j; `keep`: nothing moves at all."""

    def moves(prediction: Prediction, b: int) -> Moves:
        if keep:
            return []
        return [(slot(b, row), slot(b, j)) for j, row in enumerate(prediction.rows[b])]

    return committed(ground, moves)


def own(ground: Ground, b: int, row: int) -> int:
    """Slot of a row of a request."""
    return ground.own(b, row).v


def right_moves(ground: Ground, rows: Sequence[int], b: int) -> list[tuple[int, int]]:
    return [(own(ground, b, row), own(ground, b, j)) for j, row in enumerate(rows)]
