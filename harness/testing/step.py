"""One verify step of anything, inside one's own unit test: `check_step`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import torch

from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.case import (
    AttentionShape,
    Full,
    KVLayout,
    MaskLayout,
    Request,
    VerifyCase,
    Window,
)
from treeproof.contract.event import Checked
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import Attended
from treeproof.contract.ledger import SlotLedger
from treeproof.oracles.kv import owners
from treeproof.properties import contract, kv, output
from treeproof.properties.probes.launch import Launched
from treeproof.properties.scene import Scene
from treeproof.properties.violation import Violation
from treeproof.testing.arguments import (
    Lengths,
    Parents,
    lists_a_request,
    mask_mode_of,
    page_size_of,
    requests_of,
    whole_numbers,
)
from treeproof.testing.step_metadata import (
    NEED_SLOTS,
    Findings,
    StepMetadata,
    judge_metadata,
    require_complete,
)
from treeproof.testing.step_tensors import StepTensors, cpu_tensor, flat_cache
from treeproof.testing.violated import violation


def check_step(
    parents: Parents,
    prefix_len: Lengths,
    *,
    row_of_node: Any = None,
    tokens: Any = None,
    qo_indptr: Any = None,
    q: Any = None,
    k: Any = None,
    v: Any = None,
    k_prefix: Any = None,
    v_prefix: Any = None,
    out: Any = None,
    lse: Any = None,
    scale: float | None = None,
    window: int | None = None,
    rotary: float | None = None,
    numerics: Numerics | None = None,
    slots: Any = None,
    page_size: int = 1,
    k_cache: Any = None,
    v_cache: Any = None,
    k_cache_before: Any = None,
    v_cache_before: Any = None,
    raise_on_failure: bool = True,
    **metadata: Unpack[StepMetadata],
) -> list[Failure]:
    """Hold what one verify step computed and built to the tree that it was meant for.

    The tree is the truth: `parents[i]` is the parent of node i (-1 the root's), a list of such
    lists for a batch; `prefix_len` KV-ready keys before it, the root not counted; `row_of_node`
    where rows are not in node order; `tokens` of the nodes; `qo_indptr` (B+1,) where padded rows
    follow the real ones. Everything else is judged as far as it is given:

    * `out` (T, Hq, Dv) and `lse` (T, Hq), natural log, against attention of every row on its own
      path in float64, within the rounding that `numerics` declares. Needs `q` (T, Hq, D), `k`
      (T, Hkv, D) and `v` (T, Hkv, Dv) of the rows and `k_prefix`, `v_prefix` (P, Hkv, …) in logical
      order, one a request; or `k_cache`, `v_cache` (slots, Hkv, …) and `slots`. Queries and keys are
      taken as attention got them, already rotated; where the kernel itself rotates, `rotary` is the
      base and they are given unrotated. `window` counts keys, the query's own included.
    * the tables of `StepMetadata`: masks, positions, links, slots, lists, page tables.
    * writes into the cache: `k_cache_before` and `v_cache_before` beside `k_cache` and `v_cache`
      after the step, `k` and `v`; every row's slot must hold its K and V, and no other may change.

    `slots` says which slot each logical column has: P + N numbers a request, row i's in column P + i
    (a row of `req_to_token`; more are ignored), -1 for an evicted one.

    Returns the failures, or raises TreeAttentionError where there are any and `raise_on_failure`.
    Raises ValueError where an argument cannot be used or nothing was given to judge.
    """
    __tracebackhide__ = True  # pytest shows the caller's line
    tables = {name: table for name, table in metadata.items() if table is not None}
    require_complete(tables)
    requests = requests_of(
        parents, prefix_len, prefix_name="prefix_len", tokens=tokens, row_of_node=row_of_node,
        pad_rows=_pad_rows(qo_indptr, lists_a_request("parents", parents)),
    )  # fmt: skip
    held = _slots(slots, requests)
    before = (k_cache_before, v_cache_before)
    writes = any(cache is not None for cache in before)
    _require_together(tables, tokens, held, out, lse, None if writes else (q, k, v))
    tensors = None
    if out is not None:
        tensors = StepTensors.of(requests, q, k, v, (k_prefix, v_prefix), (k_cache, v_cache), held)
    shape = _shape(tensors, scale, window, rotary)
    scene = _scene(requests, shape, held, page_size_of(page_size), tables)
    findings = Findings()
    judge_metadata(scene, tables, findings)
    if tensors is not None:
        _judge_output(scene, tensors, out, lse, numerics or Numerics(), findings)
    if writes:
        _judge_writes(scene, held, (k, v), before, (k_cache, v_cache), findings)
    if not findings.judged:
        raise ValueError(
            "nothing to judge: give out (with q, k, v and the prefix), caches before and after, or "
            f"some of {', '.join(StepMetadata.__annotations__)}"
        )
    if findings.failures and raise_on_failure:
        checked = Checked(
            case=scene.case.id, backend="check_step", cells=(),
            failures=tuple(findings.failures), recovered=tuple(findings.recovered),
        )  # fmt: skip
        raise violation(scene.case, checked)
    return findings.failures


def _pad_rows(qo_indptr: Any, trees: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Padded rows of each request: what `qo_indptr` leaves beyond its nodes."""
    if qo_indptr is None:
        return (0,) * len(trees)
    indptr = whole_numbers("qo_indptr", qo_indptr)
    if len(indptr) != len(trees) + 1 or indptr[0] != 0:
        raise ValueError(
            f"qo_indptr is {list(indptr)}: {len(trees) + 1} entries from 0 on are accepted"
        )
    padded = []
    for b, tree in enumerate(trees):
        rows = indptr[b + 1] - indptr[b]
        if rows < len(tree):
            raise ValueError(
                f"qo_indptr gives request {b} {rows} rows: its tree has {len(tree)} nodes"
            )
        padded.append(rows - len(tree))
    return tuple(padded)


def _slots(slots: Any, requests: Sequence[Request]) -> tuple[tuple[int, ...], ...] | None:
    """The slot of every column of each request, P + N of them. Raises ValueError."""
    if slots is None:
        return None
    found = lists_a_request("slots", slots)
    if len(found) != len(requests):
        raise ValueError(f"slots has {len(found)} lists for {len(requests)} requests: one each")
    held = []
    for b, (own, request) in enumerate(zip(found, requests, strict=True)):
        columns = request.prefix_len + request.num_nodes
        if len(own) < columns:
            raise ValueError(
                f"slots[{b}] has {len(own)} entries: {columns} are accepted, {request.prefix_len} of "
                f"the prefix and {request.num_nodes} of the rows"
            )
        held.append(own[:columns])
    try:
        owners(held)
    except ValueError as error:
        raise ValueError(f"slots: {error}") from None
    return tuple(held)


def _require_together(
    metadata: Mapping[str, Any],
    tokens: Any,
    slots: Any,
    out: Any,
    lse: Any,
    rows: tuple[Any, Any, Any] | None,
) -> None:
    """Nothing is given that would be judged by nothing, or could not be judged.

    `rows` are q, k and v, where only an output would judge them.
    """
    if "draft_token" in metadata and tokens is None:
        raise ValueError("draft_token needs tokens, those of the tree's nodes")
    for name in NEED_SLOTS:
        if name in metadata and slots is None:
            raise ValueError(f"{name} needs slots, the slot of every column")
    if lse is not None and out is None:
        raise ValueError("lse needs out, which was not given")
    if out is None and rows is not None:
        for name, value in zip("qkv", rows, strict=True):
            if value is not None:
                raise ValueError(f"{name} is given and out is not: nothing would judge it")


def _shape(
    tensors: StepTensors | None, scale: float | None, window: int | None, rotary: float | None
) -> AttentionShape:
    """The layer as the tensors show it; without tensors any layer with this window will do."""
    visibility = Full() if window is None else Window(width=window)
    if tensors is None:
        return AttentionShape(
            num_q_heads=1, num_kv_heads=1, head_dim=64, v_head_dim=64, visibility=visibility
        )
    return AttentionShape(
        num_q_heads=tensors.q.shape[1],
        num_kv_heads=tensors.k.shape[1],
        head_dim=tensors.q.shape[2],
        v_head_dim=tensors.v.shape[2],
        dtype=str(tensors.q.dtype).removeprefix("torch."),
        scale=scale,
        rotary=rotary,
        visibility=visibility,
    )


def _scene(
    requests: tuple[Request, ...],
    shape: AttentionShape,
    slots: tuple[tuple[int, ...], ...] | None,
    page_size: int,
    metadata: Mapping[str, Any],
) -> Scene:
    """The step as judges see it: a case of its size, with the caller's own slots."""
    padded = any(request.pad_rows for request in requests)
    held = slots is not None and any(0 in own for own in slots)
    pad_slot = 0 if padded and not held else -1  # padding may be sent to slot 0 if that is free
    columns = [request.prefix_len + request.num_nodes for request in requests]
    # Judges go by `slots`, wherever those lie: the cache of the case need not reach so far.
    pages = (pad_slot == 0) + sum(-(-n // page_size) for n in columns)
    lanes = min(shape.head_dim, shape.v_head_dim)
    if pages * page_size > 1 << lanes:
        raise ValueError(
            f"parents and prefix_len make {sum(columns)} columns: with a head dim of {lanes} at most "
            f"{1 << lanes} are accepted"
        )
    case = VerifyCase(
        requests=requests,
        shape=shape,
        layout=KVLayout(page_size=page_size, num_slots=pages * page_size, pad_slot=pad_slot),
        mask=MaskLayout(
            mode=mask_mode_of(metadata.get("mask_mode", "FULL_MASK")),
            fill_prefix=metadata.get("fill_prefix", True),
        ),
    )
    ledger = SlotLedger.of(case)
    if slots is not None:
        ledger = SlotLedger.named(case, slots)
    return Scene(case, ledger, torch.device("cpu"))


def _judge_output(
    scene: Scene, tensors: StepTensors, out: Any, lse: Any, numerics: Numerics, findings: Findings
) -> None:
    truth = tensors.truth(scene)
    given = Attended(
        out=cpu_tensor("out", out), lse=None if lse is None else cpu_tensor("lse", lse)
    )
    try:
        attended = contract.valid_attended(given, scene)
        contract.require_finite(contract.not_finite(attended.out, scene), scene, "your")
    except Violation as violation:
        findings.add([violation.failure])
        return
    usual = Capabilities()
    limit = output.bounds(scene, truth, numerics, usual)
    failures, _ = output.judge(scene, truth, limit, attended.out, attended.lse, usual)
    findings.add(failures)


def _judge_writes(
    scene: Scene,
    slots: Any,
    rows: tuple[Any, Any],
    before: tuple[Any, Any],
    after: tuple[Any, Any],
    findings: Findings,
) -> None:
    """The cache before and after the step."""
    names = ("k", "v", "k_cache_before", "v_cache_before", "k_cache", "v_cache")
    given = (*rows, *before, *after)
    for name, value in (*zip(names, given, strict=True), ("slots", slots)):
        if value is None:
            raise ValueError(f"judging writes needs {name}, which was not given")
    k, v = (cpu_tensor(name, value) for name, value in zip(names, rows, strict=False))
    caches = [flat_cache(name, value) for name, value in zip(names[2:], given[2:], strict=True)]
    for name, cache, like in zip(names[2:], caches, (k, v, k, v), strict=True):
        if cache.shape[1:] != like.shape[1:] or cache.dtype != like.dtype:
            raise ValueError(
                f"{name} is {cache.dtype} of heads {tuple(cache.shape[1:])}: accepted are "
                f"{like.dtype} and {tuple(like.shape[1:])}, as of the rows"
            )
    done = Launched(
        Attended(out=k), k, k, v, k, v, k, v, caches[0], caches[1], caches[2], caches[3]
    )
    findings.add(kv.judge_writes(scene, done))
