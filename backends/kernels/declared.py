"""What the Triton backends say of themselves, alike for all."""

from __future__ import annotations

from treeproof.backends.adapters.triton_mode import interpreted
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.sampling import GREEDY, TARGET_ONLY

REQUIRES = ("triton=pip install triton",)


def capabilities(*, nan_safe: bool) -> Capabilities:
    """Interpreted kernels run on the CPU, compiled ones on CUDA; a process has one kind."""
    on_cpu = interpreted()
    return Capabilities(
        devices={"cpu"} if on_cpu else {"cuda"},
        # The interpreter cuts bits off where a GPU rounds to bfloat16.
        dtypes={"float32", "float16"} if on_cpu else {"float32", "bfloat16", "float16"},
        cache_layouts={"NHD", "layered", "interleaved"},
        nan_safe=nan_safe,
        capturable=True,
        softcap=True,
        sinks=True,
        sampling={TARGET_ONLY, GREEDY},
        sibling_order="ascending",
    )
