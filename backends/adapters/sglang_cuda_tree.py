"""Backend `sglang-cuda-tree`: SGLang's tree builder and greedy verifier as it runs them on CUDA.

`sglang.kernels.ops.speculative.tree` compiles them when they are first used, with nvcc, ninja and a
C++ compiler; of SGLang it takes `kernels` and `srt/environ.py`, beside them only the headers of
`apache-tvm-ffi`. The buffers are filled here as `build_tree_kernel_efficient` fills them around the
kernel.

Of a cycle among the candidates the builder of SGLang 0.5.23 never comes back, as its source reads: a
known defect (its pull request 36201), left as it is. SGLang's own drafting makes no cycle, but the
builder takes tensors of anybody, warns of a parent that was not selected and goes on, and its Triton and
CPU forms stop. So it is held to what every build is, and costs a run one worker.
"""

from __future__ import annotations

import functools
import os
import shutil
from types import ModuleType
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
_TOLD = ("error", "cannot find", "fatal")
"""Words of the line in which a compiler or a linker says what is wrong."""


def _home() -> str:
    """Where SGLang takes the CUDA toolkit to be."""
    given, nvcc = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"), shutil.which("nvcc")
    return given or (os.path.dirname(os.path.dirname(nvcc)) if nvcc else "/usr/local/cuda")


def _unavailable() -> str:
    """Why nothing can be compiled here, empty where it can."""
    if interpreted():
        return "sglang's CUDA tree kernels need a CUDA device, and torch sees none"
    tools = {
        os.path.join(_home(), "bin", "nvcc"): "install the CUDA toolkit, or set CUDA_HOME to it",
        "ninja": "pip install ninja, its folder in PATH",
        os.environ.get("CXX", "c++"): "install a C++20 compiler, or set CXX to one",
    }
    for tool, how in tools.items():
        if shutil.which(tool) is None:
            return f"{tool} is not found: {how}"
    return ""


@functools.cache
def _compiled() -> ModuleType | str:
    """The module with its kernels compiled, or why they are not; asked once a process."""
    try:
        return sglang_loader.load(MODULE, first="_jit_tree_module")
    except BackendUnavailable as error:
        return str(error)
    except Exception as error:  # whatever nvcc, ninja or tvm_ffi have to say
        return f"sglang's CUDA tree kernels do not compile here: {_said(error)}"


def _said(error: Exception) -> str:
    """The line that says what is wrong, and which toolkit it was."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = (line for line in lines if any(word in line.lower() for word in _TOLD))
    text = next(told, lines[-1] if lines else type(error).__name__)
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return text if named else f"{text}; CUDA_HOME is not set, {_home()} was taken for it"


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
        """Compiles both, which takes half a minute the first time. Raises BackendUnavailable."""
        kernels = _compiled()
        if isinstance(kernels, str):
            raise BackendUnavailable(kernels)
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
