"""What a planted fault is: where it sits, who must see it, and the smallest case that shows it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Evidence, Identity

NAME = re.compile(r"[a-z0-9][a-z0-9-]*(\.[a-z0-9][a-z0-9-]*)?")

Plant = Callable[[Backend], Backend]
Applies = Callable[[Backend], bool]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One wrong thing, planted into a right backend.

    `family` and `variant` name it: `window-off-by-one.up`. Members of a family are one mistake made
    in several ways: up or down, this request or the next, all heads or one.
    """

    family: str
    variant: str = ""
    says: str
    """What is wrong, in one sentence."""
    sources: tuple[str, ...]
    """Where it was seen: a record of the log of real faults (`B031`), or owner/repo#number.

    Empty where nobody is known to have reported it.
    """
    stage: str
    """Stage of the backend that it is planted in."""
    identity: Identity
    evidence: Evidence
    """The check that must catch it; caught by others only, it counts as missed."""
    cause: str
    """What a diagnosis should say; `unknown` where there is no such hypothesis."""
    smallest: VerifyCase
    """The smallest case known to show it."""
    plant: Plant
    applies: Applies
    """Whether it can be planted into a backend, by stages, fields and capabilities."""
    larger: str = ""
    """Why no reduction ends as small as `smallest`; empty where it does, as all others should."""
    seeded: bool = False
    """Only a probe sees it whose turn goes by the seed: drawn cases are given that of `smallest`."""
    fatal: bool = False
    """It may hang or kill the process: it is checked in a worker of its own."""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(
                f"fault name {self.name!r}: accepted are names that match {NAME.pattern}"
            )

    def into(self, backend: Backend) -> Backend:
        """The backend with the fault planted, under a name that says both."""
        return replace(self.plant(backend), name=f"{backend.name}.{self.name}"[:64])

    @property
    def name(self) -> str:
        return f"{self.family}.{self.variant}" if self.variant else self.family
