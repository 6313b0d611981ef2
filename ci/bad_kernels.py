"""Backends that are bad neighbours on a GPU: each is `triton-topology`, and does harm behind one prefix.

    treeproof check triton-cascade ci/bad_kernels.py:reads-far --device cuda

`HARMFUL` keys of the first request bring it on; on all other cases they are right. `ci/gpu_neighbours.py`
runs them all in one check beside right ones, and says what must come of it.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
import triton
import triton.language as tl
from torch import Tensor

from treeproof.backends.triton_topology import TritonTopology
from treeproof.contract.backend import describe
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.contract.registry import load, register_backend

HARMFUL = 41
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


@dataclass(frozen=True)
class Launch:
    """What a harm is done with: the arguments and the output of a right launch."""

    x: VerifyInput
    k_cache: Tensor
    v_cache: Tensor
    out: Tensor
    kept: list[Any]
    """The backend's own, from launch to launch."""


def reads_far(at: Launch) -> None:
    blend[1,](at.out, at.v_cache, at.v_cache.numel() + FAR)


def reads_beyond(at: Launch) -> None:
    """The slot behind the last one: memory of somebody else, which the device lets it read."""
    blend[1,](at.out, at.v_cache, len(at.v_cache) * at.v_cache.stride(0))


def writes_neighbour(at: Launch) -> None:
    """The first slot of the last request's prefix; it is the first request's turn."""
    slot = int(at.x.req_to_token[at.x.request_slots[-1], 0])
    overwrite[1,](at.k_cache, slot * at.k_cache.stride(0))


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


HARMS: dict[str, Callable[[Launch], None]] = {
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


def bad(harm: Callable[[Launch], None]) -> type[TritonTopology]:
    class Bad(TritonTopology):
        """Right, but for the harm that it does after its launch."""

        def __init__(self) -> None:
            super().__init__()
            self.kept: list[Any] = []

        def attend(
            self, x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor
        ) -> Attended:
            done = super().attend(x, q, k, v, k_cache, v_cache)
            if int(x.seq_lens[0]) == HARMFUL:
                harm(Launch(x, k_cache, v_cache, done.out, self.kept))
            return done

    return Bad


_right = load("triton-topology")
for _name, _harm in HARMS.items():
    register_backend(
        describe(
            bad(_harm),
            _name,
            consumes=_right.consumes,
            capabilities=msgspec.structs.replace(_right.capabilities, capturable=False),
            numerics=_right.numerics,
        )
    )
