"""Faults of a mask's layout: right bits, laid where the launch does not look for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Evidence, Identity
from treeproof.contract.inputs import Candidates, VerifyInput
from treeproof.contract.layout import MaskLayout, MaskMode
from treeproof.faults.fault import Fault
from treeproof.faults.seeing import Sees, path, seeing
from treeproof.faults.smallest import case, request
from treeproof.faults.tables import builds, rewritten

Relaid = Callable[[VerifyInput, Candidates], Tensor]
"""The mask laid otherwise, from a right one."""


def _masks(backend: Backend) -> bool:
    return "custom_mask" in backend.consumes and builds("custom_mask", "mask_indptr")(backend)


def _laid(backend: Backend, relaid: Relaid) -> Backend:
    return rewritten(backend, lambda x, c: {"custom_mask": relaid(x, c)})


def _offset(backend: Backend, offsets: Callable[[VerifyInput, Candidates], list[int]]) -> Backend:
    def rewrite(x: VerifyInput, c: Candidates) -> dict[str, Any]:
        assert x.mask_indptr is not None
        return {"mask_indptr": x.mask_indptr.new_tensor([0, *accumulate(offsets(x, c))])}

    return rewritten(backend, rewrite)


def _lines(x: VerifyInput, c: Candidates) -> list[Tensor]:
    """(rows, bytes) uint8 of each request: a row's cells, or the bytes of its packed item."""
    assert x.custom_mask is not None
    assert x.mask_indptr is not None
    octets, size = x.custom_mask.view(torch.uint8), x.custom_mask.element_size()
    bounds = [start * size for start in x.mask_indptr.tolist()]
    return [
        octets[lo:hi].view(count, -1)
        for lo, hi, count in zip(bounds, bounds[1:], c.num_rows.tolist(), strict=False)
    ]


def _over(x: VerifyInput, lines: Sequence[Tensor]) -> Tensor:
    """The mask with these lines written over its front; what does not fit is cut off."""
    assert x.custom_mask is not None
    mask = x.custom_mask.clone()
    octets, laid = mask.view(torch.uint8), torch.cat([line.flatten() for line in lines])
    laid = laid[: len(octets)]
    octets[: len(laid)] = laid
    return mask


def _packed(x: VerifyInput) -> bool:
    return x.mask_mode is MaskMode.QLEN_ONLY_BITPACKING


def _rows_of_a_taller_buffer(x: VerifyInput, c: Candidates) -> Tensor:
    return _over(x, [torch.cat((line, line[-1:])) for line in _lines(x, c)])


def _rows_of_a_wider_buffer(x: VerifyInput, c: Candidates) -> Tensor:
    lines = _lines(x, c)
    return _over(x, lines if _packed(x) else [pad(line, (0, 1)) for line in lines])


def _padded_square(x: VerifyInput, c: Candidates) -> Tensor:
    lines = _lines(x, c)
    rows, cells = (max(line.shape[axis] for line in lines) for axis in (0, 1))
    return _over(x, [pad(t, (0, cells - t.shape[1], 0, rows - t.shape[0])) for t in lines])


def _keys_before_rows(x: VerifyInput, c: Candidates) -> Tensor:
    lines = _lines(x, c)
    return _over(x, lines if _packed(x) else [line.T for line in lines])


def _cells_of_live_rows(x: VerifyInput, c: Candidates) -> Tensor:
    lines, padding = _lines(x, c), (c.num_rows - c.num_nodes).tolist()
    return _over(
        x,
        [
            line[: len(line) - n, : line.shape[1] - (0 if _packed(x) else n)]
            for line, n in zip(lines, padding, strict=True)
        ],
    )


def _tree_cells_alone(x: VerifyInput, c: Candidates) -> Tensor:
    """Rows x rows, where rows x (prefix + rows) was asked for."""
    assert x.custom_mask is not None
    if x.mask_mode is not MaskMode.FULL_MASK:
        return x.custom_mask
    return torch.cat([line[:, -len(line) :].flatten() for line in _lines(x, c)]).view(torch.bool)


def _cut_at_the_context(x: VerifyInput, c: Candidates) -> Tensor:
    """Sized as if no request went beyond the longest prefix, which fills the context."""
    assert x.custom_mask is not None
    if x.mask_mode is not MaskMode.FULL_MASK:
        return x.custom_mask
    context = int(c.seq_lens.max())
    return x.custom_mask[: sum(len(t) * min(t.shape[1], context) for t in _lines(x, c))]


def _sizes_in_elements(x: VerifyInput, c: Candidates) -> list[int]:
    return [
        line.shape[0] * (line.shape[0] if _packed(x) else line.shape[1]) for line in _lines(x, c)
    ]


def _sizes_in_bytes(x: VerifyInput, c: Candidates) -> list[int]:
    return [line.numel() for line in _lines(x, c)]


def _sizes_of_live_rows(x: VerifyInput, c: Candidates) -> list[int]:
    padding = (c.num_rows - c.num_nodes).tolist()
    return [
        (t.shape[0] - n) * (1 if _packed(x) else t.shape[1] - n)
        for t, n in zip(_lines(x, c), padding, strict=True)
    ]


def _in_words(word: int, *, wrap: bool = False) -> Sees:
    """Rows from `word` on have no bit; or they share those of the first ones."""
    return lambda parents: [
        [[row % word for row in path(up, i) if wrap or row < word] for i in range(len(up))]
        for up in parents
    ]


_BITS = MaskMode.QLEN_ONLY_BITPACKING
_STAR_OF_9 = (-1, *[0] * 8)


def _fault(
    name: str,
    says: str,
    sources: tuple[str, ...],
    cause: str,
    plant: Callable[[Backend], Backend],
    smallest: VerifyCase,
    judged: tuple[Identity, Evidence] = ("visibility", "declared"),
) -> Fault:
    family, _, variant = name.partition(".")
    return Fault(
        family=family, variant=variant, says=says, sources=sources, stage="build",
        identity=judged[0], evidence=judged[1], cause=cause, smallest=smallest,
        plant=plant, applies=_masks,
    )  # fmt: skip


FAULTS = (
    _fault(
        "mask-offsets.elements",
        "a packed mask is indexed by elements, where it holds one item a row",
        ("B020", "flashinfer-ai/flashinfer#2201"), "mask-of-neighbour",
        partial(_offset, offsets=_sizes_in_elements),
        case(request((-1, 0)), request(), mask=MaskLayout(mode=_BITS, slack=2), seed=1),
    ),
    _fault(
        "mask-offsets.bytes",
        "a packed mask is indexed by bytes, where its items are wider than one",
        ("B020", "flashinfer-ai/flashinfer#2201"), "mask-of-neighbour",
        partial(_offset, offsets=_sizes_in_bytes),
        case(request(_STAR_OF_9), request(), mask=MaskLayout(mode=_BITS, slack=9), seed=1),
    ),
    _fault(
        "mask-offsets.of-live-rows",
        "offsets count a request's nodes, where its cells are there for padded rows too",
        ("B052",), "mask-of-neighbour",
        partial(_offset, offsets=_sizes_of_live_rows),
        case(request(pad_rows=1), request()),
    ),
    _fault(
        "mask-buffer.taller",
        "rows of a taller buffer are flattened before they are cut, so stale ones come between",
        ("B021", "NVIDIA/TensorRT-LLM#12962"), "mask-rows-of-buffer-width",
        partial(_laid, relaid=_rows_of_a_taller_buffer), case(request(), request((-1, 0))),
    ),
    _fault(
        "mask-buffer.wider", "rows lie as far apart as those of a wider buffer",
        ("B021", "NVIDIA/TensorRT-LLM#13426"), "mask-rows-of-buffer-width",
        partial(_laid, relaid=_rows_of_a_wider_buffer), case(request((-1, 0))),
    ),
    _fault(
        "mask-buffer.padded-square",
        "a mask padded to the longest request is flattened, where a ragged one is read",
        ("B023", "huggingface/text-generation-inference#3324"), "mask-rows-of-buffer-width",
        partial(_laid, relaid=_padded_square), case(request(), request((-1, 0))),
    ),
    _fault(
        "mask-buffer.keys-by-rows", "the mask is laid out keys by rows",
        ("B024", "flashinfer-ai/flashinfer#5271"), "mask-transposed",
        partial(_laid, relaid=_keys_before_rows), case(request((-1, 0))),
    ),
    _fault(
        "mask-buffer.live-rows-only",
        "cells are there for a request's nodes, where offsets and strides count padded rows too",
        ("B027", "sgl-project/sglang#9687"), "mask-rows-of-buffer-width",
        partial(_laid, relaid=_cells_of_live_rows), case(request((-1, 0), pad_rows=1)),
    ),
    _fault(
        "mask-too-short.tree-cells-alone",
        "a mask of the tree's columns alone is handed on as one with the prefix's",
        ("B024", "flashinfer-ai/flashinfer#3176"), "wrong-shape",
        partial(_laid, relaid=_tree_cells_alone), case(request(prefix=1)),
        ("contract", "measured"),
    ),
    _fault(
        "mask-too-short.at-the-context",
        "the mask is sized rows by context, and a prefix at its end leaves no columns for the tree",
        ("B026", "sgl-project/sglang#29450"), "wrong-shape",
        partial(_laid, relaid=_cut_at_the_context), case(request()),
        ("contract", "measured"),
    ),
    *(
        _fault(
            f"mask-word-overflow.{name}", says,
            ("B022", "NVIDIA/TensorRT-LLM#8586"), "mask-word-overflow",
            partial(seeing, sees=sees), case(request(parents)),
        )
        for name, says, sees, parents in (
            ("8-bits", "a row's mask is one byte: rows from 8 on are lost", _in_words(8), _STAR_OF_9),
            (
                "16-bits", "a row's mask is one word of 16 bits: rows from 16 on are lost",
                _in_words(16), (-1, *[0] * 16),
            ),
            (
                "32-bits", "a row's mask is one word of 32 bits: rows from 32 on are lost",
                _in_words(32), (-1, *[0] * 32),
            ),
            (
                "wrapped", "a shift wraps at 32 bits: rows from 32 on share the first rows' bits",
                _in_words(32, wrap=True), (-1, *[0] * 32),
            ),
        )
    ),
)  # fmt: skip
