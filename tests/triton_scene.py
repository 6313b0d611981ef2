"""What tests ask of the Triton backends, in a process in which Triton interprets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from backend_scene import CHAIN, FORK, SITUATIONS, Scene, Situation, case_of
from interpreter_worker import Edit, planted

from treeproof.contract.registry import load
from treeproof.contract.sampling import Sampling


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


Runs = list[list[list[int]]]
"""Tokens emitted, of each launch and request; the last one is drawn."""


def sampled_by_both(name: str, vocabulary: int) -> tuple[Runs, Runs]:
    """What a Triton backend emits in sixteen launches, and what its torch twin does. Laws have so many
    whole shares of 2**-14 that no float is rounded, and coins are between them."""
    scene = Scene(Situation(trees=(FORK, CHAIN), prefixes=(1, 0), pads=(0, 0)))
    x = scene.built(load(reference(name)).make())
    generator = torch.Generator().manual_seed(vocabulary)
    children = x.draft_token % vocabulary
    runs: tuple[Runs, Runs] = [], []
    for _ in range(16):
        rows = len(x.draft_token)
        shares = torch.randint(0, vocabulary, (rows, 1 << 14), generator=generator)
        laws = torch.zeros(rows, vocabulary).scatter_add_(1, shares, torch.ones(shares.shape)) / (
            1 << 14
        )
        laws = (laws + torch.eye(vocabulary)[children].roll(-1, 0)) / 2  # the next row is likely
        coins, last = (
            (torch.randint(0, 1 << 15, (n,), generator=generator) + 0.5) / (1 << 15)
            for n in (rows, 2)
        )
        given = Sampling("target-only", laws, coins, last)
        for backend, found in zip((reference(name), "topology"), runs, strict=True):
            done = load(backend).make().sample(replace(x, draft_token=children), given)
            tokens = done.tokens.tolist()
            found.append([t[:n] for t, n in zip(tokens, done.accept_len.tolist(), strict=True)])
    return runs


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
