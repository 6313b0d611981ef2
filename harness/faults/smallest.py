"""Small cases written by hand: what a report boils down to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from treeproof.contract.case import Request, VerifyCase, pages_needed
from treeproof.contract.layout import KVLayout, MaskLayout
from treeproof.contract.script import Step
from treeproof.contract.shape import AttentionShape, Full, Window
from treeproof.contract.tree import CandidateTree

SERVED: dict[str, Any] = {"head_dims": (16, 16), "rotary": 100.0}
"""Of cases with a script: what a small model that serves them has."""

FORK = (-1, 0, 0)
CHAIN = (-1, 0, 1)


def request(
    parents: Sequence[int] = (-1,),
    prefix: int = 0,
    *,
    tokens: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    pad_rows: int = 0,
) -> Request:
    """A request whose node i carries token i and lies in row i, unless given."""
    nodes = range(len(parents))
    return Request(
        tree=CandidateTree(tuple(nodes if tokens is None else tokens), tuple(parents)),
        row_of_node=tuple(nodes if rows is None else rows),
        prefix_len=prefix,
        pad_rows=pad_rows,
    )


def case(
    *requests: Request,
    window: int | None = None,
    page_size: int = 1,
    heads: tuple[int, int] = (1, 1),
    head_dims: tuple[int, int] = (8, 8),
    mask: MaskLayout | None = None,
    layout: dict[str, Any] | None = None,
    spare_pages: int = 0,
    seed: int = 0,
    script: Sequence[Step] = (),
    **shape: Any,
) -> VerifyCase:
    """A case of these requests, all else at its simplest; `layout` changes fields of `KVLayout`.

    `heads` are (query, key-value) heads, `head_dims` those of keys and values. `shape` sets further
    fields of `AttentionShape`.
    """
    of_cache = msgspec.structs.replace(
        KVLayout(page_size=page_size, num_slots=page_size), **(layout or {})
    )
    pages = pages_needed(requests, of_cache) + spare_pages
    return VerifyCase(
        requests=requests,
        shape=AttentionShape(
            num_q_heads=heads[0],
            num_kv_heads=heads[1],
            head_dim=head_dims[0],
            v_head_dim=head_dims[1],
            visibility=Full() if window is None else Window(width=window),
            **shape,
        ),
        layout=msgspec.structs.replace(of_cache, num_slots=pages * page_size),
        mask=mask or MaskLayout(),
        seed=seed,
        script=tuple(script),
    )


def script(*requests: Request, steps: Sequence[Step], **settings: Any) -> VerifyCase:
    """A case with a script, and pages to spare for it; `settings` as `case` takes them."""
    return case(*requests, script=steps, **{"spare_pages": 4, **SERVED, **settings})
