"""What tests ask of the Triton backends, in a process in which Triton interprets."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from backend_scene import SITUATIONS, Scene, Situation, case_of
from interpreter_worker import Edit, planted

from treeproof.contract.registry import load


def reference(name: str) -> str:
    return f"treeproof.backends.triton_{name.replace('-', '_')}:triton-{name}"


def wrong_rows(name: str) -> dict[str, set[int]]:
    """Rows that are off in each of the hand-made situations that the backend takes, by its label."""
    info = load(reference(name))
    backend, wrong = info.make(), {}
    for label, situation in SITUATIONS.items():
        if info.capabilities.refusal(case_of(situation), "cpu") is None:
            scene = Scene(situation)
            wrong[label] = scene.wrong_rows(scene.attend(backend, scene.built(backend)))
    return wrong


def wrong_rows_of(
    name: str, scene: Situation, built: Situation, edit: Edit | None = None
) -> set[int]:
    """Rows that are off where one situation is attended with what was built for another."""
    asked, other = Scene(scene), Scene(built)
    backend = planted(reference(name), edit).make()
    return asked.wrong_rows(asked.attend(backend, other.built(backend)))


@dataclass(frozen=True)
class Merged:
    """Parts (n, 1, 1, lanes), their log-sum-exp (n, 1, 1), and what the kernel makes of them."""

    parts: torch.Tensor
    part_lse: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor


def merged(part_lse: list[float], base_2: bool) -> Merged:
    """Parts with -inf hold NaN, as memory that nobody wrote may."""
    load(reference("cascade")).make()
    from treeproof.backends.kernels.attend import merge

    lse = torch.tensor(part_lse).view(-1, 1, 1)
    parts = torch.randn(len(part_lse), 1, 1, 3, generator=torch.Generator().manual_seed(5))
    parts[lse == -math.inf] = math.nan
    return Merged(parts, lse, *merge(parts, lse, torch.float32, None, base_2=base_2))
