"""Faults of memory: what an object keeps from one call and uses in a later one, for other requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Evidence, Identity
from treeproof.contract.inputs import Candidates, VerifyInput
from treeproof.faults.fault import Applies, Fault, Plant
from treeproof.faults.plant import Around, remembering
from treeproof.faults.smallest import CHAIN, case, request
from treeproof.faults.tables import builds

_LINKS = ("retrieve_next_token", "retrieve_next_sibling")
_LISTS = ("kv_indptr", "kv_indices")
_LINES = ("page_table", "cache_seqlens")
_NOT_PLANNED = (
    *("draft_token", "out_cache_loc", "spec_steps"),
    *("sinks", "alibi_slopes", "k_scale", "v_scale"),
)
"""What comes with every launch, and is no table."""


def _fields_kept(*names: str) -> Plant:
    """These fields are built once for each size, and handed out again for every batch of it."""

    def new() -> Around:
        kept: dict[tuple[int, int], dict[str, Tensor]] = {}

        def around(right: Callable[[Candidates], VerifyInput], c: Candidates) -> VerifyInput:
            built = right(c)
            made: dict[str, Any] = {name: getattr(built, name).clone() for name in names}
            kept.setdefault(_size(built), made)
            made = {name: field.clone() for name, field in kept[_size(built)].items()}
            return replace(built, **made)

        return around

    return lambda backend: remembering(backend, "build", new)


def _input_kept(stage: str) -> Plant:
    """A stage plans once for each number of requests and rows, and keeps to that plan."""

    def new() -> Around:
        plans: dict[tuple[int, int], VerifyInput] = {}

        def around(right: Callable[..., Any], x: VerifyInput, *rest: Any) -> Any:
            plan = plans.setdefault(_size(x), _copy(x))
            plan = replace(plan, **{name: getattr(x, name) for name in _NOT_PLANNED})
            return right(plan, *rest)

        return around

    return lambda backend: remembering(backend, stage, new)


def _size(x: VerifyInput) -> tuple[int, int]:
    """Requests and rows: what a captured graph is looked up by."""
    return len(x.seq_lens), len(x.draft_token)


def _copy(x: VerifyInput) -> VerifyInput:
    held = vars(x).items()
    tensors: dict[str, Any] = {n: value.clone() for n, value in held if isinstance(value, Tensor)}
    return replace(x, **tensors)


def _padding_kept(field: str) -> Plant:
    """A buffer of the widest batch so far: real rows are refreshed, padded ones are left alone."""

    def new() -> Around:
        buffer: list[int] = []

        def around(right: Callable[[Candidates], VerifyInput], c: Candidates) -> VerifyInput:
            built = right(c)
            fresh = getattr(built, field)
            buffer.extend(fresh.tolist()[len(buffer) :])
            padded = _padded(c)
            for row, value in enumerate(fresh.tolist()):
                buffer[row] = buffer[row] if padded[row] else value
            return replace(built, **{field: fresh.new_tensor(buffer[: len(fresh)])})

        return around

    return lambda backend: remembering(backend, "build", new)


def _padded(c: Candidates) -> list[bool]:
    """Whether each row of the batch is padding."""
    counts = zip(c.num_rows.tolist(), c.num_nodes.tolist(), strict=True)
    return [row >= real for rows, real in counts for row in range(rows)]


def _widest_batch(stage: str) -> Plant:
    """A stage runs for as many rows as its widest batch had, over tables of the batch at hand."""

    def new() -> Around:
        widest = 0

        def around(right: Callable[..., Any], x: VerifyInput, *rest: Any) -> Any:
            nonlocal widest
            widest = max(widest, len(x.draft_token))
            x.out_cache_loc[torch.arange(widest)]
            return right(x, *rest)

        return around

    return lambda backend: remembering(backend, stage, new)


def _slots_frozen() -> Plant:
    """Rows are written where the rows of the first batch were, as a captured graph has it."""

    def new() -> Around:
        first: list[Tensor] = []

        def around(right: Callable[..., Any], x: VerifyInput, *rest: Any) -> Any:
            first.append(x.out_cache_loc.clone())
            frozen = first[0][: len(x.out_cache_loc)].clamp(max=len(rest[-1]) - 1)
            return right(replace(x, out_cache_loc=frozen), *rest)

        return around

    return lambda backend: remembering(backend, "attend", new)


@dataclass(frozen=True)
class _Wrong:
    family: str
    variant: str
    says: str
    cause: str
    stage: str
    verdict: tuple[Identity, Evidence]
    plant: Plant
    applies: Applies
    smallest: VerifyCase
    sources: tuple[str, ...]


def _has(stage: str) -> Applies:
    return lambda backend: stage in backend.stages


def _builds_lists_a_row(backend: Backend) -> bool:
    return "attend" in backend.stages and builds(*_LISTS)(backend)


def _builds_lines_a_row(backend: Backend) -> bool:
    """Beside lists the table is that of the prefix, which all rows share."""
    return "attend" in backend.stages and builds(*_LINES)(backend) and not builds(*_LISTS)(backend)


def _attends(backend: Backend) -> bool:
    return "attend" in backend.stages and "out_cache_loc" in backend.consumes


_ONE = case(request())
_CHAIN = case(request(CHAIN))
_POOL = case(request(), spare_pages=30)
"""Slots of earlier batches are there as well, and belong to nobody now."""
_PADDED = case(request(pad_rows=1), spare_pages=30)
_GRAPHS = ("B052", "sgl-project/sglang#28569")

_WRONG = (
    _Wrong(
        "kept-from-earlier-call", "positions", "positions are those of an earlier batch of that size",
        "stale-plan", "build", ("position", "declared"), _fields_kept("positions"),
        builds("positions"), _CHAIN, ("B014",),
    ),
    _Wrong(
        "kept-from-earlier-call", "tokens", "tokens are those of an earlier batch of that size",
        "stale-plan", "build", ("candidate", "declared"), _fields_kept("draft_token"),
        builds("draft_token"), _ONE, ("B051",),
    ),
    _Wrong(
        "kept-from-earlier-call", "links", "links are those of an earlier batch of that size",
        "stale-plan", "build", ("traversal", "declared"), _fields_kept(*_LINKS),
        builds(*_LINKS), _CHAIN, ("B051",),
    ),
    _Wrong(
        "kept-from-earlier-call", "mask", "the mask is that of an earlier batch of that size",
        "mask-stale", "build", ("visibility", "declared"),
        _fields_kept("custom_mask", "mask_indptr"), builds("custom_mask", "mask_indptr"), _CHAIN,
        ("B028",),
    ),
    _Wrong(
        "kept-from-earlier-call", "lists", "lists are those of an earlier batch of that size",
        "stale-plan", "build", ("visibility", "declared"), _fields_kept(*_LISTS),
        _builds_lists_a_row, _CHAIN, ("B091",),
    ),
    _Wrong(
        "kept-from-earlier-call", "page-table", "table lines are those of an earlier batch",
        "stale-plan", "build", ("visibility", "declared"), _fields_kept(*_LINES),
        _builds_lines_a_row, _CHAIN, ("B091",),
    ),
    _Wrong(
        "plan-not-rebuilt", "attend", "attend keeps to the tables it planned for that size first",
        "stale-plan", "attend", ("contract", "measured"), _input_kept("attend"), _has("attend"),
        _CHAIN, ("B091",),
    ),
    _Wrong(
        "plan-not-rebuilt", "accept", "accept keeps to the tables it planned for that size first",
        "stale-plan", "accept", ("traversal", "measured"), _input_kept("accept"), _has("accept"),
        _CHAIN, ("B091",),
    ),
    _Wrong(
        "padding-not-reset", "slots", "padded rows keep the slots that live rows had before them",
        "padding-written", "build", ("kv", "declared"), _padding_kept("out_cache_loc"),
        builds("out_cache_loc"), _PADDED, ("B051", "vllm-project/vllm#56734"),
    ),
    _Wrong(
        "rows-of-widest-batch", "attend", "attend runs for more rows than its tables describe",
        "raises", "attend", ("contract", "measured"), _widest_batch("attend"), _attends, _ONE,
        _GRAPHS,
    ),
    _Wrong(
        "rows-of-widest-batch", "accept", "accept runs for more rows than its tables describe",
        "raises", "accept", ("contract", "measured"), _widest_batch("accept"), _has("accept"),
        _ONE, _GRAPHS,
    ),
    _Wrong(
        "rows-of-widest-batch", "commit", "commit runs for more rows than its tables describe",
        "raises", "commit", ("contract", "measured"), _widest_batch("commit"), _has("commit"),
        _ONE, _GRAPHS,
    ),
    _Wrong(
        "slots-frozen", "", "attend writes where the first batch wrote", "stale-plan", "attend",
        ("kv", "measured"), _slots_frozen(), _attends, _POOL, ("NVIDIA/TensorRT-LLM#17110",),
    ),
)  # fmt: skip


def _fault(wrong: _Wrong) -> Fault:
    identity, evidence = wrong.verdict
    return Fault(
        family=wrong.family,
        variant=wrong.variant,
        says=wrong.says,
        sources=wrong.sources,
        stage=wrong.stage,
        identity=identity,
        evidence=evidence,
        cause=wrong.cause,
        smallest=wrong.smallest,
        plant=wrong.plant,
        applies=wrong.applies,
    )


FAULTS = tuple(map(_fault, _WRONG))
