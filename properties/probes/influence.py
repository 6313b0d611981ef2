"""Probe 6, influence: which rows' logits move when a token changes.

For engines that give nothing away but logits. A run changes one row of every request; as many runs
as there are rows, and one for each request and edge of its prefix, tell the whole closure of who
reads whom, through all layers. A row moves where any of its logits is another number than in the run
without a change; where an engine is not deterministic, by more than four times what its repeated
runs differ by. One visible key among n moves a logit by about 1/n, and float32 shows 1 in 10^7; of
narrower logits a far key may move none, so there each token is changed to several others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from treeproof.contract.counter import address_hash

ForwardCall = Callable[[Tensor, Sequence[Tensor]], Tensor]
"""Tokens (T,) of all rows and the prefixes' (P_b,) to logits (T, vocabulary)."""

Moved = npt.NDArray[np.bool_]

_OTHERS_IF_NARROW = 4
"""Other tokens that a token is changed to, one after another, where logits have few bits."""

_WORD = 607  # address word of the other tokens


@dataclass(frozen=True)
class Influence:
    """Of each request, what moved. `rows[b]` (N_b, N_b): row i moved with row j's token.

    `columns[b]` are the prefix edges that were changed, `prefix[b]` (N_b, edges) what moved with
    them. `strangers`: (request, row, other request) whose prefix moved it.
    """

    rows: tuple[Moved, ...]
    columns: tuple[tuple[int, ...], ...]
    prefix: tuple[Moved, ...]
    strangers: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Asked:
    """What the runs start from. `starts[b]`, `counts[b]`: first flat row and rows of a request."""

    tokens: Tensor
    prefixes: tuple[Tensor, ...]
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    vocab_size: int | None
    seed: int


def influence(forward: ForwardCall, asked: Asked, repeats: int) -> Influence:
    """Change every token in turn. `repeats`: runs without a change, to learn what moves by itself."""
    first = forward(asked.tokens, asked.prefixes)
    others = 1 if first.element_size() >= 4 else _OTHERS_IF_NARROW
    base = first.double()
    noise = torch.zeros(len(base), dtype=torch.float64, device=base.device)
    for _ in range(repeats):
        again = forward(asked.tokens, asked.prefixes).double()
        noise = torch.maximum(noise, (again - base).abs().amax(1))

    def moved(tokens: Tensor, prefixes: Sequence[Tensor]) -> Moved:
        found = (forward(tokens, prefixes).double() - base).abs().amax(1) > 4 * noise
        return found.cpu().numpy()

    rows = tuple(np.zeros((count, count), dtype=bool) for count in asked.counts)
    most = max(asked.counts)
    for turn in range(most * others):
        tokens = asked.tokens.clone()
        changed = changed_rows(asked.counts, turn)
        for b, row in changed:
            at = asked.starts[b] + row
            tokens[at] = _other(asked, int(tokens[at]), turn // most, at)
        now = moved(tokens, asked.prefixes)
        for b, row in changed:
            rows[b][:, row] |= now[asked.starts[b] : asked.starts[b] + asked.counts[b]]
    return Influence(rows, *_prefixes(moved, asked))


def changed_rows(counts: Sequence[int], turn: int) -> list[tuple[int, int]]:
    """(request, row) whose tokens one run changes, at most one a request.

    Requests change rows of different numbers, so that one that sees another's shows.
    """
    most = max(counts)
    rows = [(b, (turn + b) % most) for b in range(len(counts))]
    return [(b, row) for b, row in rows if row < counts[b]]


def edges(prefix_len: int) -> tuple[int, ...]:
    """Columns of a prefix that are changed."""
    return tuple(sorted({0, prefix_len // 2, prefix_len - 1})) if prefix_len else ()


def _prefixes(
    moved: Callable[[Tensor, Sequence[Tensor]], Moved], asked: Asked
) -> tuple[tuple[tuple[int, ...], ...], tuple[Moved, ...], tuple[tuple[int, int, int], ...]]:
    columns, found, strangers = [], [], set()
    for b, prefix in enumerate(asked.prefixes):
        at = edges(len(prefix))
        seen = np.zeros((asked.counts[b], len(at)), dtype=bool)
        for place, column in enumerate(at):
            changed = prefix.clone()
            changed[column] = _other(asked, int(prefix[column]), 0, column)
            prefixes = [*asked.prefixes[:b], changed, *asked.prefixes[b + 1 :]]
            now = moved(asked.tokens, prefixes)
            for other, (start, count) in enumerate(zip(asked.starts, asked.counts, strict=True)):
                if other == b:
                    seen[:, place] = now[start : start + count]
                else:
                    own = np.flatnonzero(now[start : start + count]).tolist()
                    strangers |= {(other, row, b) for row in own}
        columns.append(at)
        found.append(seen)
    return tuple(columns), tuple(found), tuple(sorted(strangers))


def _other(asked: Asked, token: int, turn: int, place: int) -> int:
    """Another token than this one, another one at each turn."""
    if asked.vocab_size is None:
        return token ^ (1 + turn)
    step = 1 + (address_hash(asked.seed, _WORD, place) + turn) % (asked.vocab_size - 1)
    return (token + step) % asked.vocab_size
