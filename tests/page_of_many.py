"""A run with many distinct failures of wide trees, each with all its evidence and the case that it was
drawn as."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
from report_runs import checked, leak, run_of

from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.event import CaseDrawn, Checked, Event, Read, Reduced, Shown
from treeproof.contract.failure import Failure, Recovered
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.tree import CandidateTree
from treeproof.engine.run_folder import RunFolder
from treeproof.engine.summary import Run


def many(folder: Path, failures: int, rows: int) -> Run:
    """As many distinct failures, each of another tree of `rows` rows, and reduced from two others."""
    draw = random.Random(5)
    found: list[tuple[VerifyCase, Checked]] = []
    further: list[Event] = []
    for number in range(failures):
        case, original = _case(draw, number, rows), _case(draw, number, rows, requests=2)
        (request,), tree = case.requests, case.requests[0].tree
        kind = f"reads-sibling-{number}"
        leaks: list[Failure] = [
            msgspec.structs.replace(leak(f"row {row} reads row {row - 1}", kind), row=row,
                                    column=request.prefix_len + row - 1)
            for row in range(2, rows, 3)
        ]  # fmt: skip
        verdicts = checked(case, "mine", *leaks)
        recovered = tuple(
            Recovered(identity=identity, evidence=evidence, what=what, values=(values,))
            for identity, what, values in (
                ("candidate", "tokens", tree.tokens),
                ("position", "depths", tree.depth),
                ("visibility", "parents", (-1, *(draw.randrange(i) for i in range(1, rows)))),
                ("traversal", "parents", tree.parents),
                ("kv", "rows", tuple(range(rows))),
            )
            for evidence in ("declared", "measured")
        )
        found.append((case, msgspec.structs.replace(verdicts, recovered=recovered)))
        RunFolder(folder).write_case(original)
        further += [
            _seen(case, draw),
            CaseDrawn(
                case=original.id, unit="u", tags=(), rows=(rows, rows),
                prefixes=tuple(request.prefix_len for request in original.requests),
            ),
            Reduced(
                backend="mine", identity="visibility", kind=kind, original=original.id,
                reduced=case.id, evaluations=40, seconds=1.0,
            ),
        ]  # fmt: skip
    return run_of(folder, found, further=further)


def _case(draw: random.Random, number: int, rows: int, requests: int = 1) -> VerifyCase:
    return VerifyCase(
        requests=tuple(
            Request(
                tree=CandidateTree(
                    tuple(draw.sample(range(50_000), rows)),
                    (-1, *(draw.randrange(max(0, i - 9), i) for i in range(1, rows))),
                ),
                row_of_node=tuple(range(rows)),
                prefix_len=draw.randrange(400),
            )
            for _ in range(requests)
        ),
        shape=AttentionShape(num_q_heads=2, num_kv_heads=1, head_dim=16, v_head_dim=16),
        layout=KVLayout(page_size=16, num_slots=1024, order="shuffled"),
        seed=number,
    )


def _seen(case: VerifyCase, draw: random.Random) -> Shown:
    """Every field filled in, as of a backend all of whose stages are its own: errors of two heads, what each
    row read and was told to read in three forms, writes, positions, slots and links."""
    (request,), slots = case.requests, SlotLedger.of(case).row_slots(0)
    rows = request.num_nodes
    parents = request.tree.parents

    def reads(leaks: bool) -> tuple[Read, ...]:
        found = []
        for row in range(rows):
            path = list(request.tree.path(row))
            if leaks and row % 3 == 2:
                path.append(row - 1)
            pairs = tuple((slots[i], 1.0) for i in sorted(set(path)))
            found.append(Read(prefix=float(request.prefix_len), slots=pairs))
        return tuple(found)

    def child(row: int) -> int:
        return next((i for i, parent in enumerate(parents) if parent == row), -1)

    def sibling(row: int) -> int:
        return next((i for i in range(row + 1, rows) if parents[i] == parents[row]), -1)

    return Shown(
        backend="mine",
        case=case.id,
        errors=tuple(
            tuple(float(f"{draw.random() * 9:.3g}") for _ in range(2)) for _ in range(rows)
        ),
        reads=reads(leaks=True),
        shares=tuple((round(draw.random(), 3), round(draw.random(), 3)) for _ in range(rows)),
        declared={
            form: reads(leaks=False)
            for form in ("build: custom_mask", "attend: kv_indices", "retrieve_parent_token")
        },
        writes=tuple((slot, row, row) for row, slot in enumerate(slots)),
        positions=tuple(request.prefix_len + depth for depth in request.tree.depth),
        slots=slots,
        links={
            "retrieve_index": (tuple(range(rows)),),
            "retrieve_next_token": (tuple(map(child, range(rows))),),
            "retrieve_next_sibling": (tuple(map(sibling, range(rows))),),
        },
    )
