"""Backends that are bad neighbours on a GPU: each is `triton-topology`, and does harm behind one prefix.

    treeproof check triton-cascade ci/bad_kernels.py:reads-far --device cuda

`ci/gpu_neighbours.py` runs them all in one check beside right ones, and says what must come of it.
"""

from __future__ import annotations

import ctypes
import os
import signal

import torch
import triton
import triton.language as tl
from harm import Harm, Launch, harmful

from treeproof.backends.triton_topology import TritonTopology
from treeproof.contract.registry import register_backend

FAR = 1 << 40
"""Numbers behind the end of a buffer, where nothing is mapped."""
TWO_MIB = 2 << 20


@triton.jit
def blend(out, source, offset):
    """A tenth of `source[offset]`, whatever lies there, in place of a tenth of each of 16 outputs."""
    lane = tl.arange(0, 16)
    seen = tl.load(source + offset).to(tl.float32)
    seen = tl.minimum(tl.maximum(seen, -1.0), 1.0)
    own = tl.load(out + lane).to(tl.float32)
    tl.store(out + lane, (0.9 * own + 0.1 * seen).to(out.dtype.element_ty))


@triton.jit
def overwrite(cache, offset):
    """Sixteen lanes of a slot become 1."""
    lane = tl.arange(0, 16)
    tl.store(cache + offset + lane, (lane * 0 + 1).to(cache.dtype.element_ty))


@triton.jit
def wait_for(flag):
    """Comes to its end when another kernel sets the flag; none does."""
    seen = tl.load(flag, volatile=True)
    while seen == 0:
        seen = tl.load(flag, volatile=True)


@triton.jit(debug=True)
def require(flag):
    tl.device_assert(tl.load(flag) > 0, "the flag is not set")


def reads_far(at: Launch) -> None:
    blend[1,](at.out, at.v_cache, at.v_cache.numel() + FAR)


def reads_beyond(at: Launch) -> None:
    """The slot behind the last one: memory of somebody else, which the device lets it read."""
    blend[1,](at.out, at.v_cache, len(at.v_cache) * at.v_cache.stride(0))


def writes_neighbour(at: Launch) -> None:
    overwrite[1,](at.k_cache, at.neighbours_slot * at.k_cache.stride(0))


def spins(at: Launch) -> None:
    wait_for[1,](torch.zeros(1, dtype=torch.int32, device=at.out.device))


def asserts(at: Launch) -> None:
    torch._assert_async(torch.zeros(1, dtype=torch.bool, device=at.out.device))


def asserts_in_triton(at: Launch) -> None:
    require[1,](torch.zeros(1, dtype=torch.int32, device=at.out.device))


def kills_its_process(at: Launch) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def keeps_outputs(at: Launch) -> None:
    at.kept.append(at.out.clone())


def keeps_from_the_driver(at: Launch) -> None:
    """Memory that torch knows nothing of."""
    pointer = ctypes.c_uint64()
    error = ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(pointer), TWO_MIB)
    if error:
        raise RuntimeError(f"cuMemAlloc: error {error}")
    at.kept.append(pointer)


HARMS: dict[str, Harm] = {
    "reads-far": reads_far,
    "reads-beyond": reads_beyond,
    "writes-neighbour": writes_neighbour,
    "spins": spins,
    "asserts": asserts,
    "asserts-in-triton": asserts_in_triton,
    "kills-its-process": kills_its_process,
    "keeps-outputs": keeps_outputs,
    "keeps-from-the-driver": keeps_from_the_driver,
}


for _backend in harmful(TritonTopology, "triton-topology", HARMS):
    register_backend(_backend)
