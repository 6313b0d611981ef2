"""Failures alike in backend, identity and kind, as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from treeproof.contract.event import Checked, Diagnosed, Reduced, Sanitized
from treeproof.contract.failure import Failure, Identity
from treeproof.engine.gathered import Key

SEVERITIES = ("crash", "hang", "wrong")
"""Worst first."""


@dataclass(frozen=True)
class FailureGroup:
    """One distinct failure. `failure` and `checked` are about `case`, the smallest one known."""

    backend: str
    identity: Identity
    kind: str
    checks: int
    """Drawn cases that failed so on this backend."""
    case: str
    failure: Failure
    read: Callable[[], Checked]
    """Reads `checked`, which may be large, from the run's folder."""
    kept: Path
    """Where its reproducer is written."""
    reduced: Reduced | None = None
    diagnosed: Diagnosed | None = None
    """Its cause, where evidence of it could be gathered; `failure.cause` is its name."""
    sanitized: Sanitized | None = None
    """What compute-sanitizer said of the case, where it was asked."""

    @property
    def checked(self) -> Checked:
        """The check with all that it saw. Raises FileError where it is not on disk any more."""
        return self.read()

    @property
    def reproducer(self) -> Path | None:
        """None while the run is not finished."""
        return self.kept if self.kept.exists() else None

    @property
    def key(self) -> Key:
        return (self.backend, self.identity, self.kind)
