"""A generator of a backend's own: right wiring passes, wrong wiring fails by counting what is emitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.event import Checked
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.registry import load
from treeproof.contract.sampling import CHAIN, GREEDY, TARGET_ONLY, TYPICAL, Rule, Sampling
from treeproof.engine.check import CheckOptions, check_case
from treeproof.faults.catalog import exactly
from treeproof.faults.plant import remembering
from treeproof.faults.smallest import case, request
from treeproof.oracles.law import exact_law, target_only
from treeproof.oracles.rules import chain, typical, typical_ends
from treeproof.properties.chance import (
    ALPHA,
    EFFECT,
    POWER,
    TREE,
    calls_for,
    chances,
    critical,
    draws_for,
    judge_chance,
    power,
    survival,
)

Coins = Callable[[VerifyInput, Sampling], tuple[Tensor, Tensor]]
"""Coins of rows (T,), and of last tokens (B,)."""
RULES: tuple[Rule, ...] = (TARGET_ONLY, CHAIN, TYPICAL)


def drawing(
    new: Callable[[], Coins], rule: Rule = TARGET_ONLY, deterministic: bool = True
) -> Backend:
    """A right sampling behind coins of its own; `new` makes what draws them, once an instance."""
    right = load("topology" if rule == TARGET_ONLY else "reference")

    def sample() -> Callable[..., Accepted]:
        coins = new()

        def around(as_it_was: Any, x: VerifyInput, given: Sampling) -> Accepted:
            of_rows, last = coins(x, given)
            done: Accepted = as_it_was(
                x, replace(given, coins=of_rows, final_coins=last, seed=None)
            )
            return done

        return around

    own = {"sampling": frozenset({rule}), "own_coins": True, "deterministic": deterministic}
    capabilities = msgspec.structs.replace(right.capabilities, **own)
    return replace(remembering(right, "sample", sample), capabilities=capabilities)


def checked(backend: Backend, probe: str = "law") -> Checked:
    options = CheckOptions(probes=frozenset({probe}))
    return check_case(case(request((-1, 0))), backend, options)


def seeded(given: Sampling) -> torch.Generator:
    assert given.seed is not None
    return torch.Generator().manual_seed(given.seed)


def fresh(x: VerifyInput, given: Sampling) -> tuple[Tensor, Tensor]:
    generator = seeded(given)
    rows, requests = len(given.target_probs), len(x.seq_lens)
    return torch.rand(rows, generator=generator), torch.rand(requests, generator=generator)


def from_torch(x: VerifyInput, given: Sampling) -> tuple[Tensor, Tensor]:
    return torch.rand(len(given.target_probs)), torch.rand(len(x.seq_lens))


@pytest.mark.parametrize("coins", [fresh, from_torch], ids=["of the seed", "torch's own"])
@pytest.mark.parametrize("rule", RULES)
def test_a_right_generator_passes(coins: Coins, rule: Rule) -> None:
    result = checked(drawing(lambda: coins, rule))
    assert result.failures == ()
    assert [c.status for c in result.cells if c.stage == "sample"] == ["pass"]


def test_what_it_does_with_given_coins_is_not_checked() -> None:
    cells = [c for c in checked(drawing(lambda: fresh), "sample").cells if c.stage == "sample"]
    assert [(c.status, c.reason) for c in cells] == [
        ("not-checked", "it draws its own coins: what it does with given ones is not seen")
    ]
    assert checked(drawing(lambda: fresh), "malformed").failures == ()


def test_a_rule_that_asks_no_coin_is_judged_as_that_of_any_other() -> None:

    def none_is_given(x: VerifyInput, given: Sampling) -> tuple[Tensor, Tensor]:
        assert given.seed is not None
        assert given.coins.isnan().all()
        assert given.final_coins.isnan().all()
        return no_coin(x, given)

    backend = drawing(lambda: none_is_given, GREEDY)
    assert {c.status for c in checked(backend, "sample").cells if c.stage == "sample"} == {
        "pass",
        "not-checked",
    }
    (failure,) = checked(exactly("last-of-equals").plant(backend), "sample").failures[:1]
    assert failure.stage == "sample"


def per_request(x: VerifyInput, coin: Tensor) -> Tensor:
    """(T,) a request's coin on each of its rows."""
    assert x.retrieve_index is not None
    return coin.repeat_interleave(x.retrieve_index.shape[1])


def one_for_all_rows(x: VerifyInput, given: Sampling) -> tuple[Tensor, Tensor]:
    coin, last = torch.rand(2, len(x.seq_lens), generator=seeded(given))
    return per_request(x, coin), last


def one_for_rows_and_last(x: VerifyInput, given: Sampling) -> tuple[Tensor, Tensor]:
    rows, _ = fresh(x, given)
    return rows, rows.view(len(x.seq_lens), -1)[:, 1].clone()


def one_for_all_requests(x: VerifyInput, given: Sampling) -> tuple[Tensor, Tensor]:
    """Each request seeds a generator of its own alike."""
    rows, last = fresh(x, given)
    width = len(rows) // len(last)
    return rows[:width].repeat(len(last)), last[:1].expand(len(last)).clone()


def one_for_two_requests(shift: int) -> Coins:
    def coins(x: VerifyInput, given: Sampling) -> tuple[Tensor, Tensor]:
        rows, last = fresh(x, given)
        whose = (torch.arange(len(last)) + shift) // 2
        return rows.view(len(last), -1)[whose].flatten(), last[whose]

    return coins


def only_last_coins_shared(x: VerifyInput, given: Sampling) -> tuple[Tensor, Tensor]:
    rows, last = fresh(x, given)
    return rows, last[:1].expand(len(last)).clone()


def no_coin(x: VerifyInput, given: Sampling) -> tuple[Tensor, Tensor]:
    return torch.zeros(len(given.target_probs)), torch.zeros(len(x.seq_lens))


def seed_ignored(x: VerifyInput, given: Sampling) -> tuple[Tensor, Tensor]:
    return fresh(x, replace(given, seed=7))


def half_the_seeds(shift: int) -> Coins:
    def coins(x: VerifyInput, given: Sampling) -> tuple[Tensor, Tensor]:
        assert given.seed is not None
        return fresh(x, replace(given, seed=(given.seed + shift) // 2))

    return coins


BOTH = {"dependent-draws", "wrong-law"}
"""Fewer draws than it seems are far from their law by chance."""


@pytest.mark.parametrize(
    ("coins", "kinds"),
    [
        (one_for_all_rows, {"wrong-law"}),
        (one_for_rows_and_last, {"wrong-law"}),
        (no_coin, {"wrong-law"}),
        (one_for_all_requests, BOTH),
        (one_for_two_requests(0), {"dependent-draws"}),
        (one_for_two_requests(1), {"dependent-draws"}),
        (only_last_coins_shared, {"dependent-draws"}),
        (seed_ignored, BOTH),
        (half_the_seeds(0), {"dependent-draws"}),
        (half_the_seeds(1), {"dependent-draws"}),
    ],
)
def test_a_generator_that_is_wired_wrongly_fails(coins: Coins, kinds: set[str]) -> None:
    found = checked(drawing(lambda: coins)).failures
    assert {f.kind for f in found} == kinds
    assert {f.stage for f in found} == {"sample"}


def goes_on() -> Coins:
    """One generator, seeded once."""
    generator = torch.Generator().manual_seed(3)

    def coins(x: VerifyInput, given: Sampling) -> tuple[Tensor, Tensor]:
        rows, requests = len(given.target_probs), len(x.seq_lens)
        return torch.rand(rows, generator=generator), torch.rand(requests, generator=generator)

    return coins


def test_who_cannot_be_seeded_says_that_it_is_not_deterministic() -> None:
    (failure,) = checked(drawing(goes_on)).failures
    assert failure.key == ("contract", "nondeterministic")
    assert "declare deterministic=False if meant" in failure.message
    assert checked(drawing(goes_on, deterministic=False)).failures == ()


def test_the_message_says_what_was_counted_and_how_sure_it_is() -> None:
    (failure,) = judge_chance({(0,): 0.5, (1,): 0.5}, [[(0,)] * 60] * 2)
    assert failure.message == (
        "by a generator of its own a request emits [0] 120 times in 120, expected some 60: chi-square is "
        "120 with 1 degrees of freedom, and by chance above 44 with probability 3e-11"
    )
    (strange,) = judge_chance({(0,): 1.0}, [[(0,)] * 9, [(0,)] * 8 + [()]])
    assert "a request emits [] 1 times in 18, expected some 0" in strange.message


@pytest.mark.parametrize("rule", RULES)
def test_the_law_that_is_counted_against_is_the_rule_s_own(rule: Rule) -> None:
    given = chances(rule)
    assert given is not None
    laws = [[Fraction(share) for share in law] for law in given.probs.tolist()]
    if rule == TARGET_ONLY:
        walk = target_only(TREE, laws)
    elif rule == CHAIN:
        assert given.draft is not None
        walk = chain(TREE, laws, [[Fraction(q) for q in law] for law in given.draft.tolist()])
    else:
        (end,) = typical_ends(TREE, given.probs.tolist(), 0.09, 0.3)
        walk = typical(TREE, laws, end)
    assert exact_law(walk) == given.law


@pytest.mark.parametrize(
    ("outcomes", "effect", "alpha", "draws"),
    [
        (8, 0.05, 1e-6, 8.2e3),
        (8, 0.05, 1e-9, 1.0e4),
        (8, 0.02, 1e-6, 5.1e4),
        (8, 0.02, 1e-9, 6.5e4),
        (8, 0.01, 1e-6, 2.1e5),
        (32, 0.02, 1e-6, 7.2e4),
        (32, 0.02, 1e-9, 8.8e4),
    ],
)
def test_draws_for_a_power_of_999_are_those_that_scipy_gives(
    outcomes: int, effect: float, alpha: float, draws: float
) -> None:
    """Computed once with scipy.stats.ncx2, to two places; the eighth is rounded up."""
    assert draws_for(outcomes - 1, effect, alpha) == pytest.approx(draws, rel=0.05)


def test_of_two_degrees_of_freedom_chi_square_is_an_exponential() -> None:
    for statistic in (1.0, 40.0, 100.0):
        assert survival(statistic, 2) == pytest.approx(np.exp(-statistic / 2), rel=1e-12)
    assert critical(2, ALPHA) == pytest.approx(-2 * np.log(ALPHA))


def tables(seed: int, joint: np.ndarray[Any, Any], draws: int, times: int) -> np.ndarray[Any, Any]:
    """Chi-square of so many tables of pairs against independence."""
    drawn = np.random.default_rng(seed).multinomial(draws, joint.ravel(), size=times)
    table = drawn.reshape(times, *joint.shape).astype(float)
    due = table.sum(2, keepdims=True) * table.sum(1, keepdims=True) / draws
    statistics: np.ndarray[Any, Any] = ((table - due) ** 2 / due).sum((1, 2))
    return statistics


def test_pairs_of_independent_draws_fail_as_often_as_it_is_said() -> None:
    """At levels that so many tables can show."""
    given = chances(TARGET_ONLY)
    assert given is not None
    once = np.array(list(given.law.values()))
    freedom = (len(once) - 1) ** 2
    found = tables(0, np.outer(once, once), draws_for(freedom), 200_000)
    for alpha in (1e-2, 1e-3):
        assert (found > critical(freedom, alpha)).mean() == pytest.approx(alpha, rel=0.15)


def test_a_dependence_of_the_declared_size_fails_as_often_as_it_is_said() -> None:
    """At a tenth of all, two draws are one: spread over all cells, which is the hardest to see."""
    given = chances(TARGET_ONLY)
    assert given is not None
    once = np.array(list(given.law.values()))
    independent, same = np.outer(once, once), np.diag(once)
    off = np.abs(same - independent).sum() / 2
    joint = independent + (same - independent) * EFFECT / off
    freedom = (len(once) - 1) ** 2
    draws = draws_for(freedom)
    found = tables(1, joint, draws, 20_000)
    assert (found > critical(freedom, ALPHA)).mean() > POWER
    assert POWER < power(draws, freedom) < POWER + 0.001


def test_as_many_calls_are_made_as_the_power_asks_for() -> None:
    given = chances(TARGET_ONLY)
    assert given is not None
    calls, requests = calls_for(given.law, 128), 128
    needed = draws_for((len(given.law) - 1) ** 2)
    assert calls * ((requests - 1) // 2) >= needed
    assert (calls - 1) // 2 * requests >= needed
    assert calls * requests >= draws_for(len(given.law) - 1)
