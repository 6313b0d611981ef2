"""What a backend could get away with: each of these is seen, and none makes the check itself fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from treeproof.contract.backend import Backend, describe
from treeproof.contract.capabilities import Numerics
from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.inputs import Accepted, Committed, VerifyInput
from treeproof.contract.registry import BackendUnavailable, load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case

TREE = CandidateTree(tokens=(11, 12, 13, 14, 15, 16), parents=(-1, 0, 0, 1, 3, 2))
CASE = VerifyCase(
    requests=(
        Request(tree=TREE, row_of_node=(0, 1, 2, 3, 4, 5), prefix_len=7, pad_rows=2),
        Request(tree=TREE, row_of_node=(0, 3, 1, 2, 5, 4), prefix_len=3),
    ),
    shape=AttentionShape(num_q_heads=4, num_kv_heads=2, head_dim=64, v_head_dim=64),
    layout=KVLayout(page_size=4, num_slots=64, order="shuffled"),
)


class Right:
    """The link backend's stages."""

    def __init__(self) -> None:
        self.stages: Any = load("topology").make()

    def build(self, c: Any) -> Any:
        return self.stages.build(c)

    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        return self.stages.attend(x, *tensors)

    def accept(self, x: VerifyInput, target: Any) -> Accepted:
        done: Accepted = self.stages.accept(x, target)
        return done

    def commit(self, x: VerifyInput, accepted: Accepted, k: Any, v: Any) -> Committed:
        done: Committed = self.stages.commit(x, accepted, k, v)
        return done


def backend_of(make: Any, **options: Any) -> Backend:
    options.setdefault("consumes", load("topology").consumes)
    options.setdefault("numerics", Numerics(p="float32"))
    return describe(make, "planted", **options)


def check(make: Any, case: VerifyCase = CASE, **options: Any) -> Checked:
    return check_case(case, backend_of(make, **options), CheckOptions())


def kinds(checked: Checked) -> set[tuple[str, str]]:
    return {failure.key for failure in checked.failures}


def test_the_right_stages_pass() -> None:
    assert kinds(check(Right)) == set()


# --- what build hands on ---------------------------------------------------------------------------


def built(**changes: Callable[[VerifyInput], Any]) -> type:
    class Changed:
        def build(self, c: Any) -> Any:
            x = Right().build(c)
            return replace(x, **{name: change(x) for name, change in changes.items()})

    return Changed


def _cell(name: str, row: int, value: int) -> Callable[[VerifyInput], Any]:
    def change(x: VerifyInput) -> Any:
        table = getattr(x, name).clone()
        table[0, row] = value
        return table

    return change


@pytest.mark.parametrize(
    ("name", "row", "value"),
    [
        ("retrieve_next_sibling", 2, 6),  # the last sibling leads into padding
        ("retrieve_next_token", 5, 7),
        ("retrieve_next_sibling", 7, 1),
        ("retrieve_next_sibling", 5, -2),
        ("retrieve_next_sibling", 0, 1),
        ("retrieve_next_token", 5, 0),
    ],
)
def test_a_link_that_names_no_row_is_no_end_of_a_chain(name: str, row: int, value: int) -> None:
    checked = check(built(**{name: _cell(name, row, value)}))
    said = [f for f in checked.failures if f.key == ("traversal", "dangling-link")]
    assert [(f.request, f.row, f.actual) for f in said] == [(0, row, str(value))]


@pytest.mark.parametrize(("row", "value"), [(0, 0), (3, 2), (7, 0)])
def test_the_parent_table_is_held_to_the_tree_whoever_reads_it(row: int, value: int) -> None:
    class Complete(Right):
        def build(self, c: Any) -> Any:
            x = super().build(c)
            return replace(x, retrieve_parent_token=_cell("retrieve_parent_token", row, value)(x))

    (failure,) = check(Complete).failures
    assert (failure.key, failure.row) == (("traversal", "wrong-parent"), row)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("seq_lens", lambda x: x.seq_lens + 1),
        ("qo_indptr", lambda x: x.qo_indptr + 1),
        ("request_slots", lambda x: x.request_slots.flip(0)),
        ("request_slots", lambda x: x.request_slots + 1000),
        ("req_to_token", lambda x: x.req_to_token.flip(1)),
        ("req_to_token", lambda x: x.req_to_token[:, :5]),
        ("spec_steps", lambda x: x.spec_steps + 1),
        ("topk", lambda x: x.topk + 1),
    ],
)
def test_what_build_was_given_must_come_through_unchanged(
    name: str, change: Callable[[VerifyInput], Any]
) -> None:
    checked = check(built(**{name: change}))
    assert ("contract", "wrong-batch") in kinds(checked)
    assert all(name in failure.message for failure in checked.failures)


def test_a_batch_in_narrower_integers_or_a_table_of_its_own_is_as_right() -> None:
    own_table = built(
        seq_lens=lambda x: x.seq_lens.int(),
        req_to_token=lambda x: x.req_to_token[x.request_slots].int(),
        request_slots=lambda x: torch.arange(2),
    )
    assert kinds(check(own_table)) == set()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spec_steps", None),
        ("spec_steps", torch.tensor(3)),
        ("topk", "2"),
        ("shape", None),
        ("kv", None),
        ("seq_lens", None),
        ("mask_mode", 1),
        ("page_table", torch.full((1, 1), torch.nan)),
    ],
)
def test_a_field_of_the_wrong_type_is_named_and_breaks_nothing(name: str, value: Any) -> None:
    class Complete(Right):
        def build(self, c: Any) -> Any:
            return replace(super().build(c), **{name: value})

    (failure,) = check(Complete).failures
    assert failure.identity == "contract"
    assert failure.kind in ("wrong-type", "wrong-dtype")
    assert failure.stage == "build"
    assert name in failure.message


# --- inputs that a stage changes -------------------------------------------------------------------


class BuildChangesTokens(Right):
    def build(self, c: Any) -> Any:
        x = super().build(c)
        c.draft_token.fill_(7)
        return x


class AcceptChangesPredictions(Right):
    def accept(self, x: VerifyInput, target: Any) -> Accepted:
        done = super().accept(x, target)
        target.fill_(0)
        return done


class CommitChangesAccepted(Right):
    def commit(self, x: VerifyInput, accepted: Accepted, k: Any, v: Any) -> Committed:
        done = super().commit(x, accepted, k, v)
        accepted.accept_index.clamp_(min=0)
        return done


class CommitMovesTheBoundary(Right):
    def commit(self, x: VerifyInput, accepted: Accepted, k: Any, v: Any) -> Committed:
        done = super().commit(x, accepted, k, v)
        x.seq_lens.add_(accepted.accept_len)
        return done


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (BuildChangesTokens, "draft_token"),
        (AcceptChangesPredictions, "target_predict"),
        (CommitChangesAccepted, "accept_index"),
        (CommitMovesTheBoundary, "seq_lens"),
    ],
)
def test_a_stage_that_changes_what_it_was_given_is_named_and_spoils_no_other(
    make: type[Right], name: str
) -> None:
    (failure,) = check(make).failures
    assert failure.key == ("contract", "mutates-input")
    assert failure.message.endswith(name)
    assert kinds(check(Right)) == set()


# --- acceptance ------------------------------------------------------------------------------------


class IndexHasAHole(Right):
    def accept(self, x: VerifyInput, target: Any) -> Accepted:
        done = super().accept(x, target)
        index = done.accept_index.clone()
        short = index[:, -1] < 0
        index[short] = index[short].roll(1, 1)
        return replace(done, accept_index=index)


class TokensRunOn(Right):
    def accept(self, x: VerifyInput, target: Any) -> Accepted:
        done = super().accept(x, target)
        return replace(done, tokens=torch.where(done.tokens < 0, 5, done.tokens))


class LongWalksEmitAnotherToken(Right):
    """Row 1 is accepted in the shorter walk as well, and emitted rightly there."""

    def accept(self, x: VerifyInput, target: Any) -> Accepted:
        done = super().accept(x, target)
        tokens = done.tokens.clone()
        tokens[done.accept_len > 3, 0] += 1
        return replace(done, tokens=tokens)


class WalksIntoPadding(Right):
    """A padded row is taken for a child of the last row, if its token is predicted."""

    def accept(self, x: VerifyInput, target: Any) -> Accepted:
        done = super().accept(x, target)
        last = int(done.accept_index[0, done.accept_len[0] - 1])
        if int(target[last]) == int(x.draft_token[6]) and int(done.accept_len[0]) < 4:
            index, length = done.accept_index.clone(), done.accept_len.clone()
            index[0, length[0]] = 6
            length[0] += 1
            return replace(done, accept_index=index, accept_len=length)
        return done


class ComparesHalfATokenId(Right):
    def accept(self, x: VerifyInput, target: Any) -> Accepted:
        # The walk is right on halves; what it emits are the whole predictions.
        halves = replace(x, draft_token=x.draft_token & 0xFFFF)
        done = super().accept(halves, target & 0xFFFF)
        emitted = torch.where(done.accept_index < 0, -1, target[done.accept_index.clamp(min=0)])
        return replace(done, tokens=emitted)


def test_tokens_that_agree_in_half_their_bits_are_not_the_same() -> None:
    seeds = [
        VerifyCase(requests=CASE.requests, shape=CASE.shape, layout=CASE.layout, seed=seed)
        for seed in range(12)
    ]
    assert all(kinds(check(Right, case)) == set() for case in seeds)
    seen = [kinds(check(ComparesHalfATokenId, case)) for case in seeds]
    assert ("traversal", "wrong-walk") in set().union(*seen)


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (IndexHasAHole, ("traversal", "wrong-walk")),
        (TokensRunOn, ("traversal", "tokens-past-the-bonus")),
        (LongWalksEmitAnotherToken, ("candidate", "wrong-token")),
        (WalksIntoPadding, ("traversal", "wrong-walk")),
    ],
)
def test_a_fault_of_accept_is_seen(make: type[Right], key: tuple[str, str]) -> None:
    assert kinds(check(make)) == {key}


class GoneAtClose(Right):
    def close(self) -> None:
        raise BackendUnavailable("the device is gone")


def test_a_backend_that_becomes_unavailable_at_its_close_is_a_failure() -> None:
    (failure,) = check(GoneAtClose).failures
    assert (failure.key, failure.stage) == (("contract", "raises"), "close")


# --- what is no evidence ---------------------------------------------------------------------------


class Selects:
    def select(self, pool: Any) -> Any:
        raise AssertionError("no check selects")


def test_a_backend_of_which_no_stage_ran_passes_nothing() -> None:
    checked = check(Selects)
    assert {cell.status for cell in checked.cells} == {"not-checked"}
