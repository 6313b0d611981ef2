"""Builds that are handed a selection which is no tree: what they may do, and what they may not."""

from dataclasses import replace

import pytest
from ledger_scene import entry, write_ledger

from treeproof.contract.capabilities import Capabilities
from treeproof.contract.failure import PROBES
from treeproof.contract.registry import load
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings
from treeproof.faults.catalog import named
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import case, request

BACKENDS = ("direct-mask", "cascade", "page-table", "swa-window", "topology", "reference")
DUE = case(request((-1, 0, 0), prefix=1), seed=8)
WINDOWED = case(request((-1, 0, 0), prefix=1), seed=8, window=2, page_size=4)


def seen(backend, checked_case=DUE, probes=frozenset({"malformed"})):
    failures = check_case(checked_case, backend, CheckOptions(probes=probes)).failures
    assert all(f.probe == "malformed" for f in failures)
    # The two requests are none of the case's, which has one.
    assert all(f.request is f.row is None for f in failures)
    return {(f.identity, f.kind) for f in failures}


WHOLE = {2: [1, 4, -1, 0, 1], 1: [0, 1, -1, 0, 1]}


def malformed(c):
    """Whether this is what is handed to a build beside the case's own candidates."""
    if c.topk != 2 or c.parent_list.shape[1] != 3:
        return False
    return [*c.selected_index[0].tolist(), *c.parent_list[0].tolist()] != WHOLE[c.spec_steps]


def spoiling(change):
    """A build that refuses nothing and, where the selection is malformed, returns `change` of it."""

    def around(right, c):
        if not malformed(c):
            return right(c)
        whole = c.selected_index.clone()
        parents = c.parent_list.clone()
        whole[0], parents[0] = whole[1], parents[1]
        return change(right(replace(c, selected_index=whole, parent_list=parents)))

    return wrapped(load("swa-window"), "build", around)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("checked_case", [DUE, WINDOWED], ids=["full", "windowed"])
def test_right_builds_refuse_or_keep_it_to_the_request(name, checked_case):
    assert seen(load(name), checked_case) == set()


def test_a_build_that_repairs_the_selection_is_right():
    assert seen(spoiling(lambda x: x)) == set()


def test_a_link_out_of_the_request_is_a_failure():
    def link_away(x):
        x.retrieve_parent_token[0, 2] = 3
        return x

    assert seen(spoiling(link_away)) == {("traversal", "links-to-other-request")}


def test_a_link_that_changes_beside_the_malformed_request_is_a_failure():
    def link_beside(x):
        x.retrieve_next_token[1, 0] = 2
        return x

    assert seen(spoiling(link_beside)) == {("traversal", "links-to-other-request")}


@pytest.mark.parametrize("field", ["draft_token", "positions", "out_cache_loc", "kv_indices"])
def test_whatever_changes_beside_the_malformed_request_is_a_failure(field):
    def change(x):
        getattr(x, field)[-1] += 1
        return x

    assert seen(spoiling(change)) == {("candidate", "reaches-other-request")}


@pytest.mark.parametrize("field", ["out_cache_loc", "kv_indices"])
def test_a_slot_of_the_other_request_is_a_failure(field):
    def take(x):
        getattr(x, field)[0] = x.out_cache_loc[-1]
        return x

    assert seen(spoiling(take)) == {("candidate", "reaches-other-request")}


def test_a_refusal_is_said_and_not_stumbled_into():
    def with_error(error):
        def around(right, c):
            if malformed(c):
                raise error
            return right(c)

        return wrapped(load("cascade"), "build", around)

    assert seen(with_error(ValueError("no tree"))) == set()
    assert seen(with_error(RuntimeError("no tree"))) == set()
    assert seen(with_error(KeyError(1))) == {("contract", "malformed-raises")}
    assert seen(with_error(RuntimeError("CUDA error: an illegal address"))) == {
        ("contract", "malformed-raises")
    }


@pytest.mark.parametrize(
    ("handed", "words"),
    [
        ([0, 4, -1, 0, 1], "chains of three rows, where the parent of row 2 was not selected"),
        ([2, 4, -1, 4, 2], "chains of three rows, where rows 1 and 2 are each other's parents"),
        ([1, 4, -1, 0, 4], "chains of three rows, where row 2 is its own parent"),
        ([1, 1, -1, 0, 1], "chains of three rows, where rows 1 and 2 are one candidate"),
        ([1, 6, -1, 0, 1], "chains of three rows, where row 2 is a candidate past the end of"),
        ([1, 4, -1, 0, 99], "chains of three rows, where the parent of row 2 is past the end of"),
        ([1, -1, -1, 0, 1], "chains of three rows, where row 2 is no candidate"),
        ([1, 4, -1, 0, 1], "forks of three rows, where row 2 is deeper than spec_steps"),
    ],
)
def test_a_build_that_stumbles_over_one_selection_is_told_which(handed, words):
    def around(right, c):
        if malformed(c) and [*c.selected_index[0].tolist(), *c.parent_list[0].tolist()] == handed:
            raise IndexError
        return right(c)

    backend = wrapped(load("direct-mask"), "build", around)
    (failure,) = check_case(DUE, backend, CheckOptions(probes=frozenset({"malformed"}))).failures
    assert failure.key == ("contract", "malformed-raises")
    assert f"on two {words}" in failure.message


def test_a_table_that_cannot_be_decoded_is_a_failure_of_the_contract():
    def around(right, c):
        x = right(c)
        if malformed(c):
            x.cache_seqlens[0] = 10**6
        return x

    # Its cycle is built; an orphan is refused.
    backend = wrapped(load("page-table"), "build", around)
    assert seen(backend) == {("contract", "malformed-table")}


def test_no_other_probe_hands_over_a_malformed_selection():
    (planted,) = named(("malformed-selection.scan-one-too-far",))
    backend = planted.into(load("topology"))
    assert seen(backend) == {("traversal", "links-to-other-request")}
    others = CheckOptions(probes=frozenset(PROBES) - {"malformed"})
    assert check_case(DUE, backend, others).failures == ()


def test_a_backend_for_chains_is_not_handed_a_pool_of_two():
    (planted,) = named(("malformed-selection.scan-one-too-far",))
    right = load("topology")
    chains = replace(right, capabilities=Capabilities(max_topk=1))
    assert seen(planted.into(chains), case(request((-1, 0)), seed=8)) == set()


# --- one that never comes back ---------------------------------------------------------------------

HANGS = """
import treeproof
from treeproof.contract.registry import load

RIGHT = load("direct-mask")


@treeproof.register(
    "hangs", consumes=RIGHT.consumes, capabilities=RIGHT.capabilities, numerics=RIGHT.numerics
)
class Hangs:
    def __init__(self):
        self.right = RIGHT.make()
        self.attend = self.right.attend

    def build(self, c):
        while c.selected_index[0].tolist() == [2, 4]:
            pass
        return self.right.build(c)

    def attend(self, x, q, k, v, k_cache, v_cache): ...
"""


def test_a_build_that_hangs_on_a_cycle_loses_no_other_verdict_and_is_not_handed_another(tmp_path):
    """It costs one worker, which is no reason to give the backend up."""
    (tmp_path / "hangs.py").write_text(HANGS)
    ledger = write_ledger(
        tmp_path, entry(backend='"hangs"', identity='"contract"', kind='"malformed-hang"')
    )
    cases = [case(request((-1, 0, 0), prefix=1), seed=seed) for seed in (8, 9, 12)]
    settings = RunSettings(
        backends=(str(tmp_path / "hangs.py"),), ledger=ledger, workers=1, launch_timeout=3.0,
        store=None, run_dir=tmp_path / "run",
    )  # fmt: skip
    found = run(settings, cases=cases)
    (lost,) = found.losses
    assert (lost.case, lost.how) == (DUE.id, "hang")
    assert found.folder.read_case(DUE.id) == DUE
    (first,) = [check for check in found.checks if check.failures]
    (failure,) = first.failures
    assert (failure.kind, failure.stage, failure.severity) == ("malformed-hang", "build", "hang")
    assert first.case == DUE.id
    judged = {(cell.identity, cell.evidence): cell.status for cell in first.cells}
    assert judged.pop(("contract", "measured")) == "fail"
    assert {judged["position", "declared"], judged["visibility", "measured"]} == {"pass"}
    assert found.completed_checks("hangs") == len(cases)
    assert (found.exit_code, [state.state for state in found.ledger]) == (0, ["tolerated"])
