"""Backend `sglang-cuda-tree`: SGLang's tree builder and greedy verifier as it runs them on CUDA.

`sglang.kernels.ops.speculative.tree` compiles them with nvcc when they are first used. The buffers
are filled here as `build_tree_kernel_efficient` fills them around the kernel. Of a cycle among the
candidates the builder of SGLang 0.5.23 never comes back, as its source reads; the malformed selections
of a check hold one.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from treeproof.backends.adapters import sglang_loader
from treeproof.backends.adapters.sglang_tree import CONSUMES, SglangTree, capabilities
from treeproof.backends.adapters.triton_mode import interpreted
from treeproof.contract.backend import BackendUnavailable
from treeproof.contract.case import MaskMode
from treeproof.contract.inputs import Candidates
from treeproof.contract.registry import register

MODULE = "sglang.kernels.ops.speculative.tree"


def _unavailable() -> str:
    """Why nothing can be compiled here, empty where it can; nvcc is looked for as SGLang does."""
    if interpreted():
        return "sglang's CUDA tree kernels need a CUDA device, and torch sees none"
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = os.path.join(home, "bin", "nvcc") if home else "nvcc"
    if shutil.which(nvcc) is None:
        return f"{nvcc} is not found: install the CUDA toolkit, or set CUDA_HOME to where it is"
    return ""


@register(
    "sglang-cuda-tree",
    consumes=CONSUMES,
    capabilities=replace(
        capabilities(),
        devices={"cuda"},
        max_rows=1024,
        mask_modes={"FULL_MASK", "QLEN_ONLY", "QLEN_ONLY_BITPACKING"},
    ),
    requires=(*sglang_loader.REQUIRES, "tvm_ffi=pip install apache-tvm-ffi"),
    unavailable=_unavailable(),
)
class SglangCudaTree(SglangTree):
    """The same stages by other kernels; its commit is that of `sglang-tree`."""

    def load(self) -> None:
        """Compiles both, which takes a minute the first time. Raises BackendUnavailable."""
        try:
            kernels = sglang_loader.load(MODULE, first="_jit_tree_module")
        except BackendUnavailable:
            raise
        except Exception as error:  # whatever nvcc, ninja or tvm_ffi have to say
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise BackendUnavailable(
                f"sglang's CUDA tree kernels do not compile here: {said[-1]}"
            ) from error
        self._launch: Any = kernels.build_tree_kernel_efficient
        self._verify: Any = kernels.verify_tree_greedy

    def tree(self, c: Candidates, rows: int) -> tuple[Tensor, ...]:
        """As the engine calls the kernel: its buffers filled, its tables -1."""
        batch, device, mask = len(c.seq_lens), c.seq_lens.device, c.mask_buffer
        if c.mask_mode is MaskMode.QLEN_ONLY_BITPACKING:
            mask.view(torch.uint8).zero_()
        elif c.mask_mode is MaskMode.QLEN_ONLY or c.fill_prefix_mask:
            mask.fill_(True)
        index, next_token, next_sibling = torch.full((3, batch, rows), -1, device=device)
        positions = torch.empty(batch * rows, dtype=torch.int64, device=device)
        self._launch(
            c.parent_list,
            c.selected_index,
            c.seq_lens,
            mask,
            positions,
            index,
            next_token,
            next_sibling,
            c.topk,
            c.spec_steps,
            rows,
            int(c.mask_mode),
        )
        tokens = torch.cat((c.bonus_tokens[:, None], c.draft_token), dim=1).flatten()
        return mask, positions, index, next_token, next_sibling, tokens
