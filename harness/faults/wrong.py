"""A table of faults that are planted alike: a line each, with what it does to its stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Evidence, Identity
from treeproof.faults.fault import Applies, Fault, Plant

Does = TypeVar("Does")


@dataclass(frozen=True)
class Wrong(Generic[Does]):
    """One line; the fields are those of `Fault`. None: as in the rest of the table."""

    family: str
    variant: str
    says: str
    cause: str
    does: Does
    smallest: VerifyCase
    sources: tuple[str, ...] = ()
    identity: Identity | None = None
    applies: Applies | None = None


def faults_of(
    table: Iterable[Wrong[Does]],
    *,
    stage: str,
    identity: Identity,
    evidence: Evidence,
    plant: Callable[[Does], Plant],
    applies: Applies,
) -> tuple[Fault, ...]:
    """The faults of a table; `plant` says how what a line does is planted."""
    return tuple(
        Fault(
            family=wrong.family,
            variant=wrong.variant,
            says=wrong.says,
            sources=wrong.sources,
            stage=stage,
            identity=wrong.identity or identity,
            evidence=evidence,
            cause=wrong.cause,
            smallest=wrong.smallest,
            plant=plant(wrong.does),
            applies=wrong.applies or applies,
        )
        for wrong in table
    )
