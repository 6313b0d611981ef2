"""Why a script ends before its last step: something is wrong, or cannot be asked of this backend."""

from __future__ import annotations

from collections.abc import Sequence

from treeproof.contract.failure import Failure
from treeproof.engine.checks.trial import Trial


class Wrong(Exception):
    """A stage did something wrong: the failures are noted, and the script ends here."""


class Refused(Exception):
    """A round of the script lies outside the backend's capabilities."""


def stop_at(trial: Trial, failures: Sequence[Failure]) -> None:
    """Note what is wrong, if anything is, and go no further."""
    if failures:
        trial.note(*failures)
        raise Wrong
