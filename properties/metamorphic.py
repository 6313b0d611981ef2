"""Metamorphic: what must not matter does not: row order, pages, company, padding, repetition.

A related case holds the same logical tokens, so its rows must give the same numbers: within twice
the bound of one, for each may be off by it, or to the bit where nothing about the launch changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import Attended
from treeproof.generate import related
from treeproof.generate.related import Related
from treeproof.properties.bound import Bound, natural
from treeproof.properties.naming import row_name
from treeproof.properties.scene import Scene

REPEATS = 8


@dataclass(frozen=True)
class Relation:
    """`when` finishes the sentence "changes when ...". `same_object`: after the case itself."""

    kind: str
    when: str
    ways: Callable[[VerifyCase], Iterator[Related]]
    same_object: bool = False


RELATIONS: tuple[Relation, ...] = (
    Relation("changes-with-rows", "rows come in another order", related.other_rows),
    Relation("changes-with-layout", "keys lie in other pages", related.other_layout),
    Relation("changes-with-batch", "requests come in another order", related.other_batch_order),
    Relation(
        "changes-with-company",
        "the last request comes alone, on the same object",
        related.smaller_batch,
        same_object=True,
    ),
    Relation("changes-with-branch", "the root has one more branch", related.one_more_branch),
    Relation(
        "changes-with-row-count",
        "the row comes alone, its ancestors in the prefix",
        related.rows_alone,
    ),
    Relation("changes-with-padding", "there are more padded rows", related.more_padding),
    Relation("changes-with-siblings", "the path comes as a chain", related.one_path),
)


def judge(
    scene: Scene,
    relation: Relation,
    pairs: Sequence[tuple[int, int]],
    first: Attended,
    other: Attended,
    limit: Bound,
    capabilities: Capabilities,
) -> list[Failure]:
    """`pairs` are (row of the first launch, row of the other) that must agree within twice `limit`."""
    rows, others = (torch.tensor(side, device=scene.device) for side in zip(*pairs, strict=True))
    off = (first.out[rows].double() - other.out[others].double()).abs().flatten(1)
    ratio = (off / (2 * _by_row(scene, limit.total)[rows].flatten(1))).amax(1)
    if first.lse is not None and other.lse is not None:
        a, b = natural(first.lse[rows], capabilities), natural(other.lse[others], capabilities)
        apart = (a - b).abs().nan_to_num(0.0)  # equal infinities: a row of padding
        ratio = torch.maximum(ratio, (apart / (2 * _by_row(scene, limit.lse)[rows])).amax(1))
    failures = []
    for i in (ratio > 1).nonzero().flatten().tolist()[:12]:
        b_, row = scene.rows[pairs[i][0]]
        failures.append(
            Failure(
                identity="output", kind=relation.kind, evidence="measured", stage="attend",
                request=b_, row=row,
                message=f"{row_name(scene.case.requests[b_], row)} changes when {relation.when}: by "
                f"{float(off[i].max()):.3g}, {2 * float(ratio[i]):.3g} times the bound",
            )
        )  # fmt: skip
    return failures


def _by_row(scene: Scene, limit: Tensor) -> Tensor:
    """(T, ...) float64: a limit by row of the launch; 0 on padding."""
    laid = limit.new_zeros(scene.num_rows, *limit.shape[1:])
    laid[scene.node_rows] = limit
    return laid
