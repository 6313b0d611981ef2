"""Biases and min-p of requests in scripts, and rounds that accept by `typical`: right ones pass, wrong ones show."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from test_rounds import FIVE, TREE, checked, kinds, ready, served, turns
from test_rounds_params import asking
from test_rounds_sampled import sampled

from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.registry import load
from treeproof.contract.sampling import Sampling
from treeproof.contract.script import Params
from treeproof.contract.served_model import served_model
from treeproof.contract.tree import CandidateTree
from treeproof.faults.plant import remembering, wrapped
from treeproof.faults.smallest import request
from treeproof.generate.prefix_tokens import prefix_tokens
from treeproof.oracles.continuation import continuation
from treeproof.oracles.processed import Asked
from treeproof.oracles.rules import typical_ends, typical_ends_in_doubt
from treeproof.oracles.sequence import sequence_logits
from treeproof.properties.plans import flat_tokens, plans_of
from treeproof.properties.processing import Processed, judge_processed

BIAS = ((3, 2.0), (17, -3.0), (40, 1.5), (99, 4.0))
ASKED = Params(bias=BIAS, min_p=0.125, temperature=0.5)
LINE = (-1, 0, 1, 2)
DEEP = served(
    request((-1, 0, 0, 1, 2, 3, 4), 5),
    steps=[*ready(0), *(sampled(a, rule="typical") for a in (0, 0, 1, 2, 4, 0, 3))],
)


def asked(rule: str | None, tree: Any = TREE, params: Params = ASKED) -> Any:
    rounds = [sampled(a, rule=rule) if rule else turns(a) for a in (2, 0, 1, 3)]
    return served(request(tree, 5), steps=[*asking(params), *rounds])


@pytest.mark.parametrize("backend", [*FIVE, "reference"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rounds_of_right_backends_pass_whatever_is_asked(backend: str, dtype: Any) -> None:
    for script in (asked(None), asked("target-only"), asked("chain", LINE), asked("typical")):
        shape = msgspec.structs.replace(script.shape, dtype=dtype)
        found = checked(msgspec.structs.replace(script, shape=shape), backend)
        assert found.failures == ()
        assert found.generated is not None
        assert found.generated.rounds == 4


def logits_after(script: Any, known: list[int]) -> torch.Tensor:
    return sequence_logits(served_model(script), known)[0][-1]


def test_greedy_decoding_with_biases_is_done_by_hand() -> None:
    params = Params(bias=((3, 2.0), (17, -3.0), (99, 4.0)))
    script = served(request(TREE, 5), steps=[*asking(params), turns(3), turns(4)])
    emitted: list[int] = []

    def around(right: Callable[..., Accepted], x: VerifyInput, target: Any) -> Accepted:
        done = right(x, target)
        emitted.extend(done.tokens[0, : done.accept_len[0]].tolist())
        return done

    assert checked(script, wrapped(load("topology"), "accept", around)).failures == ()
    known = prefix_tokens(script, served_model(script).vocab_size)[0].tolist()
    biased, plain = [*known], [*known]
    for _ in range(1 + len(emitted)):
        logits = logits_after(script, biased)
        logits[3] += 2.0
        logits[17] -= 3.0
        biased.append(int(logits.argmax()))
        plain.append(int(logits_after(script, plain).argmax()))
    assert biased[len(known) + 1 :] == emitted
    assert plain[len(known) + 1 :] != emitted


def test_rounds_by_typical_go_as_far_as_the_target_says() -> None:
    rounds: list[tuple[VerifyInput, Sampling, Accepted]] = []

    def around(right: Callable[..., Accepted], x: VerifyInput, given: Sampling) -> Accepted:
        rounds.append((x, given, right(x, given)))
        return rounds[-1][2]

    script, tree = DEEP, DEEP.requests[0].tree.parents
    assert checked(script, wrapped(load("reference"), "sample", around)).failures == ()
    prompt = prefix_tokens(script, served_model(script).vocab_size)[0].tolist()
    known = [*prompt, int(logits_after(script, prompt).argmax())]
    depths = set()
    for x, given, done in rounds:
        tokens = x.draft_token.tolist()
        reached = {0: (0, 1.0)}
        for node in range(1, len(tree)):
            above = tree[node]
            if above in reached:
                path, at = [], above
                while at > 0:
                    path.append(tokens[at])
                    at = tree[at]
                law = logits_after(script, known + path[::-1]).softmax(0)
                entropy = -float((law * law.log()).sum())
                share = float(law[tokens[node]])
                if share > min(given.epsilon, given.delta * math.exp(-entropy)):
                    reached[node] = (reached[above][0] + 1, reached[above][1] * share)
        end = max(reached, key=lambda node: reached[node])
        emitted = done.tokens[0, : done.accept_len[0]].tolist()
        path, at = [], end
        while at > 0:
            path.append(tokens[at])
            at = tree[at]
        assert emitted[:-1] == path[::-1]
        depths.add(len(path))
        known += emitted
    assert len(depths) > 1  # some drafts are refused, and some are not


def later(stage: str, change: Callable[[Any], Any], backend: str = "topology") -> Any:
    """From the second call on the last argument is another one."""

    def new() -> Callable[..., Any]:
        calls: list[int] = []

        def around(right: Callable[..., Any], *given: Any) -> Any:
            calls.append(1)
            return right(*given[:-1], change(given[-1]) if len(calls) > 1 else given[-1])

        return around

    return remembering(load(backend), stage, new)


@pytest.mark.parametrize(
    ("stage", "change", "script", "kind"),
    [
        (
            "process", lambda c: replace(c, bias=torch.zeros_like(c.bias)), asked(None),
            ("output", "wrong-processing"),
        ),
        (
            "process", lambda c: replace(c, min_p=torch.zeros_like(c.min_p)), asked(None),
            ("output", "wrong-processing"),
        ),
        (
            "process", lambda c: replace(c, bias=c.bias.roll(1, 1)), asked("typical"),
            ("output", "wrong-processing"),
        ),
        ("sample", lambda s: replace(s, delta=0.01), DEEP, ("traversal", "wrong-acceptance")),
        (
            "sample", lambda s: replace(s, final_coins=1 - s.final_coins), asked("typical"),
            ("traversal", "wrong-draw"),
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_from_the_second_round_on_shows(
    stage: str, change: Any, script: Any, kind: tuple[str, str]
) -> None:
    backend = "reference" if stage == "sample" else "topology"
    assert kinds(checked(script, later(stage, change, backend))) == {kind}


def test_attention_that_is_wrong_shows_in_what_typical_emits() -> None:
    def new() -> Callable[..., Any]:
        launches: list[int] = []

        def around(right: Callable[..., Any], x: VerifyInput, *tensors: Any) -> Any:
            launches.append(1)
            done = right(x, *tensors)
            return done if len(launches) <= 2 else replace(done, out=done.out.flip(0))

        return around

    wrong = remembering(load("direct-mask"), "attend", new)
    script = served(
        request(TREE, 5), steps=[*ready(0), sampled(0, rule="typical"), sampled(3, rule="typical")]
    )
    assert kinds(checked(script, wrong)) <= {
        ("output", "wrong-continuation"), ("output", "wrong-logits"),
    }  # fmt: skip
    assert kinds(checked(script, wrong))


# --- what rounding leaves open -------------------------------------------------------------------


def test_a_token_on_the_edge_of_a_min_p_may_be_cut_off_or_not() -> None:
    case = served(request((-1,), 3), steps=[*ready(0), turns(0)])
    case = msgspec.structs.replace(case, script=())
    plans = plans_of(case)
    edge = -math.log(2.0)
    logits = np.array([[0.0, edge, edge - 1e-3, -9.0]], np.float32)
    wanted = Asked(
        counts=(0,) * 4, frequency=0.0, presence=0.0, repetition=1.0, bias=(0.0,) * 4,
        temperature=1.0, min_p=0.5, grammar=((0,) * 4,), state=0,
    )  # fmt: skip
    given = Processed(case, plans, (wanted,), flat_tokens(case, plans) * 0, logits, exact=False)
    for kept, cut, ok in (
        ([0.0, edge], [2, 3], True),
        ([0.0], [1, 2, 3], True),
        ([0.0, edge, edge - 1e-3], [3], False),
        ([0.0, edge + 1e-2], [2, 3], False),
    ):
        found = np.full((1, 4), -np.inf, np.float32)
        found[0, : len(kept)] = kept
        assert len(kept) + len(cut) == 4
        assert (judge_processed(given, found) == []) == ok, kept


def test_how_far_logits_are_from_a_cut_is_told_of_a_min_p_alone() -> None:
    script = asked(None)
    model = served_model(script)
    prompt = tuple(prefix_tokens(script, model.vocab_size)[0].tolist())
    size = model.vocab_size
    plain = Asked(
        counts=(0,) * size, frequency=0.0, presence=0.0, repetition=1.0, bias=(0.0,) * size,
        temperature=1.0, min_p=0.125, grammar=((0,) * size,), state=0,
    )  # fmt: skip
    last = len(prompt) - 1
    logits = logits_after(script, list(prompt))
    nearest = float((logits - logits.max() - math.log(0.125)).abs().min())
    found = continuation(model, prompt, plain).from_cut(last)
    assert found == pytest.approx(nearest, abs=1e-9)
    assert continuation(model, prompt, replace(plain, min_p=0.0)).from_cut(last) is None
    assert continuation(model, prompt).from_cut(last) is None


def test_typical_ends_in_doubt_are_all_that_wrong_logits_may_lead_to_and_no_more_without() -> None:
    tree = CandidateTree(tokens=(0, 1, 2, 3, 4, 5, 1, 2), parents=(-1, 0, 0, 1, 1, 2, 3, 5))
    numbers, off, wider = torch.Generator().manual_seed(7), 0.02, 0
    for _ in range(40):
        logits = torch.randn(len(tree), 6, generator=numbers, dtype=torch.float64)
        laws = logits.softmax(1).tolist()
        right = typical_ends(tree, laws, 0.09, 0.3)
        assert typical_ends_in_doubt(tree, laws, 0.09, 0.3, 0.0) == right
        doubted = typical_ends_in_doubt(tree, laws, 0.09, 0.3, off)
        wider += len(doubted) > 1
        for _ in range(20):
            moved = torch.rand(logits.shape, generator=numbers, dtype=torch.float64) * 2 - 1
            ends = typical_ends(tree, (logits + off * moved).softmax(1).tolist(), 0.09, 0.3)
            assert ends <= doubted
    assert 0 < wider < 40
