"""A related case ready to run: its scene and candidates, made once for all backends."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TypeVar

from treeproof.contract.case import VerifyCase
from treeproof.contract.inputs import Candidates
from treeproof.engine.checks.trial import Trial
from treeproof.generate.pool import candidates
from treeproof.generate.related import Related
from treeproof.properties.scene import Scene

T = TypeVar("T", VerifyCase, Related)


@lru_cache(maxsize=16)
def staged(case: VerifyCase, device: str) -> tuple[Scene, Candidates]:
    scene = Scene.of(case, device)
    return scene, candidates(case, scene.ledger, device)


def first_taken(trial: Trial, ways: Iterable[T]) -> T | None:
    """The first of several cases that is inside the backend's capabilities."""
    refusal, device = trial.backend.capabilities.refusal, trial.options.device
    for way in ways:
        case = way.case if isinstance(way, Related) else way
        if refusal(case, device) is None:
            return way
    return None
