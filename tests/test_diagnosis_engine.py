"""Causes that only the logits of a whole engine show."""

from functools import cache

import pytest
import torch
from backend_scene import CHAIN, STAR, Situation, case_of
from diagnosis_situations import SMALL, TWIG
from engine_by_hand import Engine, engine_of, up

from treeproof.backends.tiny_engine import TinyEngine
from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.layout import KVLayout
from treeproof.contract.shape import AttentionShape
from treeproof.contract.target_model import TargetModel
from treeproof.contract.tree import CandidateTree
from treeproof.diagnosis.catalogue import HYPOTHESES
from treeproof.diagnosis.diagnose import UNKNOWN, diagnose, right_of
from treeproof.diagnosis.ground import Ground, Key
from treeproof.diagnosis.hypothesis import reading
from treeproof.diagnosis.world import truth
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.observe import observe
from treeproof.generate.prefix_tokens import prefix_tokens
from treeproof.oracles.target import target_logits

ONE = Situation(trees=(TWIG,), prefixes=(3,), pads=(0,), **SMALL)
TWO = Situation(trees=(STAR, TWIG), prefixes=(2, 4), pads=(0, 1), **SMALL)
BATCH = Situation(trees=(CHAIN, TWIG, STAR), prefixes=(3, 5, 0), pads=(0, 0, 0), **SMALL)


def broken(base=Engine, **methods):
    return type("Broken", (base,), methods)


def P(x, b):
    return int(x.seq_lens[b])


def rows(choose):
    """`choose(self, x, b, row)` in every layer and head."""
    return broken(rows=lambda self, x, b, row, layer, head: choose(self, x, b, row))


def prefix(choose):
    return broken(prefix=choose)


class Keeps(Engine):
    """Prefixes by what `told` leaves of their tokens."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def prefix_tokens(self, b, prefix):
        own = prefix.tolist()
        return self.kept.setdefault((len(own), *self.told(own)), own)


CAUSAL = lambda self, x, b, row: range(row + 1)  # noqa: E731

BROKEN = {
    "causal-mask": [
        (rows(CAUSAL), TWO),
        (
            broken(
                rows=lambda self, x, b, row, layer, head: range(row + 1) if layer == 0 else up(x, b, row)
            ),
            ONE,
        ),
        (rows(lambda self, x, b, row: range(row + 1) if b else up(x, b, row)), TWO),
    ],
    "no-mask": [(rows(lambda self, x, b, row: range(self.nodes(x, b))), ONE)],
    "self-hidden": [(rows(lambda self, x, b, row: up(x, b, row)[:-1]), TWO)],
    "root-hidden": [(rows(lambda self, x, b, row: up(x, b, row)[1:] or [0]), TWO)],
    "parent-hidden": [
        (rows(lambda self, x, b, row: [r for r in up(x, b, row) if r not in up(x, b, row)[-2:-1]]), TWO),
        (rows(lambda self, x, b, row: [row]), ONE),
        (rows(lambda self, x, b, row: sorted({0, row})), ONE),
    ],
    "mask-transposed": [
        (rows(lambda self, x, b, row: [r for r in range(self.nodes(x, b)) if row in up(x, b, r)]), ONE),
    ],
    "one-head-only": [
        (
            broken(rows=lambda self, x, b, row, layer, head: range(self.nodes(x, b)) if head else up(x, b, row)),
            ONE,
        ),
    ],
    "neighbour-request": [
        (prefix(lambda self, x, b, row: [((b + 1) % len(x.seq_lens), c) for c in range(P(x, (b + 1) % len(x.seq_lens)))]), BATCH),
    ],
    "prefix-dropped": [(prefix(lambda self, x, b, row: []), TWO)],
    "prefix-last-key-missing": [(prefix(lambda self, x, b, row: [(b, c) for c in range(P(x, b) - 1)]), TWO)],
    "prefix-first-key-missing": [(prefix(lambda self, x, b, row: [(b, c) for c in range(1, P(x, b))]), TWO)],
    "root-inside-prefix": [(prefix(lambda self, x, b, row: [(b, c) for c in range(P(x, b) + 1)]), TWO)],
    "position-is-row": [(broken(position=lambda self, x, b, row: P(x, b) + row), TWO)],
    "position-off-by-one": [(broken(position=lambda self, x, b, row: P(x, b) + len(up(x, b, row))), ONE)],
    "position-not-expanded": [(broken(position=lambda self, x, b, row: P(x, b)), ONE)],
    "prefix-key-short": [
        (broken(Keeps, told=lambda self, tokens: tokens[1:]), ONE),
        (broken(Keeps, told=lambda self, tokens: ()), TWO),
    ],
}  # fmt: skip
# Rows, heads, other requests, prefixes, positions and kept prefixes; the others, whose statements kernels
# show as well, where long tests are asked for.
ALWAYS = (
    "causal-mask", "one-head-only", "neighbour-request", "prefix-dropped", "root-inside-prefix",
    "position-is-row", "prefix-key-short",
)  # fmt: skip
EACH = [
    pytest.param(
        name,
        number,
        id=f"{name}-{number}",
        marks=[pytest.mark.long] * (number > 0 or name not in ALWAYS),
    )
    for name, engines in BROKEN.items()
    for number in range(len(engines))
]
# Taking a cause away is tried for two of them.
TAKEN_AWAY = [
    pytest.param(
        *one.values,
        id=one.id,
        marks=[pytest.mark.long] * (one.id not in ("causal-mask-0", "position-is-row-0")),
    )
    for one in EACH
]


@cache
def seen(engine, case):
    return observe(case, engine_of(engine), CheckOptions())


def diagnosis_of(engine, case, hypotheses=HYPOTHESES):
    return diagnose(seen(engine, case), lambda further: seen(engine, further), hypotheses)


@pytest.mark.parametrize(("name", "number"), EACH)
def test_the_cause_of_a_broken_engine_is_named(name, number):
    engine, situation = BROKEN[name][number]
    case = case_of(situation)
    assert seen(engine, case).found.keys() == {"forward", "contract"}
    found = diagnosis_of(engine, case)
    assert found.cause == name, found
    assert found.groups == ("forward",)


@pytest.mark.parametrize(("name", "number"), TAKEN_AWAY)
def test_a_cause_that_is_not_among_the_hypotheses_is_unknown_and_never_another(name, number):
    engine, situation = BROKEN[name][number]
    others = tuple(h for h in HYPOTHESES if h.name != name)
    assert diagnosis_of(engine, case_of(situation), others).cause == UNKNOWN


def test_a_right_engine_has_no_diagnosis():
    for engine in (Engine, TinyEngine, broken(Keeps, told=lambda self, tokens: tokens)):
        assert diagnosis_of(engine, case_of(BATCH)) is None


def test_what_moves_names_the_cause_where_the_model_is_not_known():
    engine = broken(rows(CAUSAL), model=None)
    found = diagnosis_of(engine, case_of(TWO))
    assert seen(engine, case_of(TWO)).found["forward"].logits is None
    assert (found.cause, found.detail) == ("causal-mask", "")
    # A wrong position moves nothing else: without the model there is nothing to be seen.
    assert diagnosis_of(broken(BROKEN["position-is-row"][0][0], model=None), case_of(TWO)) is None


def test_requests_that_run_into_each_other_have_no_cause():
    class Mixed(Engine):
        def forward(self, x, prefixes):
            logits = super().forward(x, prefixes)
            first, second = x.qo_indptr.tolist()[:2]
            logits[second] = (logits[first] + logits[second]) / 2
            return logits

    assert diagnosis_of(Mixed, case_of(TWO)).cause == UNKNOWN


def test_logits_of_the_truth_are_those_of_the_oracle():
    tree = CandidateTree(tokens=(11, 12, 13, 14, 75), parents=(-1, 0, 0, 1, 2))
    requests = (
        Request(tree=tree, row_of_node=(0, 3, 1, 2, 4), prefix_len=9, pad_rows=2),
        Request(tree=tree, row_of_node=(0, 1, 2, 3, 4), prefix_len=0),
        Request(tree=tree, row_of_node=(0, 1, 2, 3, 4), prefix_len=4),
    )
    shape = AttentionShape(num_q_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16)
    layout = KVLayout(page_size=4, num_slots=64, shared_prefix=0)
    case, model = VerifyCase(requests=requests, shape=shape, layout=layout), TargetModel()
    run = truth(Ground.of(case, model=model)).engine
    at = 0
    for request, prefix in zip(requests, prefix_tokens(case, model.vocab_size), strict=True):
        tokens = [token % model.vocab_size for token in tree.tokens]
        wanted = target_logits(model, prefix.tolist(), tree, tokens)
        order = [at + row for row in request.row_of_node]
        assert torch.allclose(run.logits[order], wanted.logits, rtol=0, atol=1e-12)
        ratio = run.limit[order] / wanted.limit
        assert 0.2 < float(ratio.min()) < float(ratio.max()) < 5
        at += len(tree)


def test_an_engine_has_no_memory_that_holds_no_token():
    right = right_of(seen(Engine, case_of(ONE)))
    unowned = right.ground.scene.ledger.unowned[0]
    world = reading(right, lambda row: [*right.ground.reads(row), Key(0, unowned, unowned)])
    assert world.engine.moved is None
    assert world.engine.logits is None
