"""Backend `sglang-draft`: what SGLang's EAGLE worker lays out before it drafts.

`prepare_for_draft` hands out slots and copies page tails, `per_step_draft_out_cache_loc` cuts the slots
into steps, and `generate_draft_decode_kv_indices` lists what each step reads, launched as the Triton
attention backend launches it. Positions grow by one a step, as the engine's loop has it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from treeproof.backends.adapters import sglang_commit, sglang_loader, sglang_tree
from treeproof.backends.adapters.beside_attention import beside_attention
from treeproof.backends.adapters.sglang_pool import OneLayer
from treeproof.contract.drafting import Drafted, DraftStep
from treeproof.contract.registry import register

PREPARING = "sglang.srt.speculative.eagle_worker_common"
LISTING = "sglang.kernels.ops.speculative.cache_locs"

WITHOUT = (
    *sglang_tree.WITHOUT,
    *sglang_commit.WITHOUT,
    "sglang.srt.layers.logprob_processor",
    "sglang.srt.model_executor.forward_batch_info",
    "sglang.srt.speculative.eagle_info",
    "sglang.srt.utils.async_probe",
)
"""What the engine's module imports for its forwards, which are not run here."""


@register(
    "sglang-draft",
    capabilities=beside_attention(),
    requires=sglang_loader.REQUIRES,
)
class SglangDraft:
    """One layout for the batch; every request has k branches and S steps."""

    def __init__(self) -> None:
        module = sglang_loader.load(PREPARING, "xpu", WITHOUT)
        # What a forward is made of; only what it was to be given is looked at here.
        made: Any = module
        made.CaptureHiddenMode = SimpleNamespace(NULL=0, LAST=1)
        made.ForwardBatch = SimpleNamespace(init_new=lambda batch, *_, **__: batch)
        self._prepare: Any = module.prepare_for_draft
        glue = sglang_loader.load(sglang_tree.GLUE, "xpu", sglang_tree.WITHOUT)
        self._by_step: Any = glue.per_step_draft_out_cache_loc
        self._list: Any = sglang_loader.load(LISTING, "xpu").generate_draft_decode_kv_indices

    def draft(self, step: DraftStep) -> Drafted:
        draft_input = SimpleNamespace()
        batch = self._prepared(step, draft_input)
        slots = self._by_step(batch.out_cache_loc, len(step.seq_lens), step.topk, step.num_steps)
        steps = torch.arange(step.num_steps, device=step.seq_lens.device)[:, None]
        bounds, lists = self._lists(step, draft_input.positions)
        return Drafted(
            positions=draft_input.positions + steps,
            out_cache_loc=slots,
            kv_indptr=bounds,
            kv_indices=lists,
        )

    def _prepared(self, step: DraftStep, draft_input: Any) -> Any:
        batch = SimpleNamespace(
            forward_mode=SimpleNamespace(is_idle=lambda: False),
            seq_lens=step.seq_lens,
            req_pool_indices=step.request_slots,
            token_to_kv_pool_allocator=SimpleNamespace(page_size=step.kv.page_size),
            device=step.seq_lens.device,
        )
        runner = SimpleNamespace(
            model_config=SimpleNamespace(model_is_mrope=False),
            spec_algorithm=SimpleNamespace(is_standalone=lambda: False),
            token_to_kv_pool=OneLayer(step.k_cache, step.v_cache),
        )
        table = SimpleNamespace(req_to_token=step.req_to_token)
        prepared, _, _ = self._prepare(
            draft_input, table, batch, None, runner, step.topk, step.num_steps
        )
        return prepared

    def _lists(self, step: DraftStep, positions: Any) -> tuple[Any, Any]:
        """Buffers as the engine allots them, and one launch for all steps."""
        batch, rows = len(step.seq_lens), len(positions)
        widest = int(step.seq_lens.max()) + step.num_steps
        device = step.seq_lens.device
        lists = torch.zeros(step.num_steps, rows * widest, dtype=torch.int64, device=device)
        bounds = torch.zeros(step.num_steps, rows + 1, dtype=torch.int32, device=device)
        self._list[(step.num_steps, batch, step.topk)](
            step.request_slots,
            step.req_to_token,
            step.seq_lens,
            lists,
            bounds,
            positions,
            step.req_to_token.stride(0),
            lists.shape[1],
            bounds.shape[1],
            _power_of_2(batch),
            _power_of_2(step.num_steps),
            _power_of_2(rows),
            step.kv.page_size,
        )
        return bounds, lists


def _power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()
