"""What the drafter runs on after a round: which hidden state with which token, and which keys it renews."""

from dataclasses import replace

import pytest
import torch

from treeproof.backends.reference.build import build
from treeproof.backends.reference.extend import extend
from treeproof.contract.inputs import Accepted
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.registry import load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.look import look
from treeproof.faults.catalog import FAULTS
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import FORK, case, request
from treeproof.generate.pool import candidates
from treeproof.oracles.drafting import branch_step, extension
from treeproof.oracles.traversal import greedy_walk

SEED_TREE = (-1, 0, 0, 1, 2)
GIVEN = case(
    request(SEED_TREE, 3, rows=(0, 2, 1, 3, 4), pad_rows=1), request(FORK, 2, tokens=(7, 8, 9)),
    page_size=2, layout={"order": "shuffled"},
)  # fmt: skip


def test_the_states_of_the_accepted_rows_come_with_the_tokens_emitted_after_them():
    """Rows 0, 2 and 4 of root, A, B, C, D are accepted: B, D and the bonus come after them."""
    drawn = case(request(SEED_TREE, 3, tokens=(10, 11, 12, 13, 14)))
    x = build(candidates(drawn, SlotLedger.of(drawn)))
    accepted = Accepted(
        accept_index=torch.tensor([[0, 2, 4]]),
        accept_len=torch.tensor([3]),
        tokens=torch.tensor([[12, 14, 99]]),
    )
    hidden = torch.arange(5.0)[:, None] * torch.ones(2)
    d = extend(x, accepted, hidden)

    assert d.hidden[0, :, 0].tolist() == [0.0, 2.0, 4.0]
    assert d.tokens.tolist() == [[12, 14, 99]]
    assert d.positions.tolist() == [[3, 4, 5]]
    assert d.out_cache_loc[0].tolist() == list(SlotLedger.of(drawn).columns[0][3:6])


def test_the_oracle_pairs_a_node_with_what_follows_it_and_counts_columns_from_the_old_boundary():
    tree = CandidateTree((10, 11, 12, 13, 14), SEED_TREE)
    walk = greedy_walk(tree, [12, 0, 14, 0, 99], max_len=3)

    assert [(e.node, e.token, e.position) for e in extension(3, walk)] == [
        (0, 12, 3), (2, 14, 4), (4, 99, 5),
    ]  # fmt: skip


def test_the_oracle_reads_the_prefix_and_the_branch_up_to_the_step():
    reads = branch_step(7, 0)
    assert (reads.position, reads.prefix, reads.own) == (7, range(7), range(1))
    assert (branch_step(2, 1).position, branch_step(2, 1).own) == (3, range(2))
    with pytest.raises(ValueError, match="prefix_len is -1, step 0: accepted are 0 and more"):
        branch_step(-1, 0)


def failures_of(around, given=GIVEN):
    return check_case(given, wrapped(load("reference"), "extend", around), CheckOptions()).failures


def test_the_reference_is_right_and_judged_in_three_identities():
    checked = check_case(GIVEN, load("reference"), CheckOptions(probes=frozenset({"draft"})))

    assert checked.failures == ()
    judged = [(c.identity, c.evidence, c.status) for c in checked.cells if c.stage == "extend"]
    assert judged == [
        ("candidate", "measured", "pass"),
        ("position", "declared", "pass"),
        ("kv", "declared", "pass"),
    ]


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (lambda d: replace(d, tokens=d.tokens[:1]), ("contract", "wrong-shape")),
        (lambda d: replace(d, tokens=d.tokens.float()), ("contract", "wrong-dtype")),
        (lambda d: replace(d, hidden=d.hidden[..., :1]), ("contract", "wrong-shape")),
        (lambda d: d.hidden, ("contract", "wrong-type")),
        (lambda d: replace(d, hidden=d.hidden.to("meta")), ("contract", "wrong-type")),
        (lambda d: replace(d, tokens=d.tokens.to_sparse()), ("contract", "wrong-type")),
        (lambda d: replace(d, hidden=d.hidden * torch.nan), ("candidate", "wrong-hidden-row")),
        (lambda d: replace(d, hidden=d.hidden + 0.5), ("candidate", "wrong-hidden-row")),
        (lambda d: replace(d, hidden=d.hidden * 0), ("candidate", "wrong-hidden-row")),
        (lambda d: replace(d, out_cache_loc=d.out_cache_loc + 10**9), ("kv", "drafted-key-kept")),
        (lambda d: replace(d, out_cache_loc=d.out_cache_loc.flip(1)), ("kv", "wrong-draft-slot")),
    ],
)  # fmt: skip
def test_whatever_is_handed_back_is_a_failure_of_the_stage_and_never_a_crash(change, seen):
    failures = failures_of(lambda right, *arguments: change(right(*arguments)))

    assert seen in {f.key for f in failures}
    assert {(f.stage, f.probe) for f in failures} == {("extend", "draft")}


def test_what_is_raised_is_a_failure_whatever_its_class():
    class Cancelled(BaseException):
        pass

    def cancelled(right, *arguments):
        raise Cancelled("the task was cancelled")

    assert {f.key for f in failures_of(cancelled)} == {("contract", "raises")}


def test_what_lies_past_the_accepted_path_is_free():
    def garbled(right, x, accepted, hidden):
        d = right(x, accepted, hidden)
        past = torch.arange(d.tokens.shape[1]) >= accepted.accept_len[:, None]
        return replace(
            d, tokens=d.tokens.masked_fill(past, 10**6), positions=d.positions.masked_fill(past, -5),
            hidden=d.hidden.masked_fill(past[..., None], 3.5),
            out_cache_loc=d.out_cache_loc.masked_fill(past, 0),
        )  # fmt: skip

    assert failures_of(garbled) == ()


# The first fault of each cause; the others where long tests are asked for.
FIRST = {f.cause: f.name for f in reversed(FAULTS) if f.stage == "extend" and not f.smallest.script}
EACH_CAUSE = [
    pytest.param(f, id=f.name, marks=[pytest.mark.long] * (FIRST[f.cause] != f.name))
    for f in FAULTS
    if f.stage == "extend" and not f.smallest.script
]


@pytest.mark.parametrize("fault", EACH_CAUSE)
def test_the_cause_of_a_wrong_extension_is_named(fault):
    found = look(fault.smallest, fault.into(load("reference")), CheckOptions())

    assert (found[0].cause, found[0].candidates) == (fault.cause, (fault.cause,))
