"""What the stage `finish` is given and returns: how much of an accepted run is served, and why no more.

torch is not imported here. Symbols as in `contract.inputs`; V is the size of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

RUNNING, LENGTH, STOP_TOKEN, STOP_STRING = range(4)
"""Why a request ended; RUNNING: it goes on."""


@dataclass(frozen=True)
class StopRules:
    """Where a request ends. The first token that ends it is the last one served; where several rules
    name the same token, a stop string is the reason before a stop token, and that before the length."""

    budget: Tensor
    """(B,) tokens that may still be served, 1 and more."""
    stop_tokens: Tensor
    """(B, K) tokens that end the request; -1: none."""
    stop_strings: tuple[tuple[str, ...], ...]
    """Of each request; a string may begin in what was served before, and end inside a token."""
    served_text: tuple[str, ...]
    """Of each request, the end of what was served before this step."""
    pieces: tuple[str, ...]
    """(V,) the text of each token."""


@dataclass(frozen=True)
class Finished:
    """What `finish` returns.

    `tokens` (B, S+1): the tokens served, -1 padded. `served` (B,): how many they are, which is what
    is counted and charged. `reason` (B,): RUNNING, LENGTH, STOP_TOKEN or STOP_STRING.
    """

    tokens: Tensor
    served: Tensor
    reason: Tensor
