"""Faults of numbers: scores, weights and outputs that are made of the right keys in a wrong way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.faults.attending import FIVE, each, edit, fault_of_attend, launch
from treeproof.faults.fault import Fault, Plant
from treeproof.faults.partly import in_later_rows, when
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import case, request

_PAIR = (-1, 0)
_OF_FOUR = (-1, 0, 1, 2)


def _shape(**changes: Any) -> Plant:
    def change(x: VerifyInput) -> VerifyInput:
        return replace(x, shape=msgspec.structs.replace(x.shape, **changes))

    return launch(change)


def _scale_twice(x: VerifyInput) -> VerifyInput:
    squared = x.shape.score_scale**2
    return replace(x, shape=msgspec.structs.replace(x.shape, scale=squared))


def _folded(dtype: torch.dtype) -> Plant:
    """Queries are multiplied by the scale and rounded before they meet a key."""

    def around(
        right: Callable[..., Attended], x: VerifyInput, q: Tensor, *tensors: Tensor
    ) -> Attended:
        rounded = (q.float() * x.shape.score_scale).to(dtype).to(q.dtype)
        unscaled = msgspec.structs.replace(x.shape, scale=1.0)
        return right(replace(x, shape=unscaled), rounded, *tensors)

    return lambda backend: wrapped(backend, "attend", around)


def _in_base_2(right: Callable[..., Attended], *arguments: Any) -> Attended:
    done = right(*arguments)
    return (
        done
        if done.lse is None
        else replace(done, lse=done.lse / torch.log(done.lse.new_tensor(2)))
    )


_COARSE = {
    "direct-mask": edit(
        (
            "torch.bmm(p.view(*flat, keys), values)",
            "torch.bmm(p.view(*flat, keys).bfloat16(), values.bfloat16()).float()",
        )
    ),
    "cascade": edit(
        (
            "out[own] = weights @ values.transpose(1, 2)",
            "out[own] = (weights.bfloat16() @ values.transpose(1, 2).bfloat16()).float()",
        )
    ),
    "page-table": edit(
        ("torch.bmm(weights, values)", "torch.bmm(weights.bfloat16(), values.bfloat16()).float()")
    ),
    "swa-window": edit(
        (
            "torch.bmm(weights.view(rows * kv_heads, -1, length), values)",
            "torch.bmm(\n        weights.view(rows * kv_heads, -1, length).bfloat16(),"
            " values.bfloat16()\n    ).float()",
        )
    ),
    "topology": edit(
        (
            "torch.bmm(weights.view(len(near), group, -1)[:, :, keys:], listed[1])",
            "torch.bmm(\n        weights.view(len(near), group, -1)[:, :, keys:].bfloat16(),"
            " listed[1].bfloat16()\n    ).float()",
        )
    ),
}


def _from_four_rows(plants: dict[str, Plant]) -> dict[str, Plant]:
    def many(x: VerifyInput, q: Tensor) -> bool:
        return int(x.qo_indptr.diff().max()) >= len(_OF_FOUR)

    def of(plant: Plant) -> Plant:
        return lambda backend: when(backend, plant(backend), many)

    return {name: of(plant) for name, plant in plants.items()}


def _later_rows(plant: Plant) -> Plant:
    def planted(backend: Backend) -> Backend:
        return in_later_rows(backend, plant(backend))

    return planted


def _without(name: str) -> Plant:
    nothing: dict[str, Any] = {name: None}
    return launch(lambda x: replace(x, **nothing))


Read = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Scales (Hkv,) of K and V: what codes of each are multiplied by instead."""


def _read_with(wrong: Read) -> Plant:
    """Codes are written by the right scales, and read by others.

    Scores are linear in the scale of K, outputs in that of V.
    """

    def around(
        right: Callable[..., Attended], x: VerifyInput, q: Tensor, *tensors: Tensor
    ) -> Attended:
        if x.k_scale is None or x.v_scale is None:
            return right(x, q, *tensors)
        k_scale, v_scale = wrong(x.k_scale, x.v_scale)
        group = q.shape[1] // len(x.k_scale)
        in_k = (k_scale / x.k_scale).repeat_interleave(group)[:, None]
        in_v = (v_scale / x.v_scale).repeat_interleave(group)[:, None]
        done = right(x, (q.float() * in_k).to(q.dtype), *tensors)
        return replace(done, out=(done.out.float() * in_v).to(done.out.dtype))

    return lambda backend: wrapped(backend, "attend", around)


def _fault(
    name: str,
    says: str,
    plants: dict[str, Plant],
    cause: str,
    smallest: VerifyCase,
    *sources: str,
) -> Fault:
    return fault_of_attend(
        name, says, plants, cause=cause, smallest=smallest, sources=sources, identity="output"
    )


_THE_ROOT = "\n            # The root's list"
_CAP_OF_SUFFIX = (
    "scores = q[own] @ keys.permute(0, 2, 3, 1) * x.shape.score_scale\n"
    "        scores = _capped(scores, x.shape.softcap)\n"
)
_CODED = case(request(), kv_dtype="int8")

FAULTS = (
    _fault(
        "scale-missing", "scores are not scaled", each(FIVE, _shape(scale=1.0)), "scale-missing",
        case(request()), "mlc-ai/mlc-llm#3426",
    ),
    _fault(
        "scale-twice", "scores are scaled twice", each(FIVE, launch(_scale_twice)), "scale-twice",
        case(request()), "AI-Hypercomputer/maxtext#3138",
    ),
    _fault(
        "scale-of-head-dim", "scores are scaled by the head dim alone, whatever the layer asks for",
        each(FIVE, _shape(scale=None)), "unknown",
        case(request(), scale=0.5), "NVIDIA/Megatron-LM#3698",
    ),
    _fault(
        "query-rounded.float16", "the scale is folded into queries, then rounded to half precision",
        each(FIVE, _folded(torch.float16)), "query-rounded",
        case(request()), "iree-org/iree#16679", "InfiniTensor/ninetoothed#203",
    ),
    _fault(
        "query-rounded.bfloat16", "the scale is folded into queries, then rounded to bfloat16",
        each(FIVE, _folded(torch.bfloat16)), "query-rounded",
        case(request(), dtype="bfloat16"), "ml-explore/mlx#3119",
    ),
    _fault(
        "lse-base-2-returned", "the log-sum-exp is returned in base 2 and declared as natural",
        each(FIVE, lambda backend: wrapped(backend, "attend", _in_base_2)), "lse-base-2-returned",
        case(request()), "B039",
    ),
    _fault(
        "rows-change-numbers", "from four rows on values are weighed and summed in bfloat16",
        _from_four_rows(_COARSE), "rows-change-numbers",
        case(request(_OF_FOUR)), "B041",
    ),
    _fault(
        "low-precision-accumulator", "values are weighed and summed in bfloat16",
        _COARSE, "low-precision-accumulator",
        case(request()), "B041",
    ),
    _fault(
        "softcap-missing.everywhere", "the cap is not handed to the kernel",
        each(FIVE, _shape(softcap=None)), "softcap-missing",
        case(request(), softcap=1.0),
        "sgl-project/sglang#33915", "vllm-project/vllm-metal#665",
    ),
    _fault(
        "softcap-missing.suffix", "only the pass over the prefix caps its scores",
        {"cascade": edit((_CAP_OF_SUFFIX, _CAP_OF_SUFFIX.split("\n")[0] + "\n"))},
        "softcap-missing", case(request(), softcap=1.0), "chrishayuk/larql#237",
    ),
    _fault(
        "sinks-missing.every-row", "sinks are not handed to the kernel",
        each(FIVE, _without("sinks")), "sinks-missing",
        case(request(), sinks=True), "vllm-project/vllm-metal#550",
    ),
    _fault(
        "sinks-missing.later-rows", "only the first row of a request has its sinks",
        each(FIVE, _later_rows(_without("sinks"))), "sinks-missing",
        case(request(_PAIR), sinks=True), "NVIDIA/TensorRT-LLM#15739",
    ),
    _fault(
        "alibi-missing", "slopes are not handed to the kernel",
        each(FIVE, _without("alibi_slopes")), "alibi-missing",
        case(request(prefix=1), alibi=True), "HabanaAI/vllm-fork#437",
    ),
    _fault(
        "alibi-by-row", "distances are counted in rows, which run ahead of depths among siblings",
        {
            "direct-mask": edit(
                (
                    "distance = _distance(tree, column)",
                    "row = torch.arange(rows, device=q.device)\n"
                    "        own = row * tree.diagonal(dim1=1, dim2=2)\n"
                    "        distance = own[:, :, None] - torch.cat([column, row])",
                )
            ),
            "topology": edit(
                (
                    "[prefix + len(path) - 1 for path in paths.values()]",
                    "[prefix + row for row in paths]",
                )
            ),
        },
        "alibi-by-row", case(request((-1, 0, 0)), alibi=True), "trymirai/lalamo#274",
    ),
    _fault(
        "alibi-of-parts", "distances to the shared prefix are the same for all rows of a request",
        {"cascade": edit((f"if x.alibi_slopes is not None:{_THE_ROOT}", f"if False:{_THE_ROOT}"))},
        "unknown", case(request(_PAIR, prefix=1), alibi=True), "mosaicml/llm-foundry#186",
    ),
    _fault(
        "kv-scale-missing.keys", "codes of keys are read without their scale",
        each(FIVE, _read_with(lambda k, v: (torch.ones_like(k), v))), "kv-scale-missing",
        _CODED, "flashinfer-ai/flashinfer#4979",
    ),
    _fault(
        "kv-scale-missing.values", "codes of values are read without their scale",
        each(FIVE, _read_with(lambda k, v: (k, torch.ones_like(v)))), "kv-scale-missing",
        _CODED, "flashinfer-ai/flashinfer#4979", "flashinfer-ai/flashinfer#1023",
    ),
    _fault(
        "kv-scale-of-other.exchanged", "the scales of K and V are exchanged when codes are read",
        each(FIVE, _read_with(lambda k, v: (v, k))), "kv-scale-of-other",
        _CODED,
    ),
    _fault(
        "kv-scale-of-other.keys-for-both", "values are read with the scale of keys",
        each(FIVE, _read_with(lambda k, v: (k, k))), "kv-scale-of-other",
        _CODED, "vllm-project/vllm#6081", "sgl-project/sglang#20705",
    ),
    _fault(
        "kv-scale-of-first-head", "the scale of the first KV head is read for all of them",
        each(FIVE, _read_with(lambda k, v: (k[:1].expand_as(k), v[:1].expand_as(v)))),
        "kv-scale-of-other",
        case(request(), kv_dtype="int8", heads=(2, 2)), "sgl-project/sgl-kernel-xpu#252",
    ),
)  # fmt: skip
