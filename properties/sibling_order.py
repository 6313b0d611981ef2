"""Traversal: the order in which links go through the children of a row.

No law depends on it; which coin accepts which child does, and so it is what a backend says it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from treeproof.contract.capabilities import SiblingOrder
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Failure
from treeproof.properties.naming import row_name
from treeproof.properties.plans import Siblings
from treeproof.properties.traversal import recover_links

Table = Sequence[Sequence[int]]


def recover_siblings(case: VerifyCase, next_token: Table, next_sibling: Table) -> Siblings | None:
    """Declared: the children of each row, as links go through them. None where links do not describe the
    trees of the case, which is for others to tell."""
    parents = recover_links(next_token, next_sibling, [r.num_nodes for r in case.requests])
    found = []
    for b, request in enumerate(case.requests):
        if parents[b] != tuple(request.parent_rows):
            return None
        below = []
        for row in range(request.num_nodes):
            children: list[int] = []
            child = next_token[b][row]
            # A link past the last real row ends a chain here, as it does where parents are recovered.
            while 0 <= child < request.num_nodes and len(children) < request.num_nodes:
                children.append(child)
                child = next_sibling[b][child]
            below.append(tuple(children))
        found.append(tuple(below))
    return tuple(found)


def judge_siblings(case: VerifyCase, siblings: Siblings, declared: SiblingOrder) -> list[Failure]:
    """Links against the order that the backend declares, which `any` is none."""
    failures = []
    for b, request in enumerate(case.requests):
        for row, children in enumerate(siblings[b]):
            due = tuple(sorted(children, reverse=declared == "descending"))
            if declared == "any" or children == due:
                continue
            failures.append(
                Failure(
                    identity="traversal", kind="wrong-sibling-order", evidence="declared", stage="build",
                    request=b, row=row, expected=str(list(due)), actual=str(list(children)),
                    message=f"links go through the children of {row_name(request, row)} as rows "
                    f"{list(children)}, declared is sibling_order={declared!r}: {list(due)}",
                )
            )  # fmt: skip
    return failures
