"""Faults of a build that takes for granted how full a tree is."""

from __future__ import annotations

from collections.abc import Callable

from treeproof.contract.backend import Backend
from treeproof.contract.inputs import Candidates, VerifyInput
from treeproof.faults.fault import Fault
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import case, request

Build = Callable[[Candidates], VerifyInput]


def _second_layer(right: Build, c: Candidates) -> VerifyInput:
    """Takes the parents of the second layer, which a tree of depth one has not."""
    c.parent_list[:, 1]
    return right(c)


def _all_branches(right: Build, c: Candidates) -> VerifyInput:
    """Takes topk branches of every layer that there is, however many survived."""
    for selected, nodes in zip(c.selected_index.tolist(), c.num_nodes.tolist(), strict=True):
        layers: dict[int, list[int]] = {}
        for pool in selected[: nodes - 1]:
            layer = 0 if pool < c.topk else 1 + (pool - c.topk) // c.topk**2
            layers.setdefault(layer, []).append(pool)
        for branches in layers.values():
            [branches[branch] for branch in range(c.topk)]
    return right(c)


def _builds(backend: Backend) -> bool:
    return "build" in backend.stages


FAULTS = (
    Fault(
        family="needs-a-second-layer",
        says="a tree of depth one makes the build raise: it takes a second layer for granted",
        sources=("B008", "NVIDIA/TensorRT-LLM#10323"),
        stage="build",
        identity="contract",
        evidence="measured",
        cause="raises",
        smallest=case(request()),
        plant=lambda backend: wrapped(backend, "build", _second_layer),
        applies=_builds,
    ),
    Fault(
        family="needs-all-branches",
        says="a layer with fewer survivors than topk makes the build raise",
        sources=("B009", "ggml-org/llama.cpp#12454"),
        stage="build",
        identity="contract",
        evidence="measured",
        cause="raises",
        smallest=case(request((-1, 0, 0, 1))),
        plant=lambda backend: wrapped(backend, "build", _all_branches),
        applies=_builds,
    ),
)
