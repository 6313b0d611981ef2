"""Row processing and the end of a run: known answers, right stages and wrong ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_sample_stage import LINKED, step
from torch import Tensor

from treeproof.contract.backend import describe
from treeproof.contract.constraints import Constraints
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.registry import load
from treeproof.contract.stopping import LENGTH, STOP_TOKEN, Finished, StopRules
from treeproof.engine.check import CheckOptions, check_case

BACKENDS = ("reference", "topology")
FORKED = {
    "candidates": [[3, 0, 1, 2]],
    "retrieve_next_token": [[1, 3, -1, -1]],
    "retrieve_next_sibling": [[-1, 2, -1, -1]],
}
"""Root 3 over A = 0 and B = 1; C = 2 under A: rows root, A, B, C."""


def constraints(**changed: Any) -> Constraints:
    """Nothing is asked of one request with a vocabulary of 4, unless given."""
    plain = Constraints(
        counts=torch.zeros(1, 4, dtype=torch.int64), frequency=torch.zeros(1), presence=torch.zeros(1),
        repetition=torch.ones(1), bias=torch.zeros(1, 4), temperature=torch.ones(1),
        min_p=torch.zeros(1), grammar=torch.zeros(1, 1, 4, dtype=torch.int64),
        grammar_state=torch.zeros(1, dtype=torch.int64),
    )  # fmt: skip
    return replace(plain, **changed)


def processed(name: str, logits: Tensor, **changed: Any) -> list[list[float]]:
    made = load(name).make().process(step(FORKED, 2), logits, constraints(**changed))
    rows: list[list[float]] = made.tolist()
    return rows


@pytest.mark.parametrize("name", BACKENDS)
def test_a_grammar_of_a_c_or_b_d_masks_c_by_the_path_and_not_by_the_rows(name: str) -> None:
    """States: 0 after the root, 1 after A, 2 after B, 3 where all is said."""
    grammar = torch.tensor([[[1, 2, -1, -1], [-1, -1, 3, -1], [-1, -1, -1, 3], [3, 3, 3, 3]]])
    rows = processed(name, torch.zeros(4, 4), grammar=grammar)
    allowed = [[token for token, logit in enumerate(row) if logit == 0] for row in rows]
    assert allowed == [[0, 1], [2], [3], [0, 1, 2, 3]]


@pytest.mark.parametrize("name", BACKENDS)
def test_a_penalty_counts_the_root_once_and_each_path_by_itself(name: str) -> None:
    counts = torch.tensor([[0, 0, 0, 1]])
    rows = processed(name, torch.zeros(4, 4), counts=counts, frequency=torch.ones(1))
    assert rows == [[0, 0, 0, -1], [-1, 0, 0, -1], [0, -1, 0, -1], [-1, 0, -1, -1]]


@pytest.mark.parametrize("name", BACKENDS)
def test_min_p_reaches_every_row_and_cuts_after_the_temperature(name: str) -> None:
    logits = torch.tensor([0.8, 0.2, 0.0, 0.0]).log().expand(4, 4).contiguous()
    half = torch.full((1,), 0.5)
    assert all(row[1] == -math.inf for row in processed(name, logits, min_p=half))
    warm = processed(name, logits, min_p=half, temperature=torch.full((1,), 4.0))
    assert all(row[1] == pytest.approx(math.log(0.2) / 4) for row in warm)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_repetition_penalty_lowers_what_is_above_0_and_what_is_below(name: str) -> None:
    counts = torch.tensor([[1, 1, 0, 0]])
    logits = torch.tensor([[3.0, -3.0, 3.0, -3.0]]).repeat(4, 1)
    rows = processed(name, logits, counts=counts, repetition=torch.full((1,), 2.0))
    assert rows[0] == [1.5, -6, 3, -3]
    assert rows[3] == [1.5, -6, 1.5, -3]


def ended(name: str, budget: int) -> Finished:
    """[a, END, b] with END = 9."""
    tokens = torch.tensor([[5, 9, 6]])
    run = Accepted(
        accept_index=torch.tensor([[0, 1, 2]]), accept_len=torch.tensor([3]), tokens=tokens
    )
    rules = StopRules(
        budget=torch.tensor([budget]), stop_tokens=torch.tensor([[9]]), stop_strings=((),),
        served_text=("",), pieces=tuple("0123456789"),
    )  # fmt: skip
    done: Finished = load(name).make().finish(run, rules)
    return done


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(("budget", "reason"), [(100, STOP_TOKEN), (2, STOP_TOKEN), (1, LENGTH)])
def test_an_end_token_in_the_middle_ends_the_run_also_where_the_budget_ends_with_it(
    name: str, budget: int, reason: int
) -> None:
    done = ended(name, budget)
    assert done.tokens.tolist() == [[5, 9, -1] if budget > 1 else [5, -1, -1]]
    assert done.served.tolist() == [min(budget, 2)]
    assert done.reason.tolist() == [reason]


def test_right_stages_pass_and_are_judged() -> None:
    for name in BACKENDS:
        checked = check_case(LINKED, load(name), CheckOptions())
        judged = [(c.identity, c.status) for c in checked.cells if c.stage in ("process", "finish")]
        assert judged == [("output", "pass"), ("traversal", "pass")]


def keys(stage: str, function: Any) -> set[tuple[str, str]]:
    right = load("topology")
    backend = describe(
        function, "mine", stages={stage}, consumes=right.consumes, capabilities=right.capabilities
    )
    return {f.key for f in check_case(LINKED, backend, CheckOptions()).failures}


def test_what_processing_spoils_or_returns_wrongly_is_told() -> None:
    right: Any = load("topology").make()

    def spoils(x: VerifyInput, logits: Tensor, given: Constraints) -> Tensor:
        done: Tensor = right.process(x, logits, given)
        logits.zero_()
        return done

    assert keys("process", right.process) == set()
    assert keys("process", spoils) == {("contract", "mutates-input")}
    assert keys("process", lambda x, logits, given: logits[:1]) == {("contract", "wrong-shape")}
    assert keys("process", lambda x, logits, given: logits * math.nan) == {
        ("output", "wrong-processing")
    }


def test_an_end_that_returns_something_else_breaks_its_contract() -> None:
    assert keys("finish", lambda run, rules: run) == {("contract", "wrong-type")}
    assert keys("finish", lambda run, rules: 1 / 0) == {("contract", "raises")}
