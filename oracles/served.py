"""How much of a run of tokens is served: the shortest beginning that ends the request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ending:
    """Where one request ends; `before` is text served earlier, `pieces` the text of each token."""

    budget: int
    stop_tokens: frozenset[int]
    stop_strings: tuple[str, ...]
    before: str
    pieces: Sequence[str]


def served(run: Sequence[int], ending: Ending) -> tuple[tuple[int, ...], str]:
    """The tokens served, and why there are no more: "string", "token", "length" or "running"."""
    for end in range(1, len(run) + 1):
        new = "".join(ending.pieces[token] for token in run[:end])
        text = ending.before + new
        # A stop string counts where its last character is new.
        if any(
            text[: len(text) - len(new) + upto].endswith(stop)
            for stop in ending.stop_strings
            for upto in range(1, len(new) + 1)
        ):
            return tuple(run[:end]), "string"
        if run[end - 1] in ending.stop_tokens:
            return tuple(run[:end]), "token"
        if end == ending.budget:
            return tuple(run[:end]), "length"
    return tuple(run), "running"
