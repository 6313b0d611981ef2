"""Declared: a request's key table (slots, or pages) names the slot of every column in logical order.

One table serves all rows of a request; what each row reads of it, a mask decides. Masks and windows
count columns, so the order matters and not only the set.
"""

from __future__ import annotations

from collections.abc import Sequence

from treeproof.contract.failure import Failure
from treeproof.properties.scene import Scene
from treeproof.properties.tables import Slots

_MOST = 12
"""Wrong entries that are put into words for each request."""


def judge_key_tables(scene: Scene, name: str, tables: Sequence[Slots]) -> list[Failure]:
    """`tables[b]` are slots: the P prefix columns, or those and one a row. Evicted ones are free."""
    failures: list[Failure] = []
    for b, request in enumerate(scene.case.requests):
        columns, found = scene.ledger.columns[b], tables[b]
        prefix, every = request.prefix_len, request.prefix_len + request.num_nodes
        if len(found) not in (prefix, every):
            failures.append(
                Failure(
                    identity="visibility", kind="wrong-table-length", evidence="declared",
                    stage="build", request=b, expected=f"{prefix} or {every}",
                    actual=str(len(found)),
                    message=f"{name} covers {len(found)} keys of request {b}, expected its prefix of "
                    f"{prefix}, or {every} with its rows",
                )
            )  # fmt: skip
        wrong = [
            (c, true, slot)
            for c, (true, slot) in enumerate(zip(columns, found.tolist(), strict=False))
            if true not in (-1, slot)
        ]
        failures += [_wrong_slot(scene, name, b, *entry) for entry in wrong[:_MOST]]
    return failures


def _wrong_slot(scene: Scene, name: str, b: int, column: int, true: int, found: int) -> Failure:
    owner = scene.ledger.owner.get(found)
    holder = "nobody" if owner is None else f"column {owner[1]} of request {owner[0]}"
    return Failure(
        identity="visibility", kind="wrong-table-slot", evidence="declared", stage="build",
        request=b, column=column, expected=str(true), actual=str(found),
        message=f"{name} names slot {found} (held by {holder}) for column {column} of request {b}, "
        f"expected slot {true}",
    )  # fmt: skip
