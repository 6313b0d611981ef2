"""Sampled acceptance for given coins: known answers, right walks and wrong ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from treeproof.contract.backend import describe
from treeproof.contract.case import VerifyCase
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.registry import load
from treeproof.contract.sampling import Sampling
from treeproof.engine.check import CheckOptions, check_case
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import FORK, case, request
from treeproof.properties.sampling_rules import launches

BACKENDS = ("reference", "topology")

LINKED = case(request(FORK, prefix=1), request((-1, 0, 1, 1), pad_rows=1), seed=3)
STAR = case(request((-1, 0, 0, 0, 0)), seed=1)
TREES = {
    "candidates": [[0, 1, 2, 3, 4, 5], [7, 8, 9, 10, 11, 12]],
    "retrieve_next_token": [[1, 2, -1, 4, 5, -1], [4, 2, 3, -1, 5, -1]],
    "retrieve_next_sibling": [[-1, 3, -1, -1, -1, -1], [-1, -1, -1, -1, 1, -1]],
}


def step(links: dict[str, list[list[int]]], spec_steps: int) -> VerifyInput:
    """A verify input of which only what acceptance looks at is filled in."""
    tokens = torch.tensor(links["candidates"])
    rows = torch.arange(tokens.numel())
    empty = torch.zeros(0, dtype=torch.int64)
    return VerifyInput(
        draft_token=tokens.flatten(), positions=rows, seq_lens=torch.zeros(len(tokens), dtype=torch.int64),
        qo_indptr=empty, out_cache_loc=rows, request_slots=empty, req_to_token=empty, topk=4,
        spec_steps=spec_steps, shape=LINKED.shape, kv=LINKED.layout,
        retrieve_index=rows.view(tokens.shape),
        retrieve_next_token=torch.tensor(links["retrieve_next_token"]),
        retrieve_next_sibling=torch.tensor(links["retrieve_next_sibling"]),
    )  # fmt: skip


def sampled(name: str, x: VerifyInput, given: Sampling) -> Accepted:
    result: Accepted = load(name).make().sample(x, given)
    return result


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("threshold", [0.0, 1.0])
@pytest.mark.parametrize("coin", [0.0, 0.5, 0.999])
def test_sglang_s_two_trees_at_a_low_temperature(name: str, threshold: float, coin: float) -> None:
    """Probabilities so sharp that neither coins nor thresholds matter."""
    logits = torch.ones(12, 20)
    for row, token in ((0, 3), (3, 4), (4, 5), (6, 11), (10, 12)):
        logits[row, token] = 10
    for row in (1, 2, 5, 7, 8, 9, 11):
        logits[row, 18] = 10
    given = Sampling(
        rule="target-only", target_probs=(logits / 0.01).softmax(-1),
        coins=torch.full((12,), coin), final_coins=torch.full((2,), coin),
        threshold_single=threshold, threshold_acc=threshold,
    )  # fmt: skip
    done = sampled(name, step(TREES, 3), given)
    assert done.accept_index.tolist() == [[0, 3, 4, 5], [6, 10, 11, -1]]
    assert (done.accept_len - 1).tolist() == [3, 2]
    assert done.tokens.tolist() == [[3, 4, 5, 18], [11, 12, 18, -1]]


ONE_LEVEL = [
    ((0, 0, 1, 0), [1, -1], [-1, -1], 0.0, 0.0, 0, 2),
    ((0, 0, 1, 0), [1, -1], [-1, -1], 1.0, 0.0, 0, 2),
    ((0, 0.25, 0.75, 0), [1, -1], [-1, -1], 1.0, 0.0, 1, 1),
    ((0, 0.25, 0, 0.75), [1, -1, -1, -1], [-1, 2, 3, -1], 1.0, 0.25, 1, 3),
]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(
    ("law", "down", "right", "single", "coin", "accepted", "first"),
    ONE_LEVEL,
    ids=[
        "zero probability, any threshold",
        "zero probability",
        "zero coin accepts",
        "coin on an edge passes over a child without mass",
    ],
)
def test_one_level_of_sglang_s_rule(
    name: str, law: Any, down: list[int], right: list[int], single: float, coin: float,
    accepted: int, first: int,
) -> None:  # fmt: skip
    rows = len(down)
    links = {
        "candidates": [list(range(rows))],
        "retrieve_next_token": [down],
        "retrieve_next_sibling": [right],
    }
    laws = torch.tensor([law, *[(0.0, 0.0, 1.0, 0.0)] * (rows - 1)], dtype=torch.float32)
    given = Sampling(
        rule="target-only", target_probs=laws, coins=torch.full((rows,), coin),
        final_coins=torch.zeros(1), threshold_single=single,
    )  # fmt: skip
    done = sampled(name, step(links, 2), given)
    assert int(done.accept_len) - 1 == accepted
    assert int(done.tokens[0, 0]) == first


def kinds(sample: Any, of: VerifyCase = LINKED) -> set[tuple[str, str]]:
    right = load("topology")
    backend = describe(
        sample, "mine", stages={"sample"}, consumes=right.consumes, capabilities=right.capabilities
    )
    return {f.key for f in check_case(of, backend, CheckOptions()).failures}


def right_sample(x: VerifyInput, given: Sampling) -> Accepted:
    return sampled("topology", x, given)


def test_a_right_walk_passes_and_is_judged() -> None:
    assert kinds(right_sample) == set()
    for name in BACKENDS:
        cells = check_case(LINKED, load(name), CheckOptions()).cells
        assert {c.status for c in cells if c.stage == "sample"} == {"pass"}


def test_a_walk_by_ours_is_not_checked() -> None:
    backend = describe(lambda x, g: sampled("reference", x, g), "mine", stages={"sample"})
    checked = check_case(LINKED, backend, CheckOptions())
    assert not [c for c in checked.cells if c.stage == "sample"]
    (cell,) = (c for c in checked.cells if (c.identity, c.evidence) == ("traversal", "measured"))
    assert cell.status == "not-checked"


def test_the_older_rule_that_lets_children_without_mass_through_is_told_apart() -> None:
    """SGLang before its guard: at thresholds of 0 the first child is taken whatever it is."""

    def older(x: VerifyInput, given: Sampling) -> Accepted:
        return right_sample(x, replace(given, target_probs=given.target_probs.clamp(min=2.0**-60)))

    assert ("traversal", "wrong-acceptance") in kinds(older, STAR)


@pytest.mark.parametrize(
    ("returned", "kind"),
    [
        (lambda x, g: None, "wrong-type"),
        (lambda x, g: replace(right_sample(x, g), tokens=torch.zeros(1)), "wrong-shape"),
        (lambda x, g: 1 / 0, "raises"),
    ],
)
def test_a_walk_that_returns_something_else_breaks_its_contract(returned: Any, kind: str) -> None:
    assert kinds(returned) == {("contract", kind)}


def test_a_walk_that_spoils_its_probabilities_is_told() -> None:
    """SGLang's kernel writes into the draft probabilities: scratch of its own, not a caller's law."""

    def spoils(x: VerifyInput, given: Sampling) -> Accepted:
        done = right_sample(x, given)
        given.target_probs.zero_()
        return done

    assert kinds(spoils) == {("contract", "mutates-input")}


@pytest.mark.parametrize(
    ("row", "says"),
    [(-7, "-7"), (0, "another request's row"), (10**9, "out of range")],
    ids=["negative", "of another request", "out of range"],
)
def test_rows_that_are_none_of_the_request_are_failures_and_no_crash(row: int, says: str) -> None:
    def strays(x: VerifyInput, given: Sampling) -> Accepted:
        done = right_sample(x, given)
        done.accept_index[1, 0] = row
        return done

    assert kinds(strays) == {("traversal", "wrong-acceptance")}, says


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"coins": (1, 1.0)}, r"coins\[1\] is 1.0: accepted are 0 up to but not including 1"),
        ({"coins": (0, float("nan"))}, r"coins\[0\] is nan: accepted are 0 up to"),
        ({"final_coins": (1, -0.5)}, r"final_coins\[1\] is -0.5: accepted are 0 up to"),
        ({"target_probs": ((1, 0), -0.25)}, r"target_probs\[1, 0\] is -0.25: accepted are 0 and"),
        ({"target_probs": ((2, 1), float("nan"))}, r"target_probs\[2, 1\] is nan: accepted are 0"),
        ({"target_probs": (2, 0.0)}, r"target_probs\[2\] adds up to 0: accepted is 1"),
        ({"target_probs": (2, 0.5)}, r"target_probs\[2\] adds up to 1.5: accepted is 1"),
        ({"threshold_acc": 1.5}, r"threshold_acc is 1.5: accepted are 0 to 1"),
        ({"rule": "first"}, r"rule is 'first': accepted are target-only, chain, typical, greedy"),
    ],
)
def test_numbers_that_are_none_are_refused_by_field_and_row(
    change: dict[str, Any], says: str
) -> None:
    given = Sampling(
        rule="target-only", target_probs=torch.full((12, 3), 1 / 3), coins=torch.zeros(12),
        final_coins=torch.zeros(2),
    )  # fmt: skip
    for name, value in change.items():
        if isinstance(value, tuple):
            at, number = value
            tensor = getattr(given, name).clone()
            tensor[at] = number
            given = replace(given, **{name: tensor})
        else:
            given = replace(given, **{name: value})
    with pytest.raises(ValueError, match=says):
        sampled("reference", step(TREES, 3), given)


def test_most_coins_lie_on_edges_and_no_walk_is_ever_in_doubt_there() -> None:
    for launch in launches(LINKED, "target-only"):
        assert all(len(launch.excused(b)) == 1 for b in range(len(launch.plans)))
        assert launch.exact == (launch.what != "arbitrary numbers")
        assert (launch.probs.sum(1) == 1).all() or not launch.exact or LINKED.requests[1].pad_rows


CHAINED = case(request((-1, 0, 1, 2)), request((-1, 0), pad_rows=1), seed=2)


@pytest.mark.parametrize("rule", ["chain", "typical", "greedy"])
def test_each_rule_is_asked_of_a_backend_that_knows_it_and_of_no_other(rule: Any) -> None:
    asked: list[str] = []

    def noting(x: VerifyInput, given: Sampling) -> Accepted:
        asked.append(given.rule)
        return sampled("topology", x, given) if given.rule == "greedy" else plain(x, given)

    def plain(x: VerifyInput, given: Sampling) -> Accepted:
        return sampled("reference", x, given)

    capabilities = replace_rules(load("topology").capabilities, {rule})
    backend = describe(
        noting, "mine", stages={"sample"}, consumes=load("topology").consumes,
        capabilities=capabilities,
    )  # fmt: skip
    assert check_case(CHAINED, backend, CheckOptions()).failures == ()
    assert set(asked) == {rule}


def replace_rules(capabilities: Any, rules: set[str]) -> Any:
    return msgspec.structs.replace(capabilities, sampling=frozenset(rules))


def chained(coin: float, last: float, p: list[float], q: list[float]) -> list[int]:
    """One draft, of token 1, under the root."""
    links = {
        "candidates": [[0, 1]],
        "retrieve_next_token": [[1, -1]],
        "retrieve_next_sibling": [[-1, -1]],
    }
    given = Sampling(
        rule="chain", target_probs=torch.tensor([p, [0.0, 0.0, 1.0]]), coins=torch.tensor([coin, 0.0]),
        final_coins=torch.tensor([last]), draft_probs=torch.tensor([[q]]),
    )  # fmt: skip
    done = sampled("reference", step(links, 1), given)
    return [token for token in done.tokens[0].tolist() if token >= 0]


@pytest.mark.parametrize(
    ("coin", "last", "emitted"),
    [
        (0.25, 0.0, [1, 2]),  # p / q is a half
        (0.5, 0.0, [0]),  # the residual is (1/4, 0, 0)
        (0.5, 0.99, [0]),
    ],
)
def test_a_chain_accepts_below_p_over_q_and_draws_from_what_p_has_more(
    coin: float, last: float, emitted: list[int]
) -> None:
    assert chained(coin, last, [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]) == emitted


def test_a_draft_that_was_never_drawn_is_refused_whatever_the_target_says() -> None:
    assert chained(0.0, 0.0, [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]) == [1]


def test_of_equal_probabilities_the_first_wins() -> None:
    links = {
        "candidates": [[0, 0, 1]],
        "retrieve_next_token": [[1, -1, -1]],
        "retrieve_next_sibling": [[-1, 2, -1]],
    }
    given = Sampling(
        rule="greedy", target_probs=torch.full((3, 2), 0.5), coins=torch.full((3,), 0.9),
        final_coins=torch.full((1,), 0.9),
    )  # fmt: skip
    for name in BACKENDS:
        assert sampled(name, step(links, 1), given).tokens.tolist() == [[0, 0]]


def test_typical_acceptance_takes_the_longest_admissible_path_and_of_equal_ones_the_likeliest() -> (
    None
):
    links = {
        "candidates": [[0, 0, 1, 2, 0]],
        "retrieve_next_token": [[1, 4, 3, -1, -1]],
        "retrieve_next_sibling": [[-1, 2, -1, -1, -1]],
    }
    laws = torch.tensor(
        [[0.6, 0.4, 0.0], [0.5, 0.5, 0.0], [0.05, 0.05, 0.9], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    )
    given = Sampling(
        rule="typical", target_probs=laws, coins=torch.zeros(5), final_coins=torch.zeros(1)
    )
    # 0.4 * 0.9 is likelier than 0.6 * 0.5, and both are two long.
    assert sampled("reference", step(links, 2), given).tokens.tolist() == [[1, 2, 0]]
    unlikely = replace(given, target_probs=laws.clone().index_fill(0, torch.tensor([2]), 1 / 3))
    assert sampled("reference", step(links, 2), unlikely).tokens.tolist() == [[0, 0, 1]]


def test_a_wrong_law_is_told_by_the_smallest_tree_and_its_probabilities() -> None:
    """One coin refuses the draft and draws: it is 1/2 or more then, and below that it draws token 0."""

    def one_coin(x: VerifyInput, given: Sampling) -> Accepted:
        done = right_sample(x, given)
        last = done.accept_index.gather(1, done.accept_len[:, None] - 1)[:, 0]
        inner = x.retrieve_next_token.flatten()[last] >= 0  # type: ignore[union-attr]
        coins = torch.where(inner, given.coins[last], given.final_coins)
        return right_sample(x, replace(given, final_coins=coins))

    right = load("topology")
    backend = describe(
        one_coin,
        "mine",
        stages={"sample"},
        consumes=right.consumes,
        capabilities=right.capabilities,
    )
    found = check_case(case(request()), backend, CheckOptions()).failures
    (law,) = (f for f in found if f.kind == "wrong-law")
    assert law.message == (
        "on the tree of parents [-1, 0] and tokens [0, 1], over all 16 cells of the coins, [0] is "
        "emitted with probability 0, expected 1/4 as by plain decoding"
    )


def malformed(sample: Any, *rules: Any) -> list[str]:
    right = load("topology")
    able = msgspec.structs.replace(
        right.capabilities, sampling=set(rules or right.capabilities.sampling)
    )
    backend = describe(
        sample, "mine", stages={"sample"}, consumes=right.consumes, capabilities=able
    )
    found = check_case(case(request()), backend, CheckOptions(probes=frozenset({"malformed"})))
    assert all(f.request is None for f in found.failures)  # of two chains, and the case has one
    return [f.message for f in found.failures]


def test_numbers_that_are_none_are_refused_or_kept_to_their_request() -> None:
    assert malformed(right_sample) == []
    assert malformed(lambda x, given: sampled("reference", x, given)) == []


def test_laws_of_a_drafter_that_are_none_are_handed_to_who_samples_chains() -> None:
    handed: list[Sampling] = []

    def whole_chains(x: VerifyInput, given: Sampling) -> Accepted:
        """What the two chains come to where all is right; nothing is looked at."""
        handed.append(given)
        index = torch.arange(6).view(2, 3)
        return Accepted(index, torch.tensor([3, 3]), torch.tensor([[1, 2, 2]] * 2))

    def by_the_mass_of_all(x: VerifyInput, given: Sampling) -> Accepted:
        done = whole_chains(x, given)
        assert given.draft_probs is not None
        short = given.draft_probs.sum() < 4
        return replace(done, tokens=torch.where(short, 3, done.tokens))

    assert malformed(whole_chains, "chain") == []
    laws = [given.draft_probs for given in handed]
    assert all(given.rule == "chain" for given in handed)
    assert sum(law is not None and bool(law.isnan().any()) for law in laws) == 1
    told = malformed(by_the_mass_of_all, "chain")
    assert [message.partition(", request 1 is")[0] for message in told] == [
        "on two chains of three rows, where in request 0 a probability of the drafter is below 0",
        "on two chains of three rows, where in request 0 no token has any probability of the drafter",
    ]
    refusing = malformed(lambda x, given: sampled("reference", x, given), "chain")
    assert refusing == []


def test_a_token_outside_the_vocabulary_and_a_spoilt_neighbour_are_told() -> None:
    def past_the_end(x: VerifyInput, given: Sampling) -> Accepted:
        """Nothing lies above the last coin, and the search runs out of the table."""
        done = right_sample(x, given)
        mass = given.target_probs.sum(1)[done.accept_index[:, 0] + 1]
        lost = ~(mass > 0) | ~(given.final_coins < 1)
        last = done.accept_len[:, None] - 1
        outside = done.tokens.scatter(1, last, given.target_probs.shape[1])
        return replace(done, tokens=torch.where(lost[:, None], outside, done.tokens))

    def sums_over_the_batch(x: VerifyInput, given: Sampling) -> Accepted:
        spoilt = given.coins.sum() * 0
        return right_sample(x, replace(given, final_coins=given.final_coins + spoilt))

    assert any("the last coin is 1" in message for message in malformed(past_the_end))
    assert all("rows or tokens that are none of its own" in m for m in malformed(past_the_end))
    told = malformed(sums_over_the_batch)
    assert [m.partition(",")[0] for m in told] == ["on two chains of three rows"]
    assert "a coin is NaN, request 1 is" in told[0]


@pytest.mark.parametrize(
    ("rule", "one_bit_off"),
    [
        ("target-only", lambda g: {"threshold_single": min(1.0, g.threshold_single + 2.0**-24)}),
        ("chain", lambda g: {"coins": torch.nextafter(g.coins, torch.tensor(-1.0)).clamp(0)}),
        ("typical", lambda g: {"epsilon": g.epsilon * (1 - 2.0**-23)}),
    ],
)  # fmt: skip
def test_each_rule_is_asked_on_its_edges_where_one_bit_decides(rule: Any, one_bit_off: Any) -> None:
    def off(right: Any, x: VerifyInput, given: Sampling) -> Accepted:
        changed = one_bit_off(given) if given.rule == rule else {}
        done: Accepted = right(x, replace(given, **changed))
        return done

    many, reference = case(*[request((-1, 0, 0, 1, 2))] * 3, seed=0), load("reference")
    assert check_case(many, reference, CheckOptions()).failures == ()
    found = check_case(many, wrapped(reference, "sample", off), CheckOptions()).failures
    assert ("traversal", "wrong-acceptance") in {f.key for f in found}


def test_a_threshold_that_is_held_from_below_is_told() -> None:
    """A guard against a division by 0 that is set too high; whether it shows is for the coins to say."""

    def held(right: Any, x: VerifyInput, given: Sampling) -> Accepted:
        done: Accepted = right(x, replace(given, threshold_acc=max(0.5, given.threshold_acc)))
        return done

    planted = wrapped(load("reference"), "sample", held)
    told = [
        failure.message
        for seed in range(4)
        for failure in check_case(
            case(*[request((-1, 0, 0, 1, 2))] * 3, seed=seed), planted, CheckOptions()
        ).failures
    ]
    assert any("thresholds of 1 (single) and 0 (acc)" in message for message in told)
