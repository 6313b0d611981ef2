"""KV, committed: where the next round is said to begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from treeproof.diagnosis.evidence import STRANGE, Commit
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.misplacing import launch_slot
from treeproof.diagnosis.moving import committed, right_moves
from treeproof.diagnosis.world import World
from treeproof.generate.embedding import pool_dims
from treeproof.properties.traversal import Prediction


def _boundary(right: World, boundary: Callable[[Prediction, int], int]) -> World:
    ground = right.ground
    return replace(
        right,
        commits=committed(
            ground,
            lambda prediction, b: right_moves(ground, prediction.rows[b], b),
            seq_lens=boundary,
        ),
    )


@hypothesis(
    "boundary-off-by-one", "the new boundary is one off from P + the rows accepted", "commit"
)
def boundary_off_by_one(right: World) -> Iterator[tuple[str, World]]:
    for by in (-1, 1):
        yield (
            f"{by:+d}",
            _boundary(
                right,
                lambda prediction, b, by=by: (  # type: ignore[misc]
                    right.lengths[b] + len(prediction.rows[b]) + by
                ),
            ),
        )
    ground = right.ground

    def again(prediction: Prediction, b: int) -> int:
        """Column of the last accepted draft, of the root where there is none."""
        rows = len(prediction.rows[b])
        return right.lengths[b] + rows - (rows > 1)

    yield (
        "-1, and the last accepted draft is the next root",
        replace(
            right,
            commits=committed(
                ground,
                lambda prediction, b: right_moves(ground, prediction.rows[b], b),
                seq_lens=again,
                next_root=lambda prediction, b: prediction.emitted[b][-2:][0],
            ),
        ),
    )

    def cleared(commit: Commit, prediction: Prediction) -> Commit:
        k, v = commit.k.copy(), commit.v.copy()
        for b, rows in enumerate(prediction.rows):
            first, end = ground.case.qo_indptr[b : b + 2]
            for flat in range(first + len(rows) - 1, end):
                k[launch_slot(right, flat)] = v[launch_slot(right, flat)] = STRANGE
        return replace(commit, k=k, v=v)

    yield (
        "-1, where rejected rows are cleared from",
        replace(right, commits=tuple(map(cleared, right.commits, ground.rounds))),
    )


@hypothesis(
    "boundary-optimistic",
    "the boundary is counted as if all rows, or all levels, had been accepted",
    *("commit", "positions", "slots"),
    narrow="requests",
)
def boundary_optimistic(right: World) -> Iterator[tuple[str, World]]:
    requests, ledger = right.ground.requests, right.ground.scene.ledger
    # A build of the next round that starts from where a whole path would have ended.
    levels = {
        "levels": pool_dims(right.ground.case)[1],
        "levels and the root": 1 + pool_dims(right.ground.case)[1],
    }
    for detail, ahead in levels.items():
        positions, slots = list(right.positions), list(right.slots)
        for row in right.ground.rows:
            table = ledger.req_to_token[ledger.request_slots[row.b]]
            positions[row.flat] = row.position + ahead
            slots[row.flat] = table[min(row.prefix + ahead + row.row, len(table) - 1)]
        yield f"positions, by all {detail}", replace(right, positions=tuple(positions))
        yield f"slots, by all {detail}", replace(right, slots=tuple(slots))
        both = replace(right, positions=tuple(positions), slots=tuple(slots))
        yield f"positions and slots, by all {detail}", both
    yield (
        "the longest path accepted in the batch",
        _boundary(right, lambda prediction, b: right.lengths[b] + max(map(len, prediction.rows))),
    )
    deepest = 1 + max(1, *(max(request.tree.depth) for request in requests))
    ways: dict[str, Callable[[int], int]] = {
        "": lambda b: requests[b].num_nodes,
        "padded rows included": lambda b: requests[b].num_rows,
        "the longest path": lambda b: deepest,
        "the request's longest path": lambda b: 1 + max(requests[b].tree.depth),
        "the widest request's rows": lambda b: max(request.num_rows for request in requests),
    }
    for detail, rows in ways.items():
        yield (
            detail,
            _boundary(
                right,
                lambda prediction, b, rows=rows: right.lengths[b] + rows(b),  # type: ignore[misc]
            ),
        )


BOUNDARY: tuple[Hypothesis, ...] = (boundary_optimistic, boundary_off_by_one)
