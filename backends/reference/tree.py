"""The selected tree as rows: parents, bounded upward walks, and links. Plain integers.

What a malformed selection gives is defined here, as SGLang's Triton builder defines it: a row whose
parent was not selected keeps its place and gets no link, and no walk is longer than `spec_steps`.
"""

from __future__ import annotations

from collections.abc import Sequence


def parent_rows(selected: Sequence[int], parent_list: Sequence[int], topk: int) -> list[int]:
    """Parent row of every row of one request; -1 for the root (row 0) and for orphans.

    `selected[j - 1]` is the pool index behind row j, `parent_list` as in `Candidates`. Where a pool
    index was selected twice the first row that holds it is the parent.
    """
    row_of_pool: dict[int, int] = {}
    for row, pool in enumerate(selected, start=1):
        row_of_pool.setdefault(pool, row)
    parents = [-1]
    for pool in selected:
        beam = pool // topk
        if beam == 0:
            parents.append(0)
        elif 0 < beam < len(parent_list):
            parents.append(row_of_pool.get(parent_list[beam], -1))
        else:
            parents.append(-1)
    return parents


def upward_walks(parents: Sequence[int], spec_steps: int) -> list[list[int]]:
    """Rows met going up from each row: itself, its parent, ..., the root left out.

    A walk ends below the root, at an orphan, or after `spec_steps` rows, so that a cycle ends too.
    Its length is the depth of the row.
    """
    walks: list[list[int]] = [[]]
    for row in range(1, len(parents)):
        walk: list[int] = []
        while row > 0 and len(walk) < spec_steps:
            walk.append(row)
            row = parents[row]
        walks.append(walk)
    return walks


def links(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """(next_token, next_sibling): first child and next sibling of each row, -1 where there is none.

    Siblings are chained in ascending row order.
    """
    next_token, next_sibling = [-1] * len(parents), [-1] * len(parents)
    for row in range(len(parents) - 1, 0, -1):
        parent = parents[row]
        if parent >= 0:
            next_sibling[row] = next_token[parent]
            next_token[parent] = row
    return next_token, next_sibling
