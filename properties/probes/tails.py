"""Metadata handed over as views into longer memory: guard cells around, and free cells inside.

The same numbers are laid twice, with two fills of every cell that means nothing: before and after a
tensor, in tables past their lengths, in slack of a mask. No output may tell the fills apart, and no
guard may be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from treeproof.contract.case import MaskMode
from treeproof.contract.inputs import Candidates, VerifyInput
from treeproof.properties.scene import Scene

T = TypeVar("T")

GUARD = 64
"""Cells on either side of a tensor: a cache line of bytes, so that alignment stays what it was."""


@dataclass(frozen=True)
class Guarded(Generic[T]):
    """`value` holds views; `guards` the memory before and after each, and what it was filled with."""

    value: T
    guards: Mapping[str, tuple[Tensor, Tensor]]

    def overwritten(self) -> list[str]:
        """Names of tensors before or after which something was written."""
        return [n for n, (now, was) in self.guards.items() if not torch.equal(_bytes(now), was)]


def guarded(value: T, loud: bool, free: Mapping[str, Tensor], seed: int) -> Guarded[T]:
    """A tensor or a dataclass of tensors, copied between guards; `free` masks cells that are filled too.

    Fills are 0 and, `loud`, numbers in the range of the tensor's own, drawn from the seed: whoever
    reads them is misled and does not crash. A tensor alone goes by the name `tensor`.
    """
    alone = isinstance(value, Tensor)
    own: dict[str, Tensor] = {"tensor": value} if alone else tensors_of(value)  # type: ignore[dict-item]
    guards, views = {}, {}
    for number, (name, tensor) in enumerate(own.items()):
        around, views[name] = _laid(tensor, loud, free.get(name), seed + number)
        guards[name] = around, _bytes(around).clone()
    made = views["tensor"] if alone else replace(cast(Any, value), **views)
    return Guarded(cast(T, made), guards)


def tensors_of(value: Any) -> dict[str, Tensor]:
    found = {f.name: getattr(value, f.name) for f in fields(value)}
    return {name: field for name, field in found.items() if isinstance(field, Tensor)}


def _laid(tensor: Tensor, loud: bool, free: Tensor | None, seed: int) -> tuple[Tensor, Tensor]:
    """(2, guard) cells around, and the view between them that holds the tensor's numbers."""
    # Slots are guarded whole: the first axis of a cache is what an index runs over.
    row = tensor[0].numel() if tensor.dim() == 3 and tensor.shape[0] else 1
    guard = GUARD * row
    size = tensor.numel()
    whole = torch.zeros(size + 2 * guard, dtype=tensor.dtype, device=tensor.device)
    if loud:
        _fill(whole, tensor, seed)
    view = whole[guard : guard + size].view(tensor.shape)
    if free is None:
        view.copy_(tensor)
    else:
        _bytes(view).copy_(torch.where(_as_bytes(free, tensor), _bytes(view), _bytes(tensor)))
    around = whole.as_strided((2, guard), (guard + size, 1))
    return around, view


def _fill(whole: Tensor, like: Tensor, seed: int) -> None:
    # Drawn where it lies: caches are large.
    device = whole.device
    generator = torch.Generator(device).manual_seed(seed % 2**63)

    def drawn(high: int, shape: torch.Size) -> Tensor:
        return torch.randint(high, shape, generator=generator, device=device)

    if like.is_floating_point():
        noise = torch.randn(whole.shape, generator=generator, device=device)
        whole.copy_(512 * noise.clamp(-0.8, 0.8))
    elif like.dtype == torch.bool:
        whole.copy_(drawn(2, whole.shape))
    elif like.dtype in (torch.uint8, torch.uint16, torch.uint32, torch.int8):
        _bytes(whole).copy_(drawn(256, _bytes(whole).shape))
    elif like.numel():
        most = like.max().long().clamp_min(1)  # the device need not tell
        whole.copy_(drawn(2**40, whole.shape) % (most + 1))
    else:
        whole.copy_(drawn(2, whole.shape))


def _bytes(tensor: Tensor) -> Tensor:
    """(..., item size) uint8: torch cannot select among all integer types on all devices."""
    return tensor.unsqueeze(-1).view(torch.uint8)


def _as_bytes(mask: Tensor, tensor: Tensor) -> Tensor:
    return mask[..., None].expand(*mask.shape, tensor.element_size())


# --- cells that mean nothing ----------------------------------------------------------------------


def free_cells(scene: Scene, x: VerifyInput) -> dict[str, Tensor]:
    """Masks of the cells of a verify input that no stage may depend on."""
    free = {"req_to_token": _unheld(scene, x.req_to_token, x.request_slots)}
    if x.kv_indices is not None and x.kv_indptr is not None and x.kv_indptr.numel():
        free["kv_indices"] = _from(x.kv_indices, int(x.kv_indptr[-1]))
    if x.custom_mask is not None and x.mask_indptr is not None and x.mask_indptr.numel():
        free["custom_mask"] = _mask_cells(scene, x.custom_mask, x.mask_indptr.tolist(), x.mask_mode)
    table, lengths = x.page_table, x.cache_seqlens
    if table is not None and lengths is not None and table.shape[:1] == lengths.shape:
        # A line a row holds slots, a line a request pages; where both would do, slots are fewer.
        page = 1 if len(lengths) == scene.num_rows else scene.case.layout.page_size
        column = torch.arange(table.shape[1], device=table.device)
        free["page_table"] = column >= -(-lengths.to(table.device)[:, None] // page)
    return free


def free_candidate_cells(scene: Scene, made: Candidates) -> dict[str, Tensor]:
    """The same of what a build is given. The mask buffer is the build's to write, all of it."""
    reached = torch.zeros_like(made.parent_list, dtype=torch.bool)
    cells = made.selected_index // made.topk
    for b, own in enumerate(cells.tolist()):
        for cell, selected in zip(own, made.selected_index[b].tolist(), strict=True):
            if selected >= made.topk:
                reached[b, cell] = True
    return {
        "parent_list": ~reached,
        "req_to_token": _unheld(scene, made.req_to_token, made.request_slots),
        "mask_buffer": torch.ones_like(made.mask_buffer, dtype=torch.bool),
    }


def _unheld(scene: Scene, table: Tensor, request_slots: Tensor) -> Tensor:
    """Cells of `req_to_token` past every request's columns, and in rows of no request.

    What evicted columns hold is undefined too, but a build may copy it into tables of its own.
    """
    free = torch.ones_like(table, dtype=torch.bool)
    for b, row in enumerate(request_slots.tolist()):
        request = scene.case.requests[b]
        free[row, : request.prefix_len + request.num_nodes] = False
    return free


def _from(tensor: Tensor, length: int) -> Tensor:
    return torch.arange(len(tensor), device=tensor.device) >= length


def _mask_cells(scene: Scene, mask: Tensor, indptr: list[int], mode: MaskMode | None) -> Tensor:
    """Slack, and prefix cells of a full mask where they may be left as they are."""
    free = _from(mask, indptr[-1])
    if (mode or scene.case.mask.mode) is MaskMode.FULL_MASK and not scene.case.mask.fill_prefix:
        for start, request in zip(indptr, scene.case.requests, strict=False):
            rows, prefix = request.num_rows, request.prefix_len
            cells = free[start : start + rows * (prefix + rows)]
            cells.view(rows, prefix + rows)[:, :prefix] = True
    return free
