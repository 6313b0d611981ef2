"""Scripts sample with coins that are given: what is emitted is what plain decoding emits with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from test_rounds import FIVE, TREE, checked, kinds, ready, served, turns
from torch import Tensor

from treeproof.contract.inputs import Accepted, Attended, VerifyInput
from treeproof.contract.registry import Backend, load
from treeproof.contract.sampling import CHAIN, Sampling
from treeproof.contract.script import Round
from treeproof.contract.served_model import served_model
from treeproof.faults import samples
from treeproof.faults.fault import Fault
from treeproof.faults.plant import remembering, wrapped
from treeproof.faults.smallest import request
from treeproof.generate.prefix_tokens import prefix_tokens
from treeproof.oracles.sequence import sequence_logits


def sampled(*accept: int, rule: str = "target-only", idle: int = 0) -> Round:
    return msgspec.structs.replace(turns(*accept, idle=idle), sample=rule)


LINE = (-1, 0, 1, 2)

ALONG_TREES = served(
    request(TREE, 5, rows=(0, 3, 4, 1, 2), pad_rows=1), request((-1, 0, 0, 0), 3),
    steps=[*ready(0, 1), sampled(3, 2, idle=1), turns(4, 1), sampled(0, 3), sampled(4, 0)],
)  # fmt: skip
ALONG_CHAINS = served(
    request(LINE, 5), request((-1, 0), 3),
    steps=[*ready(0, 1), *(sampled(a, b, rule="chain") for a, b in ((2, 1), (3, 0), (0, 1)))],
)  # fmt: skip


@pytest.mark.parametrize("backend", FIVE)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampled_rounds_emit_what_plain_decoding_emits_with_their_coins(
    backend: str, dtype: Any
) -> None:
    for script in (ALONG_TREES, ALONG_CHAINS):
        shape = msgspec.structs.replace(script.shape, dtype=dtype)
        found = checked(msgspec.structs.replace(script, shape=shape), backend)
        assert found.failures == ()
        assert found.generated is not None
        assert found.generated.rounds == sum(isinstance(step, Round) for step in script.script)


class Spy:
    """What each sampled round was handed, and what came of it."""

    def __init__(self) -> None:
        self.rounds: list[tuple[VerifyInput, Sampling, Accepted]] = []

    def backend(self) -> Backend:
        def around(right: Callable[..., Accepted], x: VerifyInput, given: Sampling) -> Accepted:
            self.rounds.append((x, given, right(x, given)))
            return self.rounds[-1][2]

        return wrapped(load("topology"), "sample", around)


def drawn(law: Tensor, coin: float) -> int:
    """The token that a coin falls on."""
    return int((law.cumsum(0) > coin * law.sum()).long().argmax())


@pytest.mark.parametrize("accept", [(0, 0), (1, 3), (3, 1), (4, 4)])
def test_the_emitted_tokens_are_those_of_a_sampler_that_decodes_one_by_one(
    accept: tuple[int, int],
) -> None:
    spy = Spy()
    script = served(
        request(TREE, 5), steps=[*ready(0), *map(sampled, accept)],
        spare_pages=40,
    )  # fmt: skip
    assert checked(script, spy.backend()).failures == ()
    model = served_model(script)
    prompts = prefix_tokens(script, model.vocab_size)[0].tolist()
    known = [*prompts, int(sequence_logits(model, prompts)[0][-1].argmax())]
    for end, (x, given, done) in zip(accept, spy.rounds, strict=True):
        tokens, parents = x.draft_token.tolist(), TREE
        emitted, node = [], 0
        while True:
            law = sequence_logits(model, known + emitted)[0][-1].softmax(0)
            children = [child for child in range(1, 5) if parents[child] == node]
            reached = 0.0
            for child in children:
                reached += float(law[tokens[child]])
                if float(given.coins[node]) < reached:
                    emitted.append(tokens[child])
                    node = child
                    break
            else:
                law[[tokens[child] for child in children]] = 0.0
                emitted.append(drawn(law, float(given.final_coins[0])))
                break
        assert node == end  # the coins have led where the script says
        assert done.tokens[0, : done.accept_len[0]].tolist() == emitted
        known += emitted
    first, second = (given.coins for _, given, _ in spy.rounds)
    assert not torch.equal(first, second)


def test_attention_that_is_wrong_in_a_later_round_shows_in_what_is_sampled() -> None:
    def new() -> Callable[..., Attended]:
        layers = 0

        def around(right: Callable[..., Attended], x: VerifyInput, *tensors: Tensor) -> Attended:
            nonlocal layers
            layers += 1
            done = right(x, *tensors)
            return done if layers <= 2 else replace(done, out=done.out.flip(0))

        return around

    wrong = remembering(load("direct-mask"), "attend", new)
    for tree, rule in ((TREE, "target-only"), (LINE, "chain")):
        rounds = [sampled(3, rule=rule), sampled(2, rule=rule)]
        first, both = (served(request(tree, 5), steps=[*ready(0), *rounds[:n]]) for n in (1, 2))
        assert checked(first, wrong).failures == ()
        assert kinds(checked(both, wrong)) == {("output", "wrong-continuation")}


def test_a_rule_that_a_backend_does_not_know_is_served_by_the_reference_and_no_evidence() -> None:
    cells = {(c.stage, c.status, c.reason) for c in checked(ALONG_CHAINS, "topology").cells}
    assert not any(stage == "sample" and status == "pass" for stage, status, _ in cells)
    without = {
        (c.identity, c.stage, c.reason)
        for c in checked(ALONG_CHAINS, "direct-mask").cells
        if c.status == "not-checked" and c.evidence == "measured"
    }
    assert ("traversal", "sample", "reference: no sample stage of its own") in without
    assert ("sample", "pass", "") in {
        (c.stage, c.status, c.reason) for c in checked(ALONG_TREES, "topology").cells
    }


# Coins of rounds keep away from edges, and thresholds are 1.
_NEED_EDGES = {"edge-inclusive", "thresholds"}
_PLANTED = [fault for fault in samples.FAULTS if fault.family not in _NEED_EDGES]


@pytest.mark.parametrize("fault", _PLANTED, ids=lambda fault: fault.name)
def test_faults_of_sampled_acceptance_are_seen_in_rounds(fault: Fault) -> None:
    wrong = fault.into(load("reference"))
    scripts = (msgspec.structs.replace(ALONG_TREES, seed=seed) for seed in range(4))
    failures = next(filter(None, (checked(script, wrong).failures for script in scripts)), ())
    assert {(f.identity, f.evidence, f.stage) for f in failures} == {
        ("traversal", "measured", "sample")
    }


def test_a_chain_is_not_sampled_along_a_tree_with_branches() -> None:
    with pytest.raises(ValueError, match=r"script\[2\].sample is chain: turns\[0\] drafts a tree"):
        served(request(TREE, 5), steps=[*ready(0), sampled(3, rule=CHAIN)])


def test_the_same_script_has_the_same_coins_whatever_the_backend() -> None:
    one, other = Spy(), Spy()
    for spy in (one, other):
        checked(ALONG_TREES, spy.backend())
    for (_, a, _), (_, b, _) in zip(one.rounds, other.rounds, strict=True):
        assert torch.equal(a.coins, b.coins)
        assert torch.equal(a.final_coins, b.final_coins)
