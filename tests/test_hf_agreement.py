"""Hugging Face decoders, which nobody here wrote, and the oracle on their weights: alike on every path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hf_models import ARCHITECTURES, InFloat64, built, optional
from msgspec.structs import replace

from treeproof.backends.adapters.hf_weights import weights_of
from treeproof.contract.target_model import TargetModel
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.target import held_of
from treeproof.oracles.target_reading import on_paths
from treeproof.oracles.target_steps import Steps

pytestmark = optional

TREE = CandidateTree(tokens=(11, 12, 13, 14, 15, 16), parents=(-1, 0, 0, 1, 3, 2))
PREFIX = [5, 60, 0, 17, 17, 3, 9]


def oracle(model: TargetModel, theirs: Any) -> torch.Tensor:
    steps = Steps(model, errors=None, given=weights_of(theirs))
    return steps.logits(on_paths(steps, [TREE], [TREE.tokens], [held_of(steps, PREFIX)]))[0]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_path_of_a_tree_alone_is_what_the_oracle_says(name: str) -> None:
    theirs, model = built(name), ARCHITECTURES[name][1]
    alone = []
    with torch.no_grad(), InFloat64():
        for node in range(len(TREE)):
            path = [*PREFIX, *(TREE.tokens[n] for n in TREE.path(node))]
            alone.append(theirs(torch.tensor([path])).logits[0, -1])
    found = oracle(model, theirs)
    assert (found - torch.stack(alone)).abs().max() < 1e-11 * found.abs().max()
    # Each feature that the description names is one that the numbers hang on.
    for name, value in _without(model).items():
        other = oracle(replace(model, **{name: value}), theirs)
        assert (other - found).abs().max() > 1e-4 * found.abs().max(), name


def _without(model: TargetModel) -> dict[str, Any]:
    """Fields that are not as in a plain model, each with another value that fits the same weights."""
    other: dict[str, Any] = {"rotary": 501.0}
    if model.windows:
        other["windows"] = tuple(w and w + 1 for w in model.windows)
    for name in ("softcap", "final_softcap", "scale", "windowed_rotary"):
        if getattr(model, name) is not None:
            other[name] = 1.1 * getattr(model, name)
    if model.activation == "gelu":
        other["activation"] = "silu"
    if model.interleaved:
        other |= {"interleaved": False, "rotary_lanes": 8}
    return other
