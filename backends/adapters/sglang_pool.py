"""SGLang's KV pool as far as it moves keys: one layer, moved with the copy kernel of its pool."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from treeproof.backends.adapters import sglang_loader

COPYING = "sglang.kernels.ops.kvcache.cache_move"

_MOST_MOVED = 256
"""Slots of one launch; SGLang's pool moves more of them in pieces, in order."""

_TILE = 128
"""Bytes of a slot that one program moves: SGLang's choice for slots below 4 KiB."""


class OneLayer:
    """A pool of the two caches of one layer."""

    def __init__(self, k_cache: Tensor, v_cache: Tensor) -> None:
        self._caches = k_cache, v_cache
        self._copy: Any = sglang_loader.load(COPYING, "xpu").copy_all_layer_kv_cache_func

    def move_kv_cache(self, targets: Tensor, sources: Tensor) -> None:
        for cache in self._caches:
            slot = cache[0].numel() * cache.element_size()
            for start in range(0, len(targets), _MOST_MOVED):
                piece = slice(start, start + _MOST_MOVED)
                count = len(targets[piece])
                self._copy(
                    torch.tensor([cache.data_ptr()], dtype=torch.uint64, device=cache.device),
                    torch.tensor([slot], device=cache.device),
                    targets[piece],
                    sources[piece],
                    count,
                    1 << (count - 1).bit_length(),
                    {"bytes_per_tile": _TILE, "byte_tiles": -(-slot // _TILE), "num_warps": 4},
                )
