"""Identities, evidence, verdicts and failures: how a judgement is written down."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

Identity = Literal["candidate", "position", "visibility", "traversal", "kv", "output", "contract"]
"""The five identities, then the two columns beside them."""

IDENTITIES: tuple[Identity, ...] = ("candidate", "position", "visibility", "traversal", "kv")
COLUMNS: tuple[Identity, ...] = get_args(Identity)

Evidence = Literal["declared", "measured"]
"""Declared: the tables a backend handed to its kernel. Measured: what the kernel did."""

PROBES: tuple[str, ...] = (
    "declared",
    "random",
    "poison",
    "tomography",
    "checksum",
    "chorus",
    "spike",
    "clock",
    "kernels",
    "walk",
    "sample",
    "law",
    "process",
    "finish",
    "commit",
    "merge",
    "draft",
    "malformed",
    "influence",
    "model",
    "tails",
    "metamorphic",
    "stale",
    "captured",
    "memory",
    "rounds",
    "guard",
)
"""What gathers evidence. Each can be switched off, and each sees a fault that no other does."""
ATTENTION: frozenset[str] = frozenset(
    ("random", "poison", "tomography", "checksum", "chorus", "spike", "clock", "kernels")
)
"""Those of them that look at launches of attend and at nothing else."""

OTHER_CASES = frozenset({"metamorphic", "stale", "captured", "malformed", "model", "guard"})
"""Probes that run a backend on other cases than the one that is checked."""

Status = Literal["pass", "fail", "tie", "unsupported", "unavailable", "not-checked"]

Severity = Literal["wrong", "crash", "hang"]


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One violated statement. `row` and `column` are local to the request; None: not about one.

    Columns count logical indices: 0 to P-1 are the prefix, P + i is the key of row i.
    """

    identity: Identity
    kind: str
    evidence: Evidence
    stage: str
    message: str
    request: int | None = None
    row: int | None = None
    column: int | None = None
    expected: str = ""
    actual: str = ""
    cause: str = ""
    severity: Severity = "wrong"
    probe: str = ""
    """Which of `PROBES` saw it; empty: the contract of a stage that ran before any of them."""

    def __post_init__(self) -> None:
        # Messages quote what a backend raised, and that may be text which no file can hold.
        for name in ("message", "expected", "actual", "cause"):
            text = getattr(self, name)
            if not text.isascii():
                writable = text.encode("utf-8", "backslashreplace").decode("utf-8")
                msgspec.structs.force_setattr(self, name, writable)

    @property
    def key(self) -> tuple[str, str]:
        """(identity, kind): with the backend's name, what makes two failures the same one."""
        return (self.identity, self.kind)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one identity by one kind of evidence, for one backend on one case."""

    identity: Identity
    evidence: Evidence
    status: Status
    stage: str
    """The stage that produced the evidence, so the stage that is judged."""
    reason: str = ""


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """The projection of the tree that one identity's evidence determined, a list a request.

    `values[b][i]` belongs to row i: a parent row (`what="parents"`, -1 root), a depth
    (`what="depths"`), a token (`what="tokens"`) or a slot's row (`what="rows"`); None: not
    determined.
    """

    identity: Identity
    evidence: Evidence
    what: Literal["parents", "depths", "tokens", "rows"]
    values: tuple[tuple[int | None, ...], ...]
    source: str = ""
    """Stage and form of the table that it was read from, where an identity may have several."""

    @property
    def witness(self) -> str:
        """The evidence in words: `declared, build: masks`."""
        return ", ".join(filter(None, (self.evidence, self.source)))
