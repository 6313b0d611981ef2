"""Contract: what a stage does to those around it, whatever it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, combinations

import torch
from torch import Tensor

from treeproof.contract.backend import STAGES
from treeproof.contract.case import VerifyCase
from treeproof.diagnosis.evidence import Walk
from treeproof.diagnosis.hypothesis import Hypothesis, States, in_families
from treeproof.diagnosis.merging import softmerge
from treeproof.diagnosis.precision import ROUNDED_BY_ROWS
from treeproof.diagnosis.walking import most_rows
from treeproof.diagnosis.world import Contract, World

_PLACES = ("plan", *STAGES, "close")
REFUSALS = ("NotImplementedError", "ValueError")
"""Exceptions that say no on purpose. All others come from something that went wrong."""


def _breaking(kinds: tuple[str, ...], details: tuple[str, ...] = ("",)) -> States:
    """Some stage, or several, show one of these failures."""

    def states(right: World) -> Iterator[tuple[str, World]]:
        for kind in kinds:
            for detail in details:
                alone = ((place,) for place in _PLACES)
                for places in chain(alone, combinations(_PLACES, 2)):
                    contract = frozenset((kind, place, detail) for place in places)
                    where = f"{kind} in {' and '.join(places)}"
                    yield where, replace(right, contract=contract)
                    yield f"{where} after a larger batch", replace(right, again=_larger(contract))

    return states


def _larger(contract: Contract) -> Callable[[World, VerifyCase], World]:
    """Broken only after a batch of more rows on the same object."""

    def later(world: World, earlier: VerifyCase) -> World:
        more = earlier.num_rows > world.ground.case.num_rows
        return replace(world, contract=contract) if more else world

    return later


_OTHER_COUNTS = (
    "changes-with-row-count", "changes-with-siblings", "changes-with-branch", "changes-with-padding",
)  # fmt: skip
"""Relations that compare launches of different numbers of rows."""


def _row_counts(right: World) -> Iterator[tuple[str, World]]:
    for count in range(1, len(_OTHER_COUNTS) + 1):
        for kinds in combinations(_OTHER_COUNTS, count):
            contract = frozenset((kind, "attend", "") for kind in kinds)
            yield " and ".join(kinds), replace(right, contract=contract)


def _unwritten(right: World) -> Iterator[tuple[str, World]]:
    yield from _breaking(("not-finite",))(right)
    ground, width = right.ground, most_rows(right.ground)

    def zeros(b: int, walk: Walk) -> Walk:
        """accept_index is not padded with -1, and 0 is the first row of the launch."""
        behind = (-ground.case.qo_indptr[b],) * (width - len(walk.rows))
        return replace(walk, rows=(*walk.rows, *behind))

    walks = tuple(tuple(zeros(b, walk) for b, walk in enumerate(line)) for line in right.walks)
    yield "accept_index past the path is 0", replace(right, walks=walks)

    def first_kept(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_a, of_b, lse = softmerge(a, b)
        return of_a.masked_fill(lse == -torch.inf, 1.0), of_b, lse

    def second_kept(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        of_b, of_a, lse = first_kept(b, a)
        return of_a, of_b, lse

    # A merge that writes over one of its parts, and leaves out rows that no part has a key for.
    yield "a merge of nothing keeps the first part's", replace(right, merge=first_kept)
    yield "a merge of nothing keeps the second part's", replace(right, merge=second_kept)


def _hypothesis(
    name: str, says: str, kinds: tuple[str, ...], details: tuple[str, ...] = ("",)
) -> Hypothesis:
    return Hypothesis(name, says, frozenset({"contract", "again"}), _breaking(kinds, details))


CONTRACT: tuple[Hypothesis, ...] = (
    _hypothesis(
        "refuses-valid",
        "a stage says that it cannot do a case inside its declared capabilities",
        ("raises",),
        ("refusal",),
    ),
    _hypothesis("raises", "a stage fails with an exception", ("raises",), ("error",)),
    _hypothesis(
        "wrong-shape",
        "a stage returns something of another type, shape or dtype than it should",
        ("wrong-shape", "wrong-type", "wrong-dtype", "unknown-field", "malformed-table"),
    ),
    _hypothesis(
        "fell-back",
        "attend runs something else than the kernels that its backend names",
        ("other-kernel",),
    ),
    _hypothesis(
        "limit-not-guarded",
        "a case outside the declared limits is computed all the same, or refused too late",
        ("not-refused", "refused-late"),
    ),
    _hypothesis("mutates-input", "a stage changes what it was given to read", ("mutates-input",)),
    Hypothesis(
        "unwritten-output",
        "a part of the output is never written",
        frozenset({"contract", "accept", "merge"}),
        _unwritten,
    ),
    _hypothesis(
        "nondeterministic",
        "the same launch gives other bits each time",
        ("nondeterministic", "not-repeatable", "changes-with-stream"),
    ),
    _hypothesis(
        "depends-on-tail",
        "what lies past the end of a table or buffer is read",
        ("depends-on-tail",),
    ),
    in_families(
        "rows-change-numbers",
        "a row's numbers depend on how many rows come with it",
        frozenset({"contract", "attend"}),
        (_row_counts, *ROUNDED_BY_ROWS),
    ),
    _hypothesis(
        "baked-at-capture",
        "what one batch was planned or captured with is used again for the next",
        (
            "captured-lengths",
            "captured-tables",
            "captured-mask",
            "captured-positions",
            "captured-slots",
            "captured-links",
            "captured-tokens",
        ),
    ),
    _hypothesis(
        "host-decides",
        "attend asks the device, or decides by what it holds, and so cannot be captured",
        ("not-capturable",),
    ),
    _hypothesis(
        "undeclared-input",
        "a stage reads fields that it does not name in `consumes`",
        ("reads-undeclared-input",),
    ),
)
