"""What a script came to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Tally:
    """Generations that had a round and came to their end, rounds, tokens."""

    requests: int = 0
    rounds: int = 0
    tokens: int = 0
    ties: int = 0
    """Tokens that rounding leaves open, and that are not those of plain decoding."""
