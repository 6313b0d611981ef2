"""A run with many distinct failures of wide trees, each with all its evidence."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
from report_runs import checked, leak, run_of

from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.failure import Failure, Recovered
from treeproof.contract.tree import CandidateTree
from treeproof.engine.summary import Run


def many(folder: Path, failures: int, rows: int) -> Run:
    """As many distinct failures, each of another tree of `rows` rows."""
    draw = random.Random(5)
    found = []
    for number in range(failures):
        parents = (-1, *(draw.randrange(max(0, i - 9), i) for i in range(1, rows)))
        tokens = tuple(draw.sample(range(50_000), rows))
        case = VerifyCase(
            requests=(
                Request(
                    tree=CandidateTree(tokens, parents),
                    row_of_node=tuple(range(rows)),
                    prefix_len=draw.randrange(400),
                ),
            ),
            shape=AttentionShape(num_q_heads=2, num_kv_heads=1, head_dim=16, v_head_dim=16),
            layout=KVLayout(page_size=16, num_slots=1024, order="shuffled"),
            seed=number,
        )
        kind = f"reads-sibling-{number}"
        leaks: list[Failure] = [
            msgspec.structs.replace(leak(f"row {row} reads row {row - 1}", kind), row=row,
                                    column=case.requests[0].prefix_len + row - 1)
            for row in range(2, rows, 3)
        ]  # fmt: skip
        verdicts = checked(case, "mine", *leaks)
        recovered = tuple(
            Recovered(identity=identity, evidence=evidence, what=what, values=(values,))
            for identity, what, values in (
                ("candidate", "tokens", tokens),
                ("position", "depths", case.requests[0].tree.depth),
                ("visibility", "parents", (-1, *(draw.randrange(i) for i in range(1, rows)))),
                ("traversal", "parents", parents),
                ("kv", "rows", tuple(range(rows))),
            )
            for evidence in ("declared", "measured")
        )
        found.append((case, msgspec.structs.replace(verdicts, recovered=recovered)))
    return run_of(folder, found)
