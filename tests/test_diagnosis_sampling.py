"""Causes of what sampled acceptance and row processing do: named, and unknown without their statement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from treeproof.contract.backend import describe
from treeproof.contract.constraints import Constraints
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.registry import load
from treeproof.contract.sampling import Sampling
from treeproof.diagnosis.catalogue import HYPOTHESES
from treeproof.diagnosis.diagnose import UNKNOWN, Diagnosis, diagnose
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.observe import observe
from treeproof.faults.smallest import case, request

TWO = case(request((-1, 0, 0, 1), prefix=1), request((-1, 0), pad_rows=1), seed=3)
RIGHT: Any = load("topology").make()


def cause_of(stage: str, function: Callable[..., Any], hypotheses: Any = HYPOTHESES) -> Any:
    right = load("topology")
    backend = describe(
        function, "mine", stages={stage}, consumes=right.consumes, capabilities=right.capabilities
    )

    def seen(on: Any) -> Any:
        return observe(on, backend, CheckOptions())

    found: Diagnosis | None = diagnose(seen(TWO), seen, hypotheses)
    return found


def draws_with_the_row_s_coin(x: VerifyInput, given: Sampling) -> Accepted:
    done: Accepted = RIGHT.sample(x, given)
    last = done.accept_index.gather(1, done.accept_len[:, None] - 1)[:, 0]
    return RIGHT.sample(  # type: ignore[no-any-return]
        x,
        replace(given, final_coins=torch.where(
            x.retrieve_next_token.flatten()[  # type: ignore[union-attr]
                (x.retrieve_index == last[:, None]).flatten().nonzero()[:, 0]
            ] >= 0, given.coins[last], given.final_coins,
        )),
    )  # fmt: skip


def at_a_temperature_of_1(x: VerifyInput, logits: torch.Tensor, given: Constraints) -> torch.Tensor:
    """On all rows below the root."""
    made: torch.Tensor = RIGHT.process(x, logits, given)
    plain = replace(given, temperature=torch.ones_like(given.temperature))
    warm: torch.Tensor = RIGHT.process(x, logits, plain)
    roots = x.retrieve_index[:, 0]  # type: ignore[index]
    warm[roots] = made[roots]
    return warm


@pytest.mark.parametrize(
    ("stage", "function", "name", "detail"),
    [
        ("sample", draws_with_the_row_s_coin, "one-coin-for-two", ""),
        (
            "sample",
            lambda x, given: RIGHT.sample(
                x, replace(given, coins=torch.nextafter(given.coins, torch.zeros(())))
            ),
            "edge-inclusive",
            "where drafts are accepted",
        ),
        (
            "sample",
            lambda x, given: RIGHT.sample(x, replace(given, rule="greedy")),
            "silently-greedy",
            "",
        ),
        ("process", at_a_temperature_of_1, "parameter-skipped", "temperature"),
    ],
)
def test_a_cause_is_named_and_is_unknown_without_its_statement(
    stage: str, function: Any, name: str, detail: str
) -> None:
    found = cause_of(stage, function)
    assert (found.cause, found.detail) == (name, detail)
    others = tuple(h for h in HYPOTHESES if h.name != name)
    assert cause_of(stage, function, others).cause == UNKNOWN


def test_right_stages_have_no_diagnosis() -> None:
    assert cause_of("sample", RIGHT.sample) is None
    assert cause_of("process", RIGHT.process) is None
