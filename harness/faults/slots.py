"""Faults of slots: where a build sends keys and values by the wrong coordinate."""

from __future__ import annotations

from collections.abc import Callable

from treeproof.contract.inputs import Candidates, VerifyInput
from treeproof.faults.fault import Fault, Plant
from treeproof.faults.smallest import FORK, case, request
from treeproof.faults.tables import builds, rewritten

Column = Callable[[int, int, int], int]
"""The column of a row, from its request's prefix, its place among the rows, and its position."""


def _sent(column: Column) -> Plant:
    """Real rows are written to the slot of the column that `column` says."""

    def rewrite(x: VerifyInput, c: Candidates) -> dict[str, object]:
        slots, positions = x.out_cache_loc.clone(), x.positions.tolist()
        for b, (first, prefix, nodes) in enumerate(
            zip(x.qo_indptr.tolist(), c.seq_lens.tolist(), c.num_nodes.tolist(), strict=False)
        ):
            table = c.req_to_token[c.request_slots[b]]
            for i in range(nodes):
                slots[first + i] = table[column(prefix, i, positions[first + i])]
        return {"out_cache_loc": slots}

    return lambda backend: rewritten(backend, rewrite)


FAULTS = tuple(
    Fault(
        family="slot-from-position",
        variant=variant,
        says=says,
        sources=("B016", "vllm-project/vllm#54498"),
        stage="build",
        identity="kv",
        evidence="declared",
        cause="slot-is-position",
        smallest=smallest,
        plant=_sent(column),
        applies=builds("out_cache_loc", "positions"),
    )
    for variant, says, smallest, column in (
        (
            "siblings-collide",
            "a row's slot is that of its position, which siblings share",
            case(request(FORK)),
            lambda prefix, i, position: position,
        ),
        (
            "lagging",
            "slots are counted from a rotary coordinate that lags behind the number of keys",
            case(request(prefix=1)),
            lambda prefix, i, position: prefix // 2 + i,
        ),
    )
)
