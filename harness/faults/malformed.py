"""Faults of a build that is handed a selection which is no tree: it looks on where nothing is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from treeproof.contract.backend import Backend
from treeproof.contract.inputs import Candidates, VerifyInput
from treeproof.faults.fault import Fault
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import case, request
from treeproof.faults.tables import builds

Build = Callable[[Candidates], VerifyInput]


def _parent_of(c: Candidates, b: int, pool: int) -> int:
    """Pool index of the parent of a candidate; -1 below the root and past the pool."""
    beam = pool // c.topk
    return int(c.parent_list[b, beam]) if 0 < beam < c.parent_list.shape[1] else -1


def _orphans(c: Candidates, b: int) -> list[int]:
    """Rows whose parent was not selected."""
    own = c.selected_index[b, : int(c.num_nodes[b]) - 1].tolist()
    return [
        row for row, pool in enumerate(own, start=1) if _parent_of(c, b, pool) not in (-1, *own)
    ]


def _scan_one_too_far(right: Build, c: Candidates) -> VerifyInput:
    """The scan for a parent takes in one entry more than a request has: the next one's first."""
    hung = replace(c, selected_index=c.selected_index.clone())
    stray: list[tuple[int, int]] = []
    for b in range(len(c.num_nodes)):
        for row in _orphans(c, b):
            wanted = _parent_of(c, b, int(c.selected_index[b, row - 1]))
            if b + 1 < len(c.num_nodes) and int(c.selected_index[b + 1, 0]) == wanted:
                stray.append((b, row))
            taken = hung.selected_index[b].tolist()
            hung.selected_index[b, row - 1] = next(s for s in range(c.topk) if s not in taken)
    return _linked_past_the_end(right(hung), stray) if stray else right(c)


def _linked_past_the_end(x: VerifyInput, stray: list[tuple[int, int]]) -> VerifyInput:
    """Each of these rows becomes the first child of the row after its request's last."""
    assert x.retrieve_next_token is not None
    assert x.retrieve_next_sibling is not None
    down, right = x.retrieve_next_token.clone(), x.retrieve_next_sibling.clone()
    for b, row in stray:
        at = (b + 1) * down.shape[1]
        right[b, row] = down.view(-1)[at]
        down.view(-1)[at] = row
    return replace(x, retrieve_next_token=down, retrieve_next_sibling=right)


def _climb_without_end(right: Build, c: Candidates) -> VerifyInput:
    """Climbs from every row to the root to count its depth, which a circle never comes to."""
    for b, nodes in enumerate(c.num_nodes.tolist()):
        row_of = {pool: i for i, pool in enumerate(c.selected_index[b, : nodes - 1].tolist())}
        for pool in row_of:
            at = pool
            while at in row_of:
                at = _parent_of(c, b, at)
    return right(c)


def _plant(build: Callable[[Build, Candidates], VerifyInput]) -> Callable[[Backend], Backend]:
    return lambda backend: wrapped(backend, "build", build)


FAULTS = (
    Fault(
        family="malformed-selection",
        variant="scan-one-too-far",
        says="a row whose parent was not selected is linked below a row of the next request",
        sources=("B001", "sgl-project/sglang#36201"),
        stage="build",
        identity="traversal",
        evidence="declared",
        cause="link-to-unselected",
        smallest=case(request()),
        plant=_plant(_scan_one_too_far),
        applies=builds("retrieve_next_token", "retrieve_next_sibling"),
    ),
    Fault(
        family="malformed-selection",
        variant="climb-without-end",
        says="the climb from a row to its root never ends where parents go in a circle",
        sources=("B001", "sgl-project/sglang#7477"),
        stage="build",
        identity="contract",
        evidence="measured",
        cause="hangs",
        smallest=case(request()),
        plant=_plant(_climb_without_end),
        applies=builds("draft_token"),
        fatal=True,
    ),
)
