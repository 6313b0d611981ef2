"""A whole engine as a black box: what it reads, from its logits alone, and the logits themselves."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from treeproof.backends.tiny_engine import TinyEngine
from treeproof.contract.backend import describe
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.inputs import VerifyInput
from treeproof.contract.target_model import TargetModel
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.generate.prefix_tokens import prefix_tokens
from treeproof.oracles.target import target_logits

TREE = CandidateTree(tokens=(11, 12, 13, 14, 15), parents=(-1, 0, 0, 1, 2))
CASE = VerifyCase(
    requests=(
        Request(tree=TREE, row_of_node=(0, 3, 1, 2, 4), prefix_len=40, pad_rows=2),
        Request(tree=TREE, row_of_node=(0, 1, 2, 3, 4), prefix_len=0),
        Request(tree=TREE, row_of_node=(0, 1, 2, 3, 4), prefix_len=3),
    ),
    shape=AttentionShape(num_q_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16),
    layout=KVLayout(page_size=1, num_slots=128),
)


def check(make: Any, case: VerifyCase = CASE, **capabilities: Any) -> Checked:
    backend = describe(
        make, "engine", stages={"forward"},
        capabilities=Capabilities(vocab_size=61, **capabilities),
    )  # fmt: skip
    return check_case(case, backend, CheckOptions())


def kinds(checked: Checked) -> set[tuple[str, str]]:
    return {f.key for f in checked.failures}


def test_the_engine_of_ours_is_right_in_what_it_reads_and_in_its_logits() -> None:
    checked = check(TinyEngine)
    assert checked.failures == ()
    passed = {(c.identity, c.evidence, c.stage) for c in checked.cells if c.status == "pass"}
    assert {("visibility", "measured", "forward"), ("output", "measured", "forward")} <= passed


class Causal(TinyEngine):
    """Rows hang on one another in row order."""

    def forward(self, x: VerifyInput, prefix_tokens: Any) -> Any:
        assert x.retrieve_parent_token is not None
        table = x.retrieve_parent_token
        chain = torch.arange(table.shape[1]) - 1
        chain = torch.where(table >= 0, chain, table)
        return super().forward(replace(x, retrieve_parent_token=chain), prefix_tokens)


def test_a_causal_engine_is_shown_the_siblings_that_it_reads() -> None:
    failures = [f for f in check(Causal).failures if f.identity == "visibility"]
    assert {(f.stage, f.evidence, f.probe) for f in failures} == {
        ("forward", "measured", "influence")
    }
    told = {(f.row, f.column - 40) for f in failures if f.request == 0 and f.column is not None}
    # Rows 0 to 4 hold nodes 0, 2, 3, 1, 4: in node 3's row (2) nodes 2 and, missed, 1.
    assert told == {(2, 1), (2, 3), (3, 1), (3, 2), (4, 2), (4, 3)}
    missed = {(f.row, f.column) for f in failures if f.kind == "misses-ancestor"}
    assert (2, 43) in missed


def test_an_engine_that_looks_for_positions_in_rows_reads_rightly_and_is_off_in_its_logits() -> (
    None
):
    class ByRow(TinyEngine):
        def forward(self, x: VerifyInput, prefix_tokens: Any) -> Any:
            first = torch.repeat_interleave(x.qo_indptr[:-1], x.qo_indptr.diff())
            own = torch.arange(len(x.positions)) - first
            prefix = torch.repeat_interleave(x.seq_lens, x.qo_indptr.diff())
            return super().forward(replace(x, positions=prefix + own), prefix_tokens)

    assert kinds(check(ByRow)) == {("output", "wrong-logits")}


def test_a_prefix_token_that_is_forgotten_is_missed_by_every_row() -> None:
    class Forgets(TinyEngine):
        def forward(self, x: VerifyInput, prefix_tokens: Any) -> Any:
            return super().forward(x, tuple(tokens[1:] for tokens in prefix_tokens))

    missed = [f for f in check(Forgets).failures if f.kind == "misses-prefix"]
    assert {(f.request, f.row, f.column) for f in missed} == {
        (b, row, 0) for b in (0, 2) for row in range(5)
    }


def test_an_engine_that_mixes_requests_is_told_whose_prefix_moves_it() -> None:
    class Mixes(TinyEngine):
        def forward(self, x: VerifyInput, prefix_tokens: Any) -> Any:
            logits = super().forward(x, prefix_tokens)
            logits[x.qo_indptr[2]] += 1e-6 * float(prefix_tokens[0][0])
            return logits

    told = [f for f in check(Mixes).failures if f.kind == "reads-other-request"]
    assert [(f.request, f.row) for f in told] == [(2, 0)]
    assert "prefix of request 0" in told[0].message


def test_logits_that_differ_from_run_to_run_are_compared_with_what_differs_by_itself() -> None:
    class Shaky(TinyEngine):
        calls = 0

        def forward(self, x: VerifyInput, prefix_tokens: Any) -> Any:
            Shaky.calls += 1
            return super().forward(x, prefix_tokens) * (1 + 1e-7 * (Shaky.calls % 3))

    assert ("contract", "nondeterministic") in kinds(check(Shaky))
    assert check(Shaky, deterministic=False).failures == ()


def test_half_precision_logits_still_show_every_ancestor() -> None:
    class Half(TinyEngine):
        model = None

        def __init__(self) -> None:
            self.inner = TinyEngine()

        def forward(self, x: VerifyInput, prefix_tokens: Any) -> Any:
            return self.inner.forward(x, prefix_tokens).bfloat16()

    checked = check(Half)
    assert checked.failures == ()
    cells = {(c.identity, c.status) for c in checked.cells if c.stage == "forward"}
    assert cells == {("visibility", "pass"), ("output", "not-checked")}


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (lambda logits: logits.long(), "wrong-type"),
        (lambda logits: None, "wrong-type"),
        (lambda logits: logits[:, :-1], "wrong-shape"),
        (lambda logits: logits[1:], "wrong-shape"),
        (lambda logits: logits * math.nan, "not-finite"),
    ],
)
def test_logits_are_held_to_the_contract(result: Any, kind: str) -> None:
    class Returns(TinyEngine):
        def forward(self, x: VerifyInput, prefix_tokens: Any) -> Any:
            return result(super().forward(x, prefix_tokens))

    assert kinds(check(Returns)) == {("contract", kind)}


def test_shared_prefixes_hold_the_same_tokens() -> None:
    requests = tuple(
        Request(tree=TREE, row_of_node=(0, 1, 2, 3, 4), prefix_len=9) for _ in range(2)
    )
    layout = KVLayout(page_size=4, num_slots=64, shared_prefix=4)
    first, second = prefix_tokens(
        VerifyCase(requests=requests, shape=CASE.shape, layout=layout), 61
    )
    assert torch.equal(first[:4], second[:4])
    assert not torch.equal(first[4:], second[4:])
    assert int(torch.cat((first, second)).max()) < 61


def test_the_limit_leaves_room_for_float32_and_none_for_weights_in_bfloat16() -> None:
    class Narrow(TinyEngine):
        def __init__(self) -> None:
            super().__init__()
            for w in self.decoder.weights.values():
                w.copy_(w.bfloat16())

    assert kinds(check(Narrow)) == {("output", "wrong-logits")}
    model = TargetModel()
    limit = target_logits(model, [5, 60, 0, 17], TREE, [3, 9, 9, 30, 31]).limit
    assert 1e-6 < float(limit.min()) < float(limit.max()) < 2e-3
