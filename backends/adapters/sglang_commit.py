"""SGLang's commit of an accepted path: the slots found, the KV moved, the boundary and the bonus told.

`move_accept_tokens_to_target_kvcache` lists the slots, accepted rows as sources and the front of each
request's verify window as targets, and hands them to the KV pool. The pool here is one layer, the
case's two caches, and moves it with SGLang's copy kernel as its pool does.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from treeproof.backends.adapters import sglang_loader
from treeproof.backends.adapters.sglang_pool import OneLayer
from treeproof.contract.inputs import Accepted, Committed, VerifyInput

MOVING = "sglang.srt.speculative.spec_utils"
FILLING = "sglang.kernels.ops.speculative.eagle"

WITHOUT = (
    "huggingface_hub",
    "sglang.kernels.ops.sampling",
    "sglang.kernels.ops.speculative.row_argmax",
    "sglang.kernels.ops.speculative.simulated_accept",
    "sglang.srt.arg_groups.overrides",
    "sglang.srt.configs.draft_parallel",
    "sglang.srt.configs.hybrid_arch",
    "sglang.srt.constrained.base_grammar_backend",
    "sglang.srt.distributed.parallel_state",
    "sglang.srt.layers.attention.linear.utils",
    "sglang.srt.layers.cp.base",
    "sglang.srt.managers.schedule_batch",
    "sglang.srt.managers.utils",
    "sglang.srt.mem_cache.allocation",
    "sglang.srt.runtime_context",
    "sglang.srt.utils.nvtx_utils",
)
"""What the engine's module imports for drafting, sampling and scheduling, which is not called here."""


class Commit:
    """The functions of SGLang that commit, for a batch of N rows a request."""

    def __init__(self) -> None:
        self._move: Any = sglang_loader.load(
            MOVING, "xpu", WITHOUT
        ).move_accept_tokens_to_target_kvcache
        self._fill_bonus: Any = sglang_loader.load(FILLING, "xpu").fill_bonus_tokens_func

    def __call__(
        self, x: VerifyInput, accepted: Accepted, k_cache: Tensor, v_cache: Tensor
    ) -> Committed:
        """Compact both caches in place. A bonus is int32, as all tokens that SGLang emits."""
        batch, width = accepted.accept_index.shape
        pool = OneLayer(k_cache, v_cache)
        self._move(
            SimpleNamespace(seq_lens=x.seq_lens, out_cache_loc=x.out_cache_loc),
            accepted.accept_index,
            accepted.accept_len - 1,
            SimpleNamespace(get_kvcache=lambda: pool),
        )
        bonus = torch.empty(batch, dtype=torch.int32, device=x.seq_lens.device)
        self._fill_bonus(accepted.tokens, accepted.accept_len, bonus, width, batch)
        return Committed(seq_lens=x.seq_lens + accepted.accept_len, next_root=bonus)
