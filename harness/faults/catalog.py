"""All planted faults, and those records of real ones that no stage reaches yet."""

from __future__ import annotations

import difflib

from treeproof.contract.backend import BackendError
from treeproof.faults import (
    batches,
    borrowed,
    candidates,
    captured,
    chain_rules,
    commits,
    companions,
    degenerate,
    drafts,
    edges,
    endings,
    engines,
    evicted,
    extends,
    frontiers,
    generators,
    guards,
    heads,
    kernels,
    last_round,
    later_layers,
    later_rounds,
    layers,
    layouts,
    lengths,
    links,
    malformed,
    mask_layouts,
    masks,
    merges,
    numbers,
    optimism,
    pages,
    pooled,
    positions,
    prefixes,
    processing,
    reads,
    sample_rules,
    samples,
    selects,
    served,
    sibling_order,
    slots,
    state,
    walk_edits,
    walks,
    windows,
    writes,
)
from treeproof.faults.fault import Fault
from treeproof.faults.further import FURTHER

RECORDS = tuple(f"B{number:03}" for number in range(1, 93))
"""The log of real faults: 92 records out of public issue trackers."""

FAULTS: tuple[Fault, ...] = (
    *windows.FAULTS,
    *evicted.FAULTS,
    *reads.FAULTS,
    *prefixes.FAULTS,
    *borrowed.FAULTS,
    *pages.FAULTS,
    *merges.FAULTS,
    *heads.FAULTS,
    *numbers.FAULTS,
    *candidates.FAULTS,
    *degenerate.FAULTS,
    *malformed.FAULTS,
    *positions.FAULTS,
    *masks.FAULTS,
    *mask_layouts.FAULTS,
    *slots.FAULTS,
    *links.FAULTS,
    *walks.FAULTS,
    *walk_edits.FAULTS,
    *commits.FAULTS,
    *frontiers.FAULTS,
    *writes.FAULTS,
    *batches.FAULTS,
    *lengths.FAULTS,
    *state.FAULTS,
    *optimism.FAULTS,
    *edges.FAULTS,
    *engines.FAULTS,
    *kernels.FAULTS,
    *layouts.FAULTS,
    *samples.FAULTS,
    *drafts.FAULTS,
    *extends.FAULTS,
    *processing.FAULTS,
    *endings.FAULTS,
    *selects.FAULTS,
    *layers.FAULTS,
    *sample_rules.FAULTS,
    *served.FAULTS,
    *companions.FAULTS,
    *chain_rules.FAULTS,
    *guards.FAULTS,
    *generators.FAULTS,
    *later_rounds.FAULTS,
    *last_round.FAULTS,
    *captured.FAULTS,
    *later_layers.FAULTS,
    *sibling_order.FAULTS,
    *pooled.FAULTS,
    *later_rounds.MORE,
    *samples.MORE,
)


class UnknownFault(BackendError):
    """No fault or family has this name. A usage error."""


def named(names: tuple[str, ...]) -> tuple[Fault, ...]:
    """Faults by name, family or record, in the order of the catalog; all of them where none is named.

    Raises UnknownFault.
    """
    if not names:
        return FAULTS
    for name in names:
        if not any(_answers(fault, name) for fault in FAULTS):
            known = sorted({word for fault in FAULTS for word in (fault.name, fault.family)})
            near = difflib.get_close_matches(name, known, 3)
            hint = f"; near it: {', '.join(near)}" if near else ""
            raise UnknownFault(f"no fault named {name!r}{hint}; `treeproof faults --list` has all")
    return tuple(f for f in FAULTS if any(_answers(f, name) for name in names))


def exactly(name: str) -> Fault:
    """The fault of this very name, a further one too. Raises UnknownFault."""
    for fault in FURTHER:
        if fault.name == name:
            return fault
    found = [fault for fault in named((name,)) if fault.name == name]
    if not found:
        members = ", ".join(fault.name for fault in named((name,)))
        raise UnknownFault(f"{name!r} is no single fault: name one of {members}")
    return found[0]


def _answers(fault: Fault, name: str) -> bool:
    return name in (fault.name, fault.family, *fault.sources)
