"""Backend `sglang-tree`: SGLang's EAGLE tree builder and greedy verifier, in their Triton form.

`build` runs `build_tree_kernel_efficient`, which fills the mask and the tables and launches the
builder, and `assign_extend_cache_locs_uniform_func` for the slots; `accept` runs
`verify_tree_greedy_func`; `commit` is in `sglang_commit`. What the engine does around them is done here as it does it: bounds that
follow from the number of draft tokens, and buffers prefilled for the kernels.

SGLang itself runs these two Triton kernels on XPU only; on CUDA it compiles others, which are
`sglang-cuda-tree`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from treeproof.backends.adapters import sglang_loader
from treeproof.backends.adapters.beside_attention import beside_attention
from treeproof.backends.adapters.sglang_commit import Commit
from treeproof.backends.adapters.triton_mode import interpreted
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import MaskMode
from treeproof.contract.inputs import Accepted, Candidates, Committed, VerifyInput
from treeproof.contract.registry import register

GLUE = "sglang.srt.speculative.eagle_utils"
SLOTS = "sglang.kernels.ops.speculative.cache_locs"

WITHOUT = (
    "sglang.kernels.ops.sampling",
    "sglang.kernels.ops.sampling.renorm",
    "sglang.kernels.ops.speculative.verify_sampling",
    "sglang.srt.hardware_backend.npu.dsv4.dsv4_common_hooks",
    "sglang.srt.mem_cache.allocation",
    "sglang.srt.mem_cache.allocation_sizing",
    "sglang.srt.runtime_context",
)
"""What the engine's module imports for sampling and for its memory, which no stage here calls."""


MOST_ROWS = 32 if interpreted() else 1024
"""Of a request. Interpreted, the loops over all pairs of rows take minutes beyond this."""


def capabilities() -> Capabilities:
    """Of builder and verifier in any form: neither sees the layer, so any layer will do."""
    return beside_attention(
        max_rows=MOST_ROWS,
        sibling_order="ascending",
        # One number of draft tokens for the whole batch.
        ragged=False,
        pad_rows=False,
        mask_modes={"FULL_MASK", "QLEN_ONLY"},
        # What is moved nowhere is moved from slot 0 to slot 0.
        pad_slots={0},
    )


CONSUMES = frozenset(
    {
        "draft_token",
        "seq_lens",
        "out_cache_loc",
        "retrieve_index",
        "retrieve_next_token",
        "retrieve_next_sibling",
    }
)


@register(
    "sglang-tree", consumes=CONSUMES, capabilities=capabilities(), requires=sglang_loader.REQUIRES
)
class SglangTree:
    """One launch for the whole batch, of N draft tokens a request, the root included."""

    def __init__(self) -> None:
        self.load()
        slots = sglang_loader.load(SLOTS, "xpu")
        self._commit = Commit()
        self._assign_slots: Any = slots.assign_extend_cache_locs_uniform_func

    def load(self) -> None:
        """The builder and the verifier."""
        glue = sglang_loader.load(GLUE, "xpu", WITHOUT)
        self._build: Any = glue.build_tree_kernel_efficient
        self._verify: Any = glue.verify_tree_greedy_func
        self._modes: Any = glue.TreeMaskMode

    def build(self, c: Candidates) -> VerifyInput:
        """Mask, positions, links, tokens and slots of B requests of N rows each."""
        batch, drafted = c.selected_index.shape
        rows = drafted + 1
        if rows > MOST_ROWS:
            raise ValueError(f"{rows} rows in a request: accepted are 1 to {MOST_ROWS}")
        mask, positions, index, next_token, next_sibling, tokens = self.tree(c, rows)
        starts = torch.arange(batch + 1, device=c.seq_lens.device)
        cells = {
            MaskMode.FULL_MASK: rows * (c.seq_lens + rows),
            MaskMode.QLEN_ONLY: torch.full_like(c.seq_lens, rows * rows),
            MaskMode.QLEN_ONLY_BITPACKING: torch.full_like(c.seq_lens, rows),
        }[c.mask_mode]
        return VerifyInput(
            draft_token=tokens,
            positions=positions,
            seq_lens=c.seq_lens,
            qo_indptr=rows * starts,
            out_cache_loc=self._assign_slots(
                c.request_slots, c.req_to_token, c.seq_lens, batch, rows, c.seq_lens.device
            ),
            request_slots=c.request_slots,
            req_to_token=c.req_to_token,
            topk=c.topk,
            spec_steps=c.spec_steps,
            shape=c.shape,
            kv=c.kv,
            custom_mask=mask,
            mask_indptr=pad(cells.cumsum(0), (1, 0)),
            mask_mode=c.mask_mode,
            retrieve_index=index,
            retrieve_next_token=next_token,
            retrieve_next_sibling=next_sibling,
        )

    def tree(self, c: Candidates, rows: int) -> tuple[Tensor, ...]:
        """Mask, positions (B*N,), the three link tables (B, N) and tokens (B*N,), of one launch."""
        result: tuple[Tensor, ...] = self._build(
            c.bonus_tokens,
            c.parent_list,
            c.selected_index,
            c.draft_token,
            c.seq_lens,
            int(c.seq_lens.sum()),
            c.topk,
            c.spec_steps,
            rows,
            tree_mask_mode=self._modes(int(c.mask_mode)),
            tree_mask_buf=c.mask_buffer,
            fill_prefix_mask=c.fill_prefix_mask,
        )
        return result

    def accept(self, x: VerifyInput, target_predict: Tensor) -> Accepted:
        """The verifier's greedy walk; `accept_len` is the accepted drafts and the root."""
        index, correct, predicted = self.walk(x, target_predict)
        lengths = correct + 1
        real = torch.arange(index.shape[1], device=index.device) < lengths[:, None]
        return Accepted(
            accept_index=index,
            accept_len=lengths,
            # Of a cell that is -1 nothing is read, as in the engine past the accepted length.
            tokens=torch.where(real, predicted[index.long()], -1),
        )

    def commit(
        self, x: VerifyInput, accepted: Accepted, k_cache: Tensor, v_cache: Tensor
    ) -> Committed:
        """The accepted path at the front of each request's verify window."""
        return self._commit(x, accepted, k_cache, v_cache)

    def walk(self, x: VerifyInput, target_predict: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Accepted rows (B, S+1), accepted drafts (B,) and tokens (B*N,), all int32."""
        assert x.retrieve_index is not None
        shape, device = x.retrieve_index.shape, target_predict.device
        predicted = torch.zeros(shape[0] * shape[1], dtype=torch.int32, device=device)
        index = torch.full((shape[0], x.spec_steps + 1), -1, dtype=torch.int32, device=device)
        correct = torch.empty(shape[0], dtype=torch.int32, device=device)
        self._verify(
            predicted,
            index,
            correct,
            x.draft_token.view(shape),
            x.retrieve_index,
            x.retrieve_next_token,
            x.retrieve_next_sibling,
            target_predict.view(shape),
        )
        return index, correct, predicted
