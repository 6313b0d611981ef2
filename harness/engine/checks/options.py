"""What to check, and how thoroughly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from treeproof.contract.failure import COLUMNS, Evidence, Identity


@dataclass(frozen=True)
class CheckOptions:
    """The columns and kinds of evidence that are wanted, on one device.

    `without` switches single (identity, evidence) checks off. `in_flight` is told the stage about
    to run.
    """

    device: str = "cpu"
    profile: str = "quick"
    identities: frozenset[str] = frozenset(COLUMNS)
    evidence: frozenset[str] = frozenset({"declared", "measured"})
    without: frozenset[tuple[Identity, Evidence]] = frozenset()
    in_flight: Callable[[str], None] | None = None

    @property
    def complete(self) -> bool:
        """Every prefix key and every hidden key by itself."""
        return self.profile == "nightly"

    @property
    def leaves(self) -> int | None:
        """Leaves to accept and commit in one check, evenly spread; None: every one."""
        return {"quick": 12, "gpu": 12, "ci": 64}.get(self.profile)

    def wants(self, identity: Identity, evidence: Evidence) -> bool:
        return (
            identity in self.identities
            and evidence in self.evidence
            and (identity, evidence) not in self.without
        )
