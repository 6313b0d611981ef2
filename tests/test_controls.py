"""What people have taken for faults and is none: nothing is said of it, and much of the fault beside.

Sampled acceptance is no stage yet; there, the law that will judge it is tested on both.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from test_check_loopholes import Right, check, kinds

from treeproof.backends.reference.store import store_kv
from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.inputs import Accepted, Attended, Committed, VerifyInput
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.kv import committed_columns, frontier
from treeproof.oracles.law import Coins, Walk, draw, exact_law, next_token, target_only
from treeproof.oracles.traversal import greedy_walk
from treeproof.properties.greedy import judge_choice

F = Fraction
P = (F(1, 2), F(3, 10), F(1, 5))
FORK = CandidateTree((7, 0, 1), (-1, 0, 0))


def first_token(walk: Walk) -> list[Fraction] | None:
    return next_token(exact_law(walk), (), len(P))


# --- top-k drafts are accepted with the target's probability alone ----------------------------------


def one_coin_each(renormalise: bool, keep_refused: bool = False) -> Walk:
    """Accept a child with its probability, or strike it out, renormalise and try the next one."""

    def walk(coins: Coins) -> tuple[int, ...]:
        left = list(P)
        for child in FORK.children(0):
            token = FORK.tokens[child]
            total = sum(left) if renormalise else F(1)
            if coins.pick(child, [left[token] / total]) == 0:
                return (token,)
            if not keep_refused:
                left[token] = F(0)
        return (draw(coins, "last", left),)

    return walk


def test_deterministic_proposals_keep_the_law_of_the_target() -> None:
    assert first_token(target_only(FORK, (P, P, P))) == list(P)
    assert first_token(one_coin_each(renormalise=True)) == list(P)


def test_without_renormalising_or_striking_out_the_law_is_another() -> None:
    # 1/2; then 3/10 of the other half; what is left is all on the last token.
    assert first_token(one_coin_each(renormalise=False)) == [F(1, 2), F(3, 20), F(7, 20)]
    # A refused token that is drawn in the end: 1/2 and half of 1/2 · 7/10.
    biased = first_token(one_coin_each(renormalise=True, keep_refused=True))
    assert biased is not None
    assert biased[0] == F(1, 2) + F(1, 2) * F(7, 10) * F(1, 2)


# --- "accept where the draft equals a sampled token" ------------------------------------------------


def sampled_match(drawn_again: bool) -> Walk:
    def walk(coins: Coins) -> tuple[int, ...]:
        token = draw(coins, "target", P)
        if token == FORK.tokens[1]:
            return (token,)
        return (draw(coins, "again", P) if drawn_again else token,)

    return walk


def test_emitting_the_very_draw_that_was_compared_is_unbiased() -> None:
    assert first_token(sampled_match(drawn_again=False)) == list(P)


def test_emitting_another_draw_after_a_refusal_is_biased() -> None:
    assert first_token(sampled_match(drawn_again=True)) == [F(3, 4), F(3, 20), F(1, 10)]


# --- greedy text that differs in 16 bit -------------------------------------------------------------


def rounded(logits: Sequence[float]) -> tuple[list[float], list[float]]:
    """Logits in bfloat16, and how far each may be off: half a unit in the last place."""
    exact = torch.tensor(logits, dtype=torch.float64)
    return exact.bfloat16().double().tolist(), (exact.abs() * 2.0**-8).tolist()


def test_a_near_tie_that_rounding_turns_round_is_a_tie() -> None:
    logits = [1.0, 5.001, 5.003, 2.0]
    got, limits = rounded(logits)
    chosen = max(range(4), key=got.__getitem__)
    assert chosen == 1  # both are 5 in bfloat16, and the first is taken
    assert judge_choice(logits, limits, chosen) == "tie"
    assert judge_choice(logits, limits, 2) == "pass"


def test_a_choice_that_rounding_does_not_explain_is_a_fault() -> None:
    logits = [1.0, 4.9, 5.003, 2.0]
    _, limits = rounded(logits)
    assert judge_choice(logits, limits, 1) == "fail"
    # Right at the limit: 4.9 may be 4.9 + 0.0191 and 5.003 no less than 5.003 - 0.0195.
    gap = 5.003 - 4.9 - limits[1] - limits[2]
    wide = [limits[0], limits[1] + gap + 1e-9, limits[2], limits[3]]
    assert judge_choice(logits, wide, 1) == "tie"
    wide[1] -= 2e-9
    assert judge_choice(logits, wide, 1) == "fail"


def test_the_first_of_equal_logits_is_no_tie_and_the_second_is() -> None:
    assert judge_choice([3.0, 3.0], [0.0, 0.0], 0) == "pass"
    assert judge_choice([3.0, 3.0], [0.0, 0.0], 1) == "tie"


# --- a prefix hit that stops one block short --------------------------------------------------------


def hit_of(shared: int) -> VerifyCase:
    """Two requests with 32 keys before a tree, of which the second takes so many from the first."""
    tree = CandidateTree((11, 12, 13, 14), (-1, 0, 0, 1))
    request = Request(tree=tree, row_of_node=(0, 1, 2, 3), prefix_len=33)
    return VerifyCase(
        requests=(request, request),
        shape=AttentionShape(num_q_heads=2, num_kv_heads=1, head_dim=64, v_head_dim=64),
        layout=KVLayout(page_size=16, num_slots=192, shared_prefix=shared),
    )


class StaleBlock(Right):
    """The last block that was matched is read before anybody has written it."""

    slots: Sequence[int] = ()

    def attend(self, x: VerifyInput, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any) -> Any:
        seen = [cache.clone() for cache in (k_cache, v_cache)]
        for cache in seen:
            cache[list(self.slots)] = 0
        out = super().attend(x, q, k, v, *seen)
        store_kv(x, k, v, k_cache, v_cache)
        return Attended(out=out.out, lse=out.lse) if isinstance(out, Attended) else out


@pytest.mark.parametrize("shared", [32, 16, 0], ids=["whole", "dropped", "none"])
def test_recomputing_the_last_matched_block_costs_time_and_is_no_fault(shared: int) -> None:
    assert kinds(check(Right, hit_of(shared))) == set()


def test_a_matched_block_that_nobody_has_written_is_a_fault() -> None:
    case = hit_of(32)
    slots = SlotLedger.of(case).columns[1][16:32]

    class Stale(StaleBlock):
        pass

    Stale.slots = tuple(int(slot) for slot in slots)
    found = check(Stale, case)
    assert any(f.identity in ("visibility", "output") and f.request == 1 for f in found.failures)


# --- the hidden row of the root beside the first accepted token -------------------------------------


def test_rows_and_emitted_tokens_are_one_step_apart() -> None:
    """Committed are root, D1, D2; emitted are D1, D2, bonus. Feature i goes with token i + 1."""
    tree = CandidateTree((7, 21, 22, 31), (-1, 0, 0, 2))
    walk = greedy_walk(tree, (22, 0, 31, 40), max_len=4)
    assert [tree.tokens[node] for node in committed_columns(tree, walk)] == [7, 22, 31]
    assert walk.tokens == (22, 31, 40)
    assert list(zip(walk.nodes, walk.tokens, strict=True)) == [(0, 22), (2, 31), (3, 40)]
    end = frontier(10, walk)
    assert (end.boundary, end.next_root, end.next_root_position) == (13, 40, 13)


class Unshifted(Right):
    """Emits the accepted rows' own tokens, which a naive alignment would call right."""

    def accept(self, x: VerifyInput, target: Any) -> Accepted:
        done = super().accept(x, target)
        tokens = done.tokens.clone()
        for b, length in enumerate(done.accept_len.tolist()):
            tokens[b, :length] = x.draft_token[done.accept_index[b, :length]]
        return Accepted(done.accept_index, done.accept_len, tokens)


def test_the_pairing_shifted_by_one_passes_and_the_unshifted_fails() -> None:
    assert kinds(check(Right)) == set()
    assert kinds(check(Unshifted)) == {("candidate", "wrong-token"), ("traversal", "wrong-bonus")}


# --- draft probabilities that are not handed on -----------------------------------------------------


def rejection(q: Sequence[Fraction], draft: int, exclude: bool = True) -> Walk:
    """Accept with min(1, p / q); after a refusal draw from relu(p - q), or from p itself."""

    def walk(coins: Coins) -> tuple[int, ...]:
        if coins.pick("u", [min(F(1), P[draft] / q[draft])]) == 0:
            return (draft,)
        rest = [max(F(0), p - share) if exclude else p for p, share in zip(P, q, strict=True)]
        return (draw(coins, "last", rest),)

    return walk


ONE_HOT = {draft: tuple(F(int(token == draft)) for token in range(3)) for draft in range(3)}


@pytest.mark.parametrize("draft", range(3))
def test_a_one_hot_proposal_leaves_the_law_and_lowers_acceptance(draft: int) -> None:
    assert first_token(rejection(ONE_HOT[draft], draft)) == list(P)


def test_the_draft_model_own_probabilities_leave_it_too_and_accept_more() -> None:
    q = (F(1, 5), F(1, 5), F(3, 5))
    laws = [exact_law(rejection(q, draft)) for draft in range(3)]
    mixed = [sum(q[d] * laws[d].get((token,), F(0)) for d in range(3)) for token in range(3)]
    assert mixed == list(P)
    accepted = sum(q[draft] * min(F(1), P[draft] / q[draft]) for draft in range(3))
    assert accepted == F(3, 5)
    assert accepted > sum(q[draft] * P[draft] for draft in range(3))  # what one-hot accepts


def test_a_residual_that_holds_the_refused_token_still_is_biased() -> None:
    assert first_token(rejection(ONE_HOT[0], 0, exclude=False)) == [F(3, 4), F(3, 20), F(1, 10)]


# --- where it crashes is not where the fault is -----------------------------------------------------


class WritesAndCrashesLater(Right):
    """Writes into a slot that no row lives in; only the next stage stumbles over it."""

    broken = False
    slot = 0

    def attend(self, x: VerifyInput, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any) -> Any:
        out = super().attend(x, q, k, v, k_cache, v_cache)
        k_cache[self.slot] = k[0]
        self.broken = True
        return out

    def commit(self, x: VerifyInput, accepted: Accepted, k: Any, v: Any) -> Committed:
        if self.broken:
            raise IndexError("index out of range in commit")
        return super().commit(x, accepted, k, v)


class WritesPastTheEnd(WritesAndCrashesLater):
    """The same behind the last slot, where the buffer is no longer the backend's."""

    def attend(self, x: VerifyInput, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any) -> Any:
        out = Right.attend(self, x, q, k, v, k_cache, v_cache)
        shape, end = (1, *k_cache.shape[1:]), k_cache.storage_offset() + k_cache.numel()
        if k_cache.untyped_storage().nbytes() > end * k_cache.element_size():
            k_cache.as_strided(shape, k_cache.stride(), end).fill_(7.0)
            self.broken = True
        return out


class OnlyCrashes(Right):
    def commit(self, x: VerifyInput, accepted: Accepted, k: Any, v: Any) -> Committed:
        raise IndexError("index out of range in commit")


def test_a_stray_write_is_blamed_on_the_stage_that_wrote_and_not_on_the_one_that_crashed() -> None:
    from test_check_loopholes import CASE

    class Planted(WritesAndCrashesLater):
        slot = int(SlotLedger.of(CASE).unowned[-1])

    found = check(Planted).failures
    stray = [f for f in found if f.key == ("kv", "written-elsewhere")]
    assert {f.stage for f in stray} == {"attend"}
    assert any(f"slot {Planted.slot} " in f.message for f in stray)
    assert {f.stage for f in found if f.key == ("contract", "raises")} == {"commit"}


def test_guard_cells_locate_a_write_past_the_end_of_a_buffer() -> None:
    found = check(WritesPastTheEnd).failures
    past = [f for f in found if f.key == ("contract", "writes-past-the-end")]
    assert {(f.stage, "k_cache" in f.message) for f in past} == {("attend", True)}
    assert {f.stage for f in found if f.key == ("contract", "raises")} == {"commit"}
    assert found.index(past[0]) < min(i for i, f in enumerate(found) if f.stage == "commit")


def test_a_crash_without_a_write_blames_no_other_stage() -> None:
    """Negative control: the later stage alone is at fault, and the earlier one is not suspected."""
    found = check(OnlyCrashes).failures
    assert {(f.key, f.stage) for f in found} == {(("contract", "raises"), "commit")}
