"""What a backend could get away with: each of these is seen, and none makes the check itself fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from treeproof.backends import reference
from treeproof.backends.reference.store import store_kv
from treeproof.contract.backend import Backend, describe
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase, Window
from treeproof.contract.event import Checked
from treeproof.contract.inputs import Accepted, Attended, Committed, VerifyInput
from treeproof.contract.registry import BackendUnavailable, load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.properties.candidate import recover_emitted
from treeproof.properties.kv import recover_slots
from treeproof.properties.tables import recover_parents

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
    kind = "padding-link" if row >= len(TREE) else "dangling-link"
    said = [f for f in checked.failures if f.key == ("traversal", kind)]
    assert [(f.request, f.row, f.actual) for f in said] == [(0, row, str(value))]


@pytest.mark.parametrize(("row", "value"), [(0, 0), (3, 2), (7, 0)])
def test_the_parent_table_is_held_to_the_tree_whoever_reads_it(row: int, value: int) -> None:
    class Complete(Right):
        def build(self, c: Any) -> Any:
            x = super().build(c)
            if x.retrieve_parent_token.shape[1] <= row:
                return x  # a smaller batch that some probe launches
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


# --- attend ----------------------------------------------------------------------------------------


class Attends:
    """The link backend's attend alone, over tables that the reference built."""

    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        done = Right().attend(x, *tensors)
        return self.hand_back(x, Attended(out=done.out, lse=done.lse), *tensors)

    def hand_back(self, x: VerifyInput, done: Attended, *tensors: Any) -> Any:
        return done


class WritesBesideTheStore(Attends):
    def hand_back(self, x: VerifyInput, done: Attended, *tensors: Any) -> Any:
        tensors[3][x.req_to_token[x.request_slots[0], 0]] = 0
        return done


class OneBufferForAllLaunches(Attends):
    """Adds a field that it does not name in `consumes`: too little for any bound."""

    out: Any = None

    def hand_back(self, x: VerifyInput, done: Attended, *tensors: Any) -> Any:
        peeked = done.out + float(x.positions.sum() % 7) * 1e-7
        if self.out is None:
            self.out = torch.empty_like(done.out)
        self.out.copy_(peeked)
        return Attended(out=self.out)


class LseOfStrangers(Attends):
    """The log-sum-exp, not the output, depends on what lay in the tree's slots before."""

    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        stale = float(tensors[3][x.out_cache_loc[0]].sum()) * 1e-9
        done = Right().attend(x, *tensors)
        return Attended(out=done.out, lse=done.lse + stale)


class ShakyAndMovedByLoudMemory(Attends):
    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        stale = float(tensors[3][x.out_cache_loc[0]].abs().max())
        done = Right().attend(x, *tensors)
        return Attended(out=done.out * (2 if stale > 100 else 1))


@pytest.mark.parametrize(
    ("make", "key", "deterministic"),
    [
        (WritesBesideTheStore, ("kv", "written-elsewhere"), True),
        (OneBufferForAllLaunches, ("contract", "reads-undeclared-input"), True),
        (LseOfStrangers, ("kv", "unowned-influences"), True),
        (ShakyAndMovedByLoudMemory, ("kv", "unowned-influences"), False),
    ],
)
def test_a_fault_of_attend_is_seen(make: Any, key: tuple[str, str], deterministic: bool) -> None:
    checked = check(make, capabilities=Capabilities(deterministic=deterministic))
    assert key in kinds(checked)


class Differentiable(Attends):
    def hand_back(self, x: VerifyInput, done: Attended, *tensors: Any) -> Any:
        lse = done.lse
        assert lse is not None
        return Attended(out=done.out.requires_grad_() * 1, lse=lse.requires_grad_() * 1)


class HandsBackTables(Attends):
    def hand_back(self, x: VerifyInput, done: Attended, *tensors: Any) -> Any:
        assert x.retrieve_parent_token is not None
        return replace(done, declared={"retrieve_parent_token": x.retrieve_parent_token.int()})


def test_an_output_with_a_gradient_is_read_like_any_other() -> None:
    assert kinds(check(Differentiable)) == set()


def test_a_table_handed_back_in_another_integer_type_is_no_evidence() -> None:
    consumes = load("topology").consumes | {"retrieve_parent_token"}
    checked = check(HandsBackTables, consumes=consumes)
    (cell,) = (c for c in checked.cells if (c.identity, c.evidence) == ("visibility", "declared"))
    assert cell.status == "not-checked"


@pytest.mark.parametrize(
    "declared",
    [
        None,
        {"kv_indptr": [0, 1], "kv_indices": [0]},
        {"kv_indptr": None},
        {"kv_indptr": torch.zeros(15), "kv_indices": torch.zeros(4)},
        {
            "page_table": torch.zeros(14, 1, dtype=torch.int64),
            "cache_seqlens": torch.full((14,), 2**45),
        },
        {
            "page_table": torch.zeros(14, 1, dtype=torch.int64),
            "cache_seqlens": torch.full((14,), -5),
        },
    ],
    ids=["none", "lists", "a none", "floats", "huge lengths", "negative lengths"],
)
def test_tables_that_are_none_break_the_contract_and_not_the_check(declared: Any) -> None:
    class Declares(Attends):
        def hand_back(self, x: VerifyInput, done: Attended, *tensors: Any) -> Any:
            return replace(done, declared=declared)

    checked = check(Declares)
    assert {f.identity for f in checked.failures} == {"contract"}
    assert {f.kind for f in checked.failures} <= {"wrong-type", "malformed-table"}


class GoneAtClose(Right):
    def close(self) -> None:
        raise BackendUnavailable("the device is gone")


def test_a_backend_that_becomes_unavailable_at_its_close_is_a_failure() -> None:
    (failure,) = check(GoneAtClose).failures
    assert (failure.key, failure.stage) == (("contract", "raises"), "close")


class NarrowPartials:
    """Three parts of each row's keys, kept in bfloat16 and merged, as is declared."""

    def attend(self, x: VerifyInput, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any) -> Any:
        store_kv(x, k, v, k_cache, v_cache)
        assert x.retrieve_parent_token is not None
        out = torch.zeros_like(q)
        for b, parents in enumerate(x.retrieve_parent_token.tolist()):
            first = int(x.qo_indptr[b])
            prefix = x.req_to_token[x.request_slots[b], : x.seq_lens[b]].tolist()
            for row in range(int(x.qo_indptr[b + 1]) - first):
                path, at = [], row
                while at >= 0:
                    path.append(int(x.out_cache_loc[first + at]))
                    at = parents[at]
                parts = [self.part(x, q[first + row], p, k_cache, v_cache) for p in
                         torch.tensor(prefix + path).tensor_split(3) if len(p)]  # fmt: skip
                outs = torch.stack([o.bfloat16().float() for o, _ in parts])
                share = torch.stack([s for _, s in parts]).softmax(0)
                out[first + row] = (outs * share[..., None]).sum(0)
        return out

    def part(self, x: VerifyInput, q: Any, slots: Any, k_cache: Any, v_cache: Any) -> Any:
        group = x.shape.group_size
        keys = k_cache[slots].repeat_interleave(group, 1)
        values = v_cache[slots].repeat_interleave(group, 1)
        scores = torch.einsum("hd,khd->hk", q, keys) * x.shape.score_scale
        return torch.einsum("hk,khd->hd", scores.softmax(1), values), scores.logsumexp(1)


@pytest.mark.parametrize("prefix", [7, 700])
def test_partial_results_may_be_as_narrow_as_is_declared(prefix: int) -> None:
    tree = CandidateTree(tokens=tuple(range(24)), parents=tuple(range(-1, 23)))
    request = Request(tree=tree, row_of_node=tuple(range(24)), prefix_len=prefix)
    case = VerifyCase(
        requests=(request,), shape=CASE.shape, layout=KVLayout(page_size=4, num_slots=1024)
    )
    consumes = load("topology").consumes | {"retrieve_parent_token", "qo_indptr"}
    declared = Numerics(p="float32", partial="bfloat16", merges=3)
    assert kinds(check(NarrowPartials, case, consumes=consumes, numerics=declared)) == set()
    undeclared = check(NarrowPartials, case, consumes=consumes)
    assert ("output", "outside-bound") in kinds(undeclared)


# --- what is no evidence ---------------------------------------------------------------------------


class Selects:
    def select(self, pool: Any, num_rows: int) -> Any:
        raise AssertionError("no probe that is on selects")


def test_a_backend_of_which_no_stage_ran_passes_nothing() -> None:
    options = CheckOptions(probes=frozenset({"walk"}))
    checked = check_case(CASE, backend_of(Selects), options)
    assert {cell.status for cell in checked.cells} == {"not-checked"}


def test_a_window_that_makes_all_rows_read_equally_many_does_not_hide_who_is_whose_parent() -> None:
    row = np.arange(8)
    chain = (row[None, :] <= row[:, None]) & (row[None, :] > row[:, None] - 3)
    assert recover_parents(chain) == (-1, 0, 1, 2, 3, 4, 5, 6)


def test_a_slot_that_two_rows_are_sent_to_holds_neither_for_certain() -> None:
    assert recover_slots([5, 9, 5, -1, -1, 7], [[5, 9], [7, 8]]) == ((None, 1), (5, None))


def test_a_token_that_walks_disagree_on_is_not_determined() -> None:
    walks = [(0, [0, 1, 2], [7, 8]), (0, [0, 1], [9])]
    assert recover_emitted(walks, [4]) == ((None, None, 8, None),)


def test_a_parent_that_two_rows_could_be_is_not_determined() -> None:
    closure = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 1, 1, 1]], dtype=bool)
    assert recover_parents(closure) == (-1, None, None, None)


def test_parents_come_out_of_a_window_in_the_declared_column() -> None:
    shape = replace_shape(Window(width=3))
    case = VerifyCase(requests=CASE.requests, shape=shape, layout=CASE.layout)
    assert kinds(check(Right, case)) == set()


def replace_shape(visibility: Window) -> AttentionShape:
    return AttentionShape(
        num_q_heads=4, num_kv_heads=2, head_dim=64, v_head_dim=64, visibility=visibility
    )


class CallsOurs:
    """Stages that hand their work to the reference: none of it is evidence about the backend."""

    def build(self, c: Any) -> Any:
        return reference.build(c)

    def accept(self, x: Any, target: Any) -> Any:
        return reference.accept(x, target)

    def commit(self, x: Any, accepted: Any, k: Any, v: Any) -> Any:
        return reference.commit(x, accepted, k, v)


def test_a_stage_that_calls_the_reference_is_no_evidence_about_the_backend() -> None:
    stages = frozenset({"build", "accept", "commit"})
    borrowed = Backend(
        name="borrowed",
        stages=stages,
        consumes=load("reference").consumes,
        capabilities=Capabilities(),
        numerics=Numerics(),
        requires=(),
        make=CallsOurs,
        source="elsewhere:borrowed",
    )
    checked = check_case(CASE, borrowed, CheckOptions())
    assert checked.failures == ()
    assert {c.status for c in checked.cells if c.identity != "contract"} == {"not-checked"}
    # The reference itself is judged, in its own row.
    own = check_case(CASE, load("reference"), CheckOptions())
    passed = {(c.identity, c.evidence) for c in own.cells if c.status == "pass"}
    assert {("candidate", "declared"), ("traversal", "measured"), ("kv", "measured")} <= passed
