"""KV, committed: lists of accepted rows that are read too far, or beside each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.misplacing import launch_slot, out_of_step
from treeproof.diagnosis.moving import Moves, committed, own, right_moves
from treeproof.diagnosis.world import World
from treeproof.properties.traversal import Prediction


@hypothesis(
    "over-read",
    "accepted rows are read past the path, or at the stride of verify rows",
    "commit",
)
def over_read(right: World) -> Iterator[tuple[str, World]]:
    ground = right.ground
    width = 1 + max(1, *(max(request.tree.depth) for request in ground.requests))
    strides = {
        "the widest request's rows": max(request.num_rows for request in ground.requests),
        "one less": width - 1,
        "one more": width + 1,
    }
    for detail, stride in strides.items():
        for way in ("cells past the end are left", "cells past the end name the last row",
                    "the last row goes where -1 says"):  # fmt: skip

            def moves(
                prediction: Prediction, b: int, stride: int = stride, way: str = way
            ) -> Moves:
                flat: list[int] = []
                for c, rows in enumerate(prediction.rows):
                    first = ground.case.qo_indptr[c]
                    flat += [*(first + r for r in rows), *[-1] * (width - len(rows))]
                found = []
                for j in range(len(prediction.rows[b])):
                    at = b * stride + j
                    row = flat[at] if at < len(flat) else -1
                    if row < 0 and way == "cells past the end are left":
                        continue
                    if row < 0:
                        row = ground.case.num_rows - 1
                    source = right.slots[row]
                    found.append((source, own(ground, b, j)))
                return found

            yield f"{detail}, {way}", replace(right, commits=committed(ground, moves))

    def every_row(prediction: Prediction, b: int) -> Moves:
        """As many entries as there are verify rows: those behind the path are padding, -1."""
        rows = [
            *prediction.rows[b],
            *[-1] * (ground.requests[b].num_nodes - len(prediction.rows[b])),
        ]
        first = ground.case.qo_indptr[b]
        return [
            (right.slots[first + row if row >= 0 else -1], own(ground, b, j))
            for j, row in enumerate(rows)
        ]

    yield "every row of the request moves", replace(right, commits=committed(ground, every_row))

    def past_the_path(prediction: Prediction, b: int) -> Moves:
        """Entries behind the path are read as well, and -1 names the last row of the launch."""
        every = right_moves(ground, prediction.rows[b], b)
        if b < len(prediction.rows) - 1:
            return every
        last = ground.case.num_rows - 1
        for first, rows in zip(ground.case.qo_indptr, prediction.rows, strict=False):
            behind = range(first + len(rows), min(first + width, last + 1))
            every += [(launch_slot(right, last), launch_slot(right, flat)) for flat in behind]
        return every

    yield (
        "entries past the path name the last row",
        replace(right, commits=committed(ground, past_the_path)),
    )

    def from_first_row(prediction: Prediction, b: int) -> Moves:
        entries: list[int] = []
        for c, rows in enumerate(prediction.rows):
            start = ground.case.qo_indptr[c]
            entries += [*(start + row for row in rows), *[-1] * (width - len(rows))]
        first = ground.case.qo_indptr[b]
        return [
            (launch_slot(right, row), launch_slot(right, first + j))
            for j, row in enumerate(entries[first : first + width])
            if row >= 0 and first + j < ground.case.num_rows
        ]

    yield (
        "lines begin at the request's first row",
        replace(right, commits=committed(ground, from_first_row)),
    )


@hypothesis("lists-out-of-step", "sources and targets of a move are not padded alike", "commit")
def lists_out_of_step(right: World) -> Iterator[tuple[str, World]]:
    yield (
        "targets alone are padded",
        replace(right, commits=out_of_step(right, sources_padded=False)),
    )
    yield (
        "sources alone are padded",
        replace(right, commits=out_of_step(right, sources_padded=True)),
    )


ACCEPTED_LISTS: tuple[Hypothesis, ...] = (over_read, lists_out_of_step)
