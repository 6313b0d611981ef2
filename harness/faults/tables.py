"""Faults of a build: some of the fields that it made are changed before anybody reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from treeproof.contract.backend import Backend, BackendUnavailable
from treeproof.contract.inputs import Candidates, VerifyInput
from treeproof.contract.ledger import SlotLedger
from treeproof.faults.fault import Applies
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import FORK, case, request
from treeproof.generate.pool import candidates

Rewrite = Callable[[VerifyInput, Candidates], Mapping[str, Any]]
"""What was built, and from what: the fields that are changed, and their wrong values."""


def rewritten(backend: Backend, rewrite: Rewrite) -> Backend:
    """The backend whose build hands on what `rewrite` makes of it."""

    def around(right: Callable[[Candidates], VerifyInput], c: Candidates) -> VerifyInput:
        built = right(c)
        return replace(built, **rewrite(built, c))

    return wrapped(backend, "build", around)


def builds(*names: str) -> Applies:
    """Whether a backend's build makes all these fields of `VerifyInput` itself."""

    def applies(backend: Backend) -> bool:
        return "build" in backend.stages and set(names) <= _made(backend.make)

    return applies


@lru_cache(maxsize=64)
def _made(make: Callable[[], Any]) -> frozenset[str]:
    """Fields that a build makes, found by building once; none where it cannot run here."""
    plain = case(request(FORK, prefix=1))
    try:
        instance = make()
    except BackendUnavailable:
        return frozenset()
    built = instance.build(candidates(plain, SlotLedger.of(plain)))
    if not isinstance(built, VerifyInput):
        return frozenset()  # a part of the fields, as a mapping: there is nothing to replace in
    return frozenset(f.name for f in fields(built) if getattr(built, f.name) is not None)
