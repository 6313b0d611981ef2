"""What to check, and how thoroughly."""

from __future__ import annotations

from dataclasses import dataclass

from treeproof.contract.failure import COLUMNS, PROBES, Evidence, Identity
from treeproof.diagnosis.evidence import Group
from treeproof.engine.in_flight import Entering


@dataclass(frozen=True)
class CheckOptions:
    """The columns and kinds of evidence that are wanted, on one device.

    `without` switches single (identity, evidence) checks off, `probes` names the probes that run.
    `repaired` names groups of evidence in which a build is given right fields in place of its own, to
    see what still fails then. `in_flight` is told the stage about to run. Raises ValueError where a probe is not known.
    """

    device: str = "cpu"
    profile: str = "quick"
    identities: frozenset[str] = frozenset(COLUMNS)
    evidence: frozenset[str] = frozenset({"declared", "measured"})
    without: frozenset[tuple[Identity, Evidence]] = frozenset()
    probes: frozenset[str] = frozenset(PROBES)
    repaired: frozenset[Group] = frozenset()
    in_flight: Entering | None = None

    def __post_init__(self) -> None:
        unknown = sorted(self.probes - set(PROBES))
        if unknown:
            raise ValueError(
                f"unknown probes {', '.join(unknown)}: accepted are {', '.join(PROBES)}"
            )

    @property
    def complete(self) -> bool:
        """Every prefix key and every hidden key by itself."""
        return self.profile == "nightly"

    @property
    def bulk(self) -> bool:
        """Many cases are checked: what most of them can do more cheaply, they do so."""
        return self.profile in ("gpu", "soak")

    @property
    def leaves(self) -> int | None:
        """Leaves to accept and commit in one check, evenly spread; None: every one."""
        return {"quick": 12, "gpu": 12, "soak": 12, "ci": 64}.get(self.profile)

    def due(self, seed: int, turn: int, turns: int) -> bool:
        """Whether a case does what only one in `turns` has time for; nightly every case does.

        By the seed, which a reduction keeps until the end, and not by the id, which it changes. Seed
        0 is that of cases by hand: they do everything.
        """
        return self.complete or seed == 0 or seed % turns == turn

    def wants(self, identity: Identity, evidence: Evidence) -> bool:
        return (
            identity in self.identities
            and evidence in self.evidence
            and (identity, evidence) not in self.without
        )
