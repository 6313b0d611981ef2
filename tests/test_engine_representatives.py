"""A failure is reduced by the probe that saw it, and by all of them where that one alone does not."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import COLUMNS, PROBES, Failure
from treeproof.contract.layout import KVLayout
from treeproof.contract.shape import AttentionShape
from treeproof.contract.tree import CandidateTree
from treeproof.engine.failure_group import FailureGroup
from treeproof.engine.ledger import Ledger
from treeproof.engine.representatives import reduce_failures
from treeproof.engine.run_folder import BackendMeta
from treeproof.engine.settings import RunSettings
from treeproof.engine.worker import Task
from treeproof.engine.worker_pool import Done

EVERY = frozenset(PROBES)
META = BackendMeta(reference="b", name="b")
CASE = VerifyCase(
    requests=(
        Request(
            tree=CandidateTree(tokens=(5, 6, 7, 8), parents=(-1, 0, 0, 0)),
            row_of_node=(0, 1, 2, 3),
            prefix_len=9,
        ),
    ),
    shape=AttentionShape(num_q_heads=2, num_kv_heads=1, head_dim=64, v_head_dim=64),
    layout=KVLayout(page_size=1, num_slots=16),
)
FAILURE = Failure(
    identity="visibility", kind="reads-sibling", evidence="measured", stage="attend", message="",
    probe="spike",
)  # fmt: skip


class Pool:
    """A worker whose backend fails where `fails` says so of a case, the columns and the probes."""

    def __init__(self, fails):
        self.seats = (SimpleNamespace(name="w0"),)
        self.fails, self.asked, self.prefixes = fails, [], []

    def ask(self, seat, backend, case, identities, *, probes, **rest):
        self.asked.append((identities, probes))
        self.prefixes.append(case.requests[0].prefix_len)
        failures = (FAILURE,) if self.fails(case, identities, probes) else ()
        checked = Checked(case=case.id, backend="b", cells=(), failures=failures)
        return Done(Task(1, case, (META,), identities, "", probes), (checked,))


def reduced(fails, failure=FAILURE, case=CASE):
    pool, events = Pool(fails), []
    checked = Checked(case=case.id, backend="b", cells=(), failures=(failure,))
    group = FailureGroup(
        backend="b", identity="visibility", kind="reads-sibling", checks=1, case=case.id,
        failure=failure, read=lambda: checked, kept=Path("kept.json"),
    )  # fmt: skip
    folder = SimpleNamespace(read_case=lambda name: case, write_case=lambda case: None)
    run = SimpleNamespace(checks=(), failures=(group,), folder=folder)
    settings = RunSettings(backends=("b",))
    reduce_failures(run, pool, [META], settings, Ledger(), events.append)
    return pool, next(event for event in events if hasattr(event, "evaluations"))


def forked(case):
    return case.requests[0].num_nodes > 2


OWN = frozenset({"visibility"})


@pytest.mark.parametrize(
    ("fails", "how"),
    [
        (lambda case, columns, probes: "spike" in probes, (OWN, frozenset({"spike"}))),
        (lambda case, columns, probes: {"spike", "chorus"} <= probes, (OWN, EVERY)),
        (lambda case, columns, probes: "kv" in columns, (frozenset(COLUMNS), EVERY)),
    ],
)
def test_it_is_reduced_by_the_least_that_shows_it_and_judged_by_everything_at_the_end(fails, how):
    pool, event = reduced(lambda case, *by: forked(case) and fails(case, *by))
    assert event.complete
    assert event.reduced != CASE.id
    *tried, last = pool.asked
    assert set(tried[-event.evaluations // 2 :]) == {how}
    assert last == (frozenset(COLUMNS), EVERY)


def test_what_failed_before_any_probe_is_reduced_without_one():
    failure = replace(FAILURE, probe="")
    pool, event = reduced(lambda case, columns, probes: forked(case), failure)
    assert event.complete
    assert set(pool.asked[:-1]) == {(OWN, frozenset())}


def test_a_failure_that_shows_no_more_keeps_its_case_after_three_tries():
    pool, event = reduced(lambda *by: False)
    assert (event.reduced, event.complete) == (CASE.id, False)
    assert pool.asked == [(OWN, frozenset({"spike"})), (OWN, EVERY), (frozenset(COLUMNS), EVERY)]


def far(length):
    request = replace(CASE.requests[0], prefix_len=length)
    layout = replace(CASE.layout, num_slots=length + 16)
    return replace(CASE, requests=(request,), layout=layout)


def test_a_far_prefix_is_tried_near_first_and_where_it_ends_stays_as_it_was():
    case = far(32768 + 37)
    pool, event = reduced(
        lambda case, *by: forked(case) and case.requests[0].prefix_len % 5 == 3, case=case
    )
    assert pool.prefixes[0] == 256 + 37
    assert event.complete
    assert max(pool.prefixes) == 256 + 37


def test_what_needs_its_far_prefix_is_reduced_from_there():
    needs = 4096
    pool, event = reduced(lambda case, *by: case.requests[0].prefix_len >= needs, case=far(9000))
    assert pool.prefixes[:2] == [256 + 9000 % 256] * 2
    assert event.complete
    assert min(length for length in pool.prefixes if length >= needs) == needs
    assert pool.prefixes[-1] == needs
