"""A fault of dispatch: what is launched is not the kernel that is meant to be."""

from __future__ import annotations

from dataclasses import replace

from treeproof.faults.fault import Fault
from treeproof.faults.smallest import case, request

FAULTS = (
    Fault(
        family="fell-back",
        says="attend falls back to plain torch where its kernel does not take the shape, and says nothing",
        sources=("huggingface/transformers#46960",),
        stage="attend",
        identity="contract",
        evidence="measured",
        cause="fell-back",
        smallest=case(request()),
        # Our own are the plain torch that others fall back to.
        plant=lambda backend: replace(backend, kernels=frozenset({"tree_attention_kernel"})),
        applies=lambda backend: "attend" in backend.stages,
    ),
)
