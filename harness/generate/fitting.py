"""A case that a backend does not take, made into one that it does: the same trees and prefixes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import Request, VerifyCase, pages_needed
from treeproof.contract.layout import KVLayout, MaskMode
from treeproof.contract.shape import DTYPES, AttentionShape, Full, Window
from treeproof.generate.orders import row_of_node

ROWS_OF_A_WORD = 32


def fitted(
    case: VerifyCase, able: Capabilities, device: str, dtype: str | None = None
) -> VerifyCase | None:
    """The case with what a kernel is compiled for changed to what `able` allows.

    Dtype (unless `dtype` asks for one), head layout, head dims, cache layout, page size, window,
    scores, mask mode and row order may change, and requests after the first may go; trees and prefixes
    never do. None where no change helps.
    """
    if able.refusal(case, device) is None:
        return case
    try:
        made = _with_layout(_with_shape(_with_rows(case, able), able, dtype), able)
    except (ValueError, LookupError):
        return None
    return made if able.refusal(made, device) is None else None


def _with_rows(case: VerifyCase, able: Capabilities) -> VerifyCase:
    requests = case.requests[:1] if able.same_tree or not able.ragged else case.requests
    if not able.pad_rows:
        requests = tuple(replace(request, pad_rows=0) for request in requests)
    if able.row_order != "any":
        requests = tuple(_in_order(request, able.row_order, case.seed) for request in requests)
    longest = max(request.num_rows for request in requests)
    names = [
        mode.name for mode in MaskMode if able.mask_modes is None or mode.name in able.mask_modes
    ]
    if longest > ROWS_OF_A_WORD:
        names = [name for name in names if name != MaskMode.QLEN_ONLY_BITPACKING.name]
    mode = case.mask.mode if case.mask.mode.name in names else MaskMode[names[0]]
    layout = _roomy(_with_pad_slot(case.layout, able), requests)
    mask = replace(case.mask, mode=mode, fill_prefix=True)
    return replace(case, requests=requests, layout=layout, mask=mask)


def _with_pad_slot(layout: KVLayout, able: Capabilities) -> KVLayout:
    if layout.pad_slot in able.pad_slots:
        return layout
    return replace(layout, pad_slot=max(able.pad_slots))


def _in_order(request: Request, order: str, salt: int) -> Request:
    return replace(request, row_of_node=row_of_node(request.tree, order, salt))


def _with_shape(case: VerifyCase, able: Capabilities, dtype: str | None) -> VerifyCase:
    shape = case.shape
    changes: dict[str, Any] = {}
    if dtype is None and shape.dtype not in able.dtypes:
        changes["dtype"] = next(name for name in DTYPES if name in able.dtypes)
    if not able.gqa:
        changes["num_kv_heads"] = shape.num_q_heads
    if not able.custom_scale:
        changes["scale"] = None
    plain: dict[str, tuple[Any, Callable[[Any], bool]]] = {
        "rotary": (None, lambda value: able.rotary or value is None),
        "softcap": (None, lambda value: able.softcap or value is None),
        "sinks": (False, lambda value: able.sinks or not value),
        "alibi": (False, lambda value: able.alibi or not value),
    }
    for name, (without, takes) in plain.items():
        if not takes(getattr(shape, name)):
            changes[name] = without
    if shape.kv_dtype not in able.kv_dtypes:
        # Plain first: what is quantised besides would be one more thing that changes.
        changes["kv_dtype"] = min(able.kv_dtypes, key=lambda name: (name is not None, str(name)))
    if able.head_dims is not None and not {shape.head_dim, shape.v_head_dim} <= able.head_dims:
        lanes = _lanes(case.layout.num_slots, able.head_dims)
        changes |= {"head_dim": lanes, "v_head_dim": lanes}
    shape = replace(shape, **changes, visibility=_visibility(case, able))
    layout = replace(case.layout, evicted=case.layout.evicted and shape.window is not None)
    return replace(case, shape=shape, layout=layout)


def _lanes(slots: int, allowed: set[int] | frozenset[int] | Any) -> int:
    """The fewest that tell so many slots apart; raises LookupError where none do."""
    able = sorted(dim for dim in allowed if slots <= 1 << dim)
    return able[0]


def _visibility(case: VerifyCase, able: Capabilities) -> Full | Window:
    shape: AttentionShape = case.shape
    if shape.window is None:
        if able.full:
            return Full()
        # Wide enough to cut nothing.
        most = max(request.prefix_len + request.num_nodes for request in case.requests)
        return Window(width=max(most + 1, able.min_window))
    if not able.windows:
        return Full()
    return Window(width=max(shape.window, able.min_window))


def _with_layout(case: VerifyCase, able: Capabilities) -> VerifyCase:
    layout = case.layout
    if layout.storage not in able.cache_layouts:
        layout = replace(layout, storage=min(able.cache_layouts))
        case = replace(case, layout=layout)
    if able.page_sizes is None or layout.page_size in able.page_sizes:
        return case
    page = min(able.page_sizes, key=lambda size: (abs(size - layout.page_size), size))
    shared = layout.shared_prefix // page * page
    slots = -(-layout.num_slots // page) * page
    made = replace(layout, page_size=page, num_slots=slots, shared_prefix=shared)
    return replace(case, layout=_roomy(made, case.requests))


def _roomy(layout: KVLayout, requests: tuple[Request, ...]) -> KVLayout:
    slots = max(layout.num_slots, pages_needed(requests, layout) * layout.page_size)
    return replace(layout, num_slots=slots)
