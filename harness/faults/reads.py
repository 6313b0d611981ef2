"""Faults of masks inside a kernel: rows read other rows of their tree than the tables say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from treeproof.contract.backend import Backend
from treeproof.faults.attending import LISTS, each, edit, fault_of_attend, lists, masks
from treeproof.faults.fault import Plant
from treeproof.faults.launched import Block, Row
from treeproof.faults.partly import when
from treeproof.faults.smallest import CHAIN, FORK, case, request

_PAIR = (-1, 0)
_ON_PATH = "(index[row] for row in path[-reach:])"
"""In topology, the cells of a path."""


def _by_rows(sees: Callable[[int, int, bool], bool], columns: str) -> dict[str, Plant]:
    """Row i reads row j where `sees(i, j, on its path)`; `columns` says the same to topology."""

    def block(right: Block) -> Block:
        rows = range(len(right))
        return np.array([[sees(i, j, bool(right[i, j])) for j in rows] for i in rows])

    def row(right: Row) -> Row:
        path = set(right.path)
        read = [s for j, s in enumerate(right.homes) if sees(right.row, j, s in path)]
        # A row's own key ends its list; padded lists name it again.
        own = right.keys[-1]
        ordered = [slot for slot in read if slot != own] + [own] * (own in read)
        return replace(right, keys=(*right.front, *ordered))

    return {
        "direct-mask": masks(block),
        "topology": edit((_ON_PATH, f"(index[row] for row in {columns})")),
        **each((*LISTS, "cascade"), lists(row)),
    }


def every_row() -> dict[str, Plant]:
    """Every row of a request is read by every other."""
    return _by_rows(lambda i, j, on_path: True, "range(len(paths))")


def _in(dtype: torch.dtype, plants: dict[str, Plant]) -> dict[str, Plant]:
    """Planted for one dtype only."""

    def of(plant: Plant) -> Plant:
        def planted(backend: Backend) -> Backend:
            return when(backend, plant(backend), lambda x, q: q.dtype == dtype)

        return planted

    return {name: of(plant) for name, plant in plants.items()}


_CAUSAL = _by_rows(lambda i, j, on_path: j <= i, "range(path[-1] + 1)")

_TILE = 2
_TILE_SKIPPED = _by_rows(
    lambda i, j, on_path: on_path or j // _TILE < i // _TILE,
    f"range(len(paths)) if row in path or row // {_TILE} < path[-1] // {_TILE}",
)

_ROOT_HIDDEN = _by_rows(
    lambda i, j, on_path: on_path and (j > 0 or i == 0), "path[-reach:] if row or len(path) == 1"
)


def _without_root(row: Row) -> Row:
    if len(row.path) < 3:
        return row
    return replace(row, keys=(*row.front, *row.path[1:]))


def _deep_without_root(block: Block) -> Block:
    hidden = block.copy()
    hidden[block.sum(1) > 2, 0] = False
    return hidden


_ROOT_HIDDEN_DEEP = {
    "direct-mask": masks(_deep_without_root),
    "topology": edit((_ON_PATH, "(index[row] for row in path[-reach:] if row or len(path) < 3)")),
    **each((*LISTS, "cascade"), lists(_without_root)),
}

_PARENT_HIDDEN = {
    "direct-mask": edit(
        (
            "visible = torch.cat([inside, tree], dim=2)",
            "parent = _parents(tree)[:, :, None]\n"
            "            other = every[above:] != parent\n"
            "            visible = torch.cat([inside, tree & other], dim=2)",
        )
    ),
    "topology": edit(
        (_ON_PATH, "(index[row] for row in [*path[:-2], path[-1]][-reach:])"),
    ),
    **each(
        (*LISTS, "cascade"),
        lists(lambda row: replace(row, keys=(*row.front, *row.path[:-2], row.path[-1]))),
    ),
}


_SELF_HIDDEN = {
    "direct-mask": edit(
        (
            "visible = torch.cat([inside, tree], dim=2)",
            "other = every[above:] != row[:, :, None]\n"
            "            visible = torch.cat([inside, tree & other], dim=2)",
        )
    ),
    **each(LISTS, lists(lambda row: replace(row, keys=row.keys[:-1]))),
}


def _first_keys(row: Row) -> Row:
    return replace(row, keys=row.keys[: row.row + 1], cut=0)


_TOP_LEFT = {
    "direct-mask": edit(
        (
            "visible = torch.cat([inside, tree], dim=2)",
            "key = every + prefix - start\n"
            "            visible = torch.cat([inside, tree], dim=2)\n"
            "            visible = visible & (key[:, None] <= row[:, :, None])",
        )
    ),
    "cascade": edit(
        (
            "        weights = torch.softmax(scores, dim=-1)\n        part,",
            "        seen = torch.ones(widest, longest, dtype=torch.bool, device=q.device).tril()\n"
            '        scores = scores.masked_fill(~seen.repeat_interleave(group[1], 0), float("-inf"))\n'
            "        weights = torch.softmax(scores, dim=-1)\n        part,",
        )
    ),
    **each(LISTS, lists(_first_keys)),
}

_SHARDS = {
    "cascade": edit(
        (
            "suffix, suffix_lse = _suffix_pass(x, grouped, k_cache, v_cache)",
            "parts = [_suffix_pass(x, grouped, k_cache, v_cache, shard) for shard in range(2)]\n"
            "        suffix, suffix_lse = merge(*parts[0], *parts[1])",
        ),
        (
            "def _suffix_pass(\n    x: VerifyInput, q: Tensor, k_cache: Tensor, v_cache: Tensor\n",
            "def _suffix_pass(\n"
            "    x: VerifyInput, q: Tensor, k_cache: Tensor, v_cache: Tensor, shard: int\n",
        ),
        (
            "    for first in range(0, len(q), chunk):\n",
            "    rows = x.qo_indptr[1:] - x.qo_indptr[:-1]\n"
            "    row = torch.cat([torch.arange(int(n), device=q.device) for n in rows])\n"
            "    # Keys of this shard, and a causal mask that ends where they end.\n"
            "    held = (rows.repeat_interleave(rows) + 1 - shard) // 2\n"
            "    last = 2 * (held - rows.repeat_interleave(rows) + row) + shard\n"
            "    for first in range(0, len(q), chunk):\n",
        ),
        (
            "listed = step < lengths[own, None]",
            "listed = (step < lengths[own, None]) & (step <= last[own, None])\n"
            "        listed = listed & (step % 2 == shard)",
        ),
        (
            "out[own] = weights @ values",
            "out[own] = weights.nan_to_num(0.0) @ values",
        ),
        (
            "lse[own] = _log_sum(scores, weights)",
            "lse[own] = torch.logsumexp(scores, dim=-1)",
        ),
    )
}

FAULTS = (
    fault_of_attend(
        "mask-ignored.bfloat16",
        "the kernel for one dtype bounds keys by the length alone",
        _in(torch.bfloat16, every_row()),
        cause="no-mask",
        smallest=case(request(_PAIR), dtype="bfloat16"),
        sources=("B017",),
    ),
    fault_of_attend(
        "mask-ignored.every-dtype",
        "the kernel bounds keys by the length alone",
        every_row(),
        cause="no-mask",
        smallest=case(request(_PAIR)),
        sources=("B017", "B018"),
    ),
    fault_of_attend(
        "causal-kernel",
        "a kernel that knows only the causal flag reads every row before its own",
        _CAUSAL,
        cause="causal-mask",
        smallest=case(request(FORK)),
        sources=("B018", "vllm-project/vllm#17560"),
    ),
    fault_of_attend(
        "tile-skipped",
        "tiles of keys below the diagonal are taken for wholly visible",
        _TILE_SKIPPED,
        cause="tile-skipped",
        smallest=case(request(FORK)),
        sources=("B019",),
    ),
    fault_of_attend(
        "root-hidden.from-all",
        "only the root reads the root",
        _ROOT_HIDDEN,
        cause="root-hidden",
        smallest=case(request(_PAIR)),
        sources=("B002",),
    ),
    fault_of_attend(
        "root-hidden.from-grandchildren",
        "rows two levels down and deeper do not read the root",
        _ROOT_HIDDEN_DEEP,
        cause="root-hidden",
        smallest=case(request(CHAIN)),
        sources=("B002",),
    ),
    fault_of_attend(
        "parent-hidden",
        "a row does not read its parent, whose key the step before was to write",
        _PARENT_HIDDEN,
        cause="parent-hidden",
        smallest=case(request(_PAIR)),
        sources=("Ascend/sglang#141",),
    ),
    fault_of_attend(
        "self-hidden",
        "a row does not read its own key, which is not counted into the cache yet",
        _SELF_HIDDEN,
        cause="self-hidden",
        smallest=case(request(prefix=1)),
        sources=("harvard-edge/cs249r_book#1953",),
    ),
    fault_of_attend(
        "diagonal-top-left",
        "the diagonal of the causal mask is anchored at the first key",
        _TOP_LEFT,
        cause="diagonal-top-left",
        smallest=case(request(prefix=2)),
        sources=("B036",),
    ),
    fault_of_attend(
        "regular-mask-a-shard",
        "each shard of the keys is masked as if it held the end of the sequence",
        _SHARDS,
        cause="unknown",
        smallest=case(request(_PAIR)),
        sources=("B035",),
    ),
)
