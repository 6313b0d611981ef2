"""Faults of heads: which KV head a query head reads, one head unlike the others, K apart from V."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.faults.attending import FIVE, each, edit, fault_of_attend
from treeproof.faults.fault import Plant
from treeproof.faults.partly import in_one_head
from treeproof.faults.plant import wrapped
from treeproof.faults.prefixes import last_missing
from treeproof.faults.reads import every_row
from treeproof.faults.smallest import case, request

_PAIR = (-1, 0)


def _mapped(kv_head: Callable[[int, int, int], int]) -> Plant:
    """Query head h of Hq reads KV head `kv_head(h, Hq, Hkv)`.

    One launch a KV head, in which every group asks what the query heads that read it ask.
    """

    def around(
        right: Callable[..., Attended], x: VerifyInput, q: Tensor, k: Tensor, *caches: Tensor
    ) -> Attended:
        heads, kv_heads = q.shape[1], k.shape[1]
        group = heads // kv_heads
        done = right(x, q, k, *caches)
        out, lse = done.out.clone(), None if done.lse is None else done.lse.clone()
        for h in range(heads):
            place = kv_head(h, heads, kv_heads) * group + h % group
            asked = q.clone()
            asked[:, place] = q[:, h]
            again = right(x, asked, k, *caches)
            out[:, h] = again.out[:, place]
            if lse is not None and again.lse is not None:
                lse[:, h] = again.lse[:, place]
        return replace(done, out=out, lse=lse)

    return lambda backend: wrapped(backend, "attend", around)


def _in_head(head: int, plants: dict[str, Plant]) -> dict[str, Plant]:
    def of(plant: Plant) -> Plant:
        def planted(backend: Backend) -> Backend:
            return in_one_head(backend, plant(backend), head)

        return planted

    return {name: of(plant) for name, plant in plants.items()}


_ROLLED = {
    "direct-mask": edit(("_dequantised(k_cache[slots]", "_dequantised(k_cache[slots.roll(1, 1)]")),
    "cascade": edit(
        (
            "keys, values = _at(k_cache, slots), _at(v_cache, slots)  #",
            "keys, values = _at(k_cache, slots.roll(1, 1)), _at(v_cache, slots)  #",
        )
    ),
    "page-table": edit(
        (
            "values = v_cache.flatten(0, 1).index_select(0, lanes).view(shape)",
            "values = v_cache.flatten(0, 1).index_select(0, lanes).view(shape).roll(1, 1)",
        )
    ),
    "swa-window": edit(
        (
            "(v_cache, lines, x.v_scale).view(rows * kv_heads, length, -1)",
            "(v_cache, lines, x.v_scale).view(rows * kv_heads, length, -1).roll(1, 1)",
        )
    ),
    "topology": edit(
        ("_read(v_cache, seen, x.v_scale)", "_read(v_cache, seen.roll(-1, 2), x.v_scale)")
    ),
}

_ROLLED_PREFIX = {
    "cascade": edit(
        (
            "keys, values = _at(k_cache, slots), _at(v_cache, slots)\n",
            "keys, values = _at(k_cache, slots), _at(v_cache, slots.roll(1, 1))\n",
        )
    ),
    "topology": edit(
        (
            "_read(v_cache, common, x.v_scale)",
            "_read(\n        v_cache, slots[start[:, None] + (key - 1) % shared[:, None].clamp(min=1)], x.v_scale"
            "\n    )",
        )
    ),
}

_GROUPS = (4, 2)

FAULTS = (
    fault_of_attend(
        "kv-head-of-another.interleaved",
        "query head h reads KV head h modulo their number, where groups lie together",
        each(FIVE, _mapped(lambda h, heads, kv_heads: h % kv_heads)),
        cause="unknown",
        smallest=case(request(), heads=_GROUPS),
        sources=("ekzhang/jax-js#180", "onnx/onnx#7274"),
        identity="output",
    ),
    fault_of_attend(
        "kv-head-of-another.first",
        "all query heads read the first KV head",
        each(FIVE, _mapped(lambda h, heads, kv_heads: 0)),
        cause="unknown",
        smallest=case(request(), heads=(2, 2)),
        sources=("PSAL-POSTECH/ONNXim#33",),
        identity="output",
    ),
    fault_of_attend(
        "one-head-differs.mask-ignored",
        "the last query head is launched without the mask",
        _in_head(-1, every_row()),
        cause="one-head-only",
        smallest=case(request(_PAIR), heads=(2, 1)),
        sources=("PaddlePaddle/FastDeploy#3514",),
    ),
    fault_of_attend(
        "one-head-differs.prefix-short",
        "the first query head reads a prefix that lacks its last key",
        _in_head(0, last_missing(later=False)),
        cause="one-head-only",
        smallest=case(request(prefix=1), heads=(2, 1)),
        sources=("PaddlePaddle/FastDeploy#3514",),
    ),
    fault_of_attend(
        "keys-not-values.listed",
        "keys and values of the listed slots are one place apart",
        _ROLLED,
        cause="keys-not-values",
        smallest=case(request(_PAIR)),
        sources=("B091",),
    ),
    fault_of_attend(
        "keys-not-values.shared-prefix",
        "keys and values of the shared prefix are one page apart",
        _ROLLED_PREFIX,
        cause="keys-not-values",
        smallest=case(request(prefix=2)),
        sources=("B091",),
    ),
)
