"""What is written down about a fault that was looked for."""

from __future__ import annotations

from typing import Literal

import msgspec

from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Evidence, Identity


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is to look at in a case."""

    requests: int
    nodes: int
    prefix: int
    padding: int

    @classmethod
    def of(cls, case: VerifyCase) -> Size:
        return cls(
            requests=len(case.requests),
            nodes=sum(r.num_nodes for r in case.requests),
            prefix=sum(r.prefix_len for r in case.requests),
            padding=sum(r.pad_rows for r in case.requests),
        )

    @property
    def tokens(self) -> int:
        """Nodes, prefix keys and padded rows of all requests: what sizes are compared by."""
        return self.nodes + self.prefix + self.padding

    def __str__(self) -> str:
        parts = [f"{self.nodes}n"]
        parts += [f"{self.prefix}p"] if self.prefix else []
        parts += [f"{self.padding}pad"] if self.padding else []
        return "+".join(parts) + (f" in {self.requests}" if self.requests > 1 else "")


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one fault in one backend."""

    fault: str
    backend: str
    identity: Identity
    evidence: Evidence
    """The check that must catch it."""
    status: Literal["killed", "elsewhere", "survived"]
    """`elsewhere`: other checks saw it and the named one never did."""
    seen: tuple[str, ...] = ()
    """Every `identity (evidence)` that saw it in the killing case, or, elsewhere, in any case."""
    cases: int = 0
    """Cases checked until it was killed; all of them where it was not."""
    seconds: float = 0.0
    """Until it was killed, drawing not included."""
    probe: str = ""
    kind: str = ""
    message: str = ""
    """Of the failure that the named check reports, on the smallest case found."""
    cause: str = ""
    """What the diagnosis says on the smallest case; empty where none was asked for."""
    candidates: tuple[str, ...] = ()
    """All causes that explain it."""
    true_cause: str = ""
    """What was planted."""
    diagnosis_seconds: float = 0.0
    known: Size
    """The smallest case known."""
    reduced: Size | None = None
    evaluations: int = 0
    reduction_seconds: float = 0.0
    minimal: bool = False
    case: VerifyCase | None = None
    """The smallest case found; the one that was drawn where it was not reduced."""

    @property
    def told(self) -> bool:
        """Whether the diagnosis named what was planted."""
        return self.cause == self.true_cause

    @property
    def as_small_as_known(self) -> bool:
        return self.reduced is not None and self.reduced.tokens <= self.known.tokens
