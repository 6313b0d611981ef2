"""A drawn batch with the rows that a kernel of one width takes, as engines launch it.

Engines verify the same number of draft tokens in every request. A batch is drawn with trees of many
sizes, of which nearly all would be refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import Request, VerifyCase
from treeproof.engine.simplify import keep_nodes


@dataclass(frozen=True)
class Width:
    """What a backend says of the rows of a request; the default takes any batch."""

    most: int | None = None
    one: bool = False
    """All requests of a batch have the same number of rows."""
    padded: bool = True

    @classmethod
    def of(cls, able: Capabilities) -> Width:
        return cls(able.max_rows, not able.ragged, able.pad_rows)


def levelled(case: VerifyCase, width: Width) -> VerifyCase:
    """The first nodes of each tree, as many as `width` allows: they are a tree, too.

    Rows keep their order. Where one width is asked for, padded rows go.
    """
    if width == Width():
        return case
    nodes = [request.num_nodes for request in case.requests]
    if width.most is not None:
        nodes = [min(count, width.most) for count in nodes]
    if width.one:
        nodes = [min(nodes)] * len(nodes)
    cut = [_cut(r, count, width) for r, count in zip(case.requests, nodes, strict=True)]
    return replace(case, requests=tuple(cut))


def _cut(request: Request, nodes: int, width: Width) -> Request:
    pads = request.pad_rows if width.padded and not width.one else 0
    if width.most is not None:
        pads = min(pads, width.most - nodes)
    if nodes < request.num_nodes:
        request = keep_nodes(request, range(nodes))
    return replace(request, pad_rows=pads)


def by_width(able: Mapping[str, Capabilities]) -> dict[Width, frozenset[str]]:
    """Names of backends by the width that they take, in the order of the first of each."""
    found: dict[Width, set[str]] = {}
    for name, capabilities in able.items():
        found.setdefault(Width.of(capabilities), set()).add(name)
    return {width: frozenset(names) for width, names in found.items()}
