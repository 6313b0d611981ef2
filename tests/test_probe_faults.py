"""Every kind of failure that launches can show, planted in a kernel that reads explicit lists.

The kernel takes, for each row and KV head, a list of (K slot, V slot) pairs written by the test from
the drawn tree, so a fault is one edited list and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase, Window
from treeproof.contract.event import Checked
from treeproof.contract.failure import PROBES, Failure
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.registry import Backend, BackendUnavailable
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case

PREFIX, FORK = 6, CandidateTree(tokens=(1, 2, 3, 4, 5), parents=(-1, 0, 0, 1, 2))


def case_of(dtype: str = "float32", window: int | None = None, prefix: int = PREFIX) -> VerifyCase:
    request = Request(tree=FORK, row_of_node=(0, 1, 2, 3, 4), prefix_len=prefix)
    shape: dict[str, Any] = {} if window is None else {"visibility": Window(width=window)}
    return VerifyCase(
        requests=(request, request),
        shape=AttentionShape(
            num_q_heads=4, num_kv_heads=2, head_dim=32, v_head_dim=32, dtype=dtype, **shape
        ),
        layout=KVLayout(page_size=2, num_slots=-(-(4 * prefix + 64) // 2) * 2, order="shuffled"),
    )


Lists = list[list[list[tuple[int, int]]]]
"""[row][query head] -> (K slot, V slot) pairs."""


def right_lists(case: VerifyCase) -> Lists:
    """Written out from the tree: prefix inside the window, then the path."""
    ledger = SlotLedger.of(case)
    lists: Lists = []
    for b, request in enumerate(case.requests):
        for row in range(request.num_nodes):
            path = FORK.path(request.node_of_row[row])
            columns = [*range(request.prefix_len), *(request.prefix_len + n for n in path)]
            if case.shape.window is not None:
                columns = columns[-case.shape.window :]
            pairs = [(ledger.columns[b][c], ledger.columns[b][c]) for c in columns]
            lists.append([list(pairs) for _ in range(case.shape.num_q_heads)])
    return lists


class ListKernel:
    def __init__(self, case: VerifyCase, lists: Lists) -> None:
        self.homes = [s for b in range(2) for s in SlotLedger.of(case).row_slots(b)]
        self.case, self.lists, self.calls = case, lists, 0

    def attend(self, x: VerifyInput, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any) -> Any:
        self.calls += 1
        k_cache[self.homes], v_cache[self.homes] = k, v
        group = self.case.shape.group_size
        out = torch.empty(*q.shape[:2], v.shape[2], dtype=q.dtype)
        lse = torch.empty(q.shape[:2])
        for row, heads in enumerate(self.lists):
            for head, pairs in enumerate(heads):
                keys = k_cache[[a for a, _ in pairs], head // group].float()
                values = v_cache[[b for _, b in pairs], head // group].float()
                scores = keys @ q[row, head].float() * self.case.shape.score_scale
                out[row, head] = (scores.softmax(0) @ values).to(q.dtype)
                lse[row, head] = scores.logsumexp(0)
        return Attended(out=out, lse=lse)


def checked_of(
    kernel: type[ListKernel] = ListKernel,
    edit: Callable[[Lists, SlotLedger], None] | None = None,
    case: VerifyCase | None = None,
    **capabilities: Any,
) -> Checked:
    case = case or case_of()
    lists = right_lists(case)
    if edit is not None:
        edit(lists, SlotLedger.of(case))
    backend = Backend(
        name="lists",
        stages=frozenset({"attend"}),
        consumes=frozenset(),
        capabilities=Capabilities(**capabilities),
        numerics=Numerics(p="float32"),
        requires=(),
        make=lambda: kernel(case, lists),
        source="",
    )
    return check_case(case, backend, CheckOptions(probes=frozenset(PROBES) - _OTHER_CASES))


_OTHER_CASES = {"stale", "metamorphic"}
"""Probes that launch related cases, whose lists are not written here."""


def check(*arguments: Any, **named: Any) -> tuple[Failure, ...]:
    return checked_of(*arguments, **named).failures


def kinds(failures: tuple[Failure, ...]) -> set[tuple[str, str]]:
    return {f.key for f in failures}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("window", [None, 1, 2, 4])
@pytest.mark.parametrize("prefix", [0, 1, 6])
def test_right_lists_pass(dtype: str, window: int | None, prefix: int) -> None:
    assert check(case=case_of(dtype, window, prefix)) == ()


def add(row: int, column_of: Callable[[SlotLedger], int]) -> Callable[[Lists, SlotLedger], None]:
    def edit(lists: Lists, ledger: SlotLedger) -> None:
        slot = column_of(ledger)
        for pairs in lists[row]:
            pairs.append((slot, slot))

    return edit


def drop(row: int, place: int) -> Callable[[Lists, SlotLedger], None]:
    def edit(lists: Lists, ledger: SlotLedger) -> None:
        for pairs in lists[row]:
            del pairs[place]

    return edit


@pytest.mark.parametrize(
    ("edit", "kind", "row", "column"),
    [
        (add(2, lambda s: s.columns[0][PREFIX + 1]), "reads-sibling", 2, PREFIX + 1),
        (add(1, lambda s: s.columns[0][PREFIX + 3]), "reads-descendant", 1, PREFIX + 3),
        (add(2, lambda s: s.columns[0][PREFIX]), "reads-twice", 2, PREFIX),
        (add(2, lambda s: s.columns[1][PREFIX]), "reads-other-request", 2, None),
        (add(2, lambda s: s.unowned[3]), "reads-unowned", 2, None),
        (drop(3, 0), "misses-prefix", 3, 0),
        (drop(3, PREFIX), "misses-ancestor", 3, PREFIX),
        (drop(3, -1), "misses-self", 3, PREFIX + 3),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_an_edited_list_is_named_by_kind_row_and_column(
    edit: Callable[[Lists, SlotLedger], None], kind: str, row: int, column: int | None
) -> None:
    failures = [f for f in check(edit=edit) if f.identity == "visibility" and f.kind == kind]
    assert [(f.request, f.row, f.column) for f in failures] == [(0, row, column)]


def test_a_window_one_key_too_wide_is_seen_in_the_prefix_and_in_the_tree() -> None:
    case = case_of(window=2)
    wide = case_of(window=3)

    def edit(lists: Lists, ledger: SlotLedger) -> None:
        lists[:] = right_lists(wide)

    failures = check(edit=edit, case=case)
    outside = {(f.request, f.row, f.column) for f in failures if f.kind == "reads-outside-window"}
    # Row 0 reaches into the prefix, rows 3 and 4 up to the root, in both requests.
    assert {(0, 0, PREFIX - 2), (0, 3, PREFIX), (1, 4, PREFIX)} <= outside


def test_a_far_prefix_key_that_is_missed_is_found_by_the_screen() -> None:
    prefix = 500

    def edit(lists: Lists, ledger: SlotLedger) -> None:
        for pairs in lists[3]:
            del pairs[321]

    for dtype in ("float32", "bfloat16", "float16"):
        failures = check(edit=edit, case=case_of(dtype, prefix=prefix))
        found = [(f.row, f.column) for f in failures if f.kind == "misses-prefix"]
        assert found == [(3, 321)], dtype


def test_one_head_that_misses_a_key_is_seen_where_the_others_read_it() -> None:
    def edit(lists: Lists, ledger: SlotLedger) -> None:
        del lists[3][2][PREFIX]

    assert ("visibility", "heads-differ") in kinds(check(edit=edit))


def test_keys_and_values_from_different_slots_pass_tomography_and_fail_the_spike() -> None:
    def edit(lists: Lists, ledger: SlotLedger) -> None:
        for pairs in lists[3]:
            (k0, v0), (k1, v1) = pairs[0], pairs[-1]
            pairs[0], pairs[-1] = (k1, v0), (k0, v1)

    failures = check(edit=edit)
    seen = {f.kind for f in failures if f.identity == "visibility"}
    assert seen == {"wrong-key"}


def test_a_kernel_that_swaps_kv_heads_fails_visibility() -> None:
    class Swapped(ListKernel):
        def attend(self, x: Any, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any) -> Any:
            done = super().attend(x, q, k, v, k_cache, v_cache)
            turned = super().attend(x, q.flip(1), k, v, k_cache, v_cache)
            del done
            return Attended(out=turned.out, lse=turned.lse)

    assert ("visibility", "wrong-key") in kinds(check(Swapped))


# --- writes and memory -----------------------------------------------------------------------------


class Misplaced(ListKernel):
    """Writes the last row one slot off."""

    def attend(self, x: Any, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any) -> Any:
        kept = k_cache.clone(), v_cache.clone()
        done = super().attend(x, q, k, v, k_cache, v_cache)
        home, stray = self.homes[-1], SlotLedger.of(self.case).unowned[-1]
        k_cache[home], v_cache[home] = kept[0][home], kept[1][home]
        k_cache[stray], v_cache[stray] = k[-1], v[-1]
        return done


def test_a_row_written_elsewhere_is_named_with_both_slots() -> None:
    failures = check(Misplaced)
    assert {("kv", "not-written"), ("kv", "written-elsewhere")} <= kinds(failures)
    stray = SlotLedger.of(case_of()).unowned[-1]
    assert any(f"slot {stray} (held by nobody)" in f.message for f in failures)


class Whispers(ListKernel):
    """Lets a free slot into the output by a weight far below any tolerance."""

    def attend(self, x: Any, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any) -> Any:
        done = super().attend(x, q, k, v, k_cache, v_cache)
        page = SlotLedger.of(self.case).owner
        tail = next(s for s in SlotLedger.of(self.case).unowned if s ^ 1 in page)
        done.out[3] += 1e-6 * v_cache[tail].repeat_interleave(2, 0)
        return done


def test_memory_that_no_row_holds_must_have_no_influence_at_all() -> None:
    # Page tails exist where the last page is not full: 6 + 5 columns in pages of 2.
    assert ("kv", "unowned-influences") in kinds(check(Whispers))


# --- the contract ----------------------------------------------------------------------------------


def broken(change: Callable[[Attended], Any]) -> type[ListKernel]:
    class Broken(ListKernel):
        def attend(self, *arguments: Any) -> Any:
            return change(super().attend(*arguments))

    return Broken


def unwritten(done: Attended) -> Attended:
    out = torch.empty_like(done.out)
    out[:-1] = done.out[:-1]
    return Attended(out=out)


def nan_in(done: Attended) -> Attended:
    done.out[2, 0, 0] = torch.nan
    return done


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda done: None, "wrong-type"),
        (lambda done: done.out[:-1], "wrong-shape"),
        (lambda done: done.out.double(), "wrong-dtype"),
        (lambda done: Attended(out=done.out, lse=done.lse[:, :1]), "wrong-shape"),
        (lambda done: Attended(out=done.out, lse=done.lse.double()), "wrong-dtype"),
        (nan_in, "not-finite"),
        (unwritten, "not-finite"),
    ],
)
def test_what_attend_returns_is_held_to_the_contract(
    change: Callable[[Attended], Any], kind: str
) -> None:
    failures = check(broken(change))
    assert [f.key for f in failures] == [("contract", kind)]


def test_a_stage_that_raises_is_a_failure_with_type_and_line() -> None:
    class Raises(ListKernel):
        def attend(self, *arguments: Any) -> Any:
            raise IndexError("table has 3 pages")

    (failure,) = check(Raises)
    assert failure.key == ("contract", "raises")
    assert "IndexError: table has 3 pages" in failure.message
    assert "(test_probe_faults.py, line" in failure.message


def test_an_input_that_is_changed_is_named() -> None:
    class Mutates(ListKernel):
        def attend(self, x: Any, q: Any, *rest: Any) -> Any:
            done = super().attend(x, q, *rest)
            q.mul_(2)
            x.seq_lens.add_(1)
            return done

    (failure,) = [f for f in check(Mutates) if f.kind == "mutates-input"]
    assert "seq_lens" in failure.message
    assert " q" in failure.message


def test_a_field_that_is_read_and_not_named_in_consumes_is_named() -> None:
    class Peeks(ListKernel):
        def attend(self, x: Any, *tensors: Any) -> Any:
            done = super().attend(x, *tensors)
            done.out[0] += 1e-7 * float(x.positions.sum())
            return done

    (failure,) = [f for f in check(Peeks) if f.kind == "reads-undeclared-input"]
    assert "positions" in failure.message


def test_a_kernel_that_is_not_repeatable_says_so_or_fails() -> None:
    class Drifts(ListKernel):
        def attend(self, *arguments: Any) -> Any:
            done = super().attend(*arguments)
            done.out[0, 0, 0] *= 1 + 2.0**-22 * (self.calls % 2)
            return done

    assert ("contract", "nondeterministic") in kinds(check(Drifts))
    assert check(Drifts, deterministic=False) == ()


# --- numbers ---------------------------------------------------------------------------------------


def test_a_log_sum_exp_in_base_two_is_named() -> None:
    wrong = check(broken(lambda d: Attended(out=d.out, lse=d.lse * 1.4426950408889634)))
    assert {f.key for f in wrong} == {("output", "wrong-lse")}


def test_a_score_scale_that_is_off_by_a_thousandth_leaves_the_bound() -> None:
    class Scaled(ListKernel):
        def attend(self, x: Any, q: Any, *rest: Any) -> Any:
            return super().attend(x, q * 1.001, *rest)

    assert ("output", "outside-bound") in kinds(check(Scaled))


def test_a_stage_that_leaves_the_program_is_a_failure_too() -> None:
    class Exits(ListKernel):
        def attend(self, *arguments: Any) -> Any:
            raise SystemExit(0)

    assert [f.key for f in check(Exits)] == [("contract", "raises")]


def test_a_kernel_that_finds_it_cannot_run_here_is_unavailable_and_not_wrong() -> None:
    class WrongDevice(ListKernel):
        def attend(self, *arguments: Any) -> Any:
            raise BackendUnavailable("needs a Hopper GPU")

    assert check(WrongDevice) == ()
    checked = checked_of(WrongDevice)
    assert {(c.status, c.reason) for c in checked.cells} == {("unavailable", "needs a Hopper GPU")}


def test_a_kernel_that_leaves_storing_to_the_harness_reads_rows_at_their_own_slots() -> None:
    class StoresNothing(ListKernel):
        def attend(self, x: Any, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any) -> Any:
            return super().attend(x, q, k_cache[self.homes], v_cache[self.homes], k_cache, v_cache)

    assert check(StoresNothing, stores_kv=False) == ()
    assert ("output", "outside-bound") in kinds(check(StoresNothing))


class DeadlyTensor(torch.Tensor):
    """What a tensor is like after its device found a fault: the next look at it raises."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__name__", "") == "__get__":  # shape and dtype need no device
            return super().__torch_function__(function, types, args, kwargs or {})
        raise RuntimeError("CUDA error: device-side assert triggered")


def test_a_fault_that_the_device_reports_late_is_the_stages_that_ran_last() -> None:
    class Assaults(ListKernel):
        def attend(self, *arguments: Any) -> Any:
            return super().attend(*arguments).out.as_subclass(DeadlyTensor)

    (failure,) = check(Assaults)
    assert failure.key == ("contract", "raises")
    assert failure.stage == "attend"
    assert "device-side assert" in failure.message


def test_a_runtime_error_of_the_harness_itself_is_no_finding() -> None:
    class Confuses(ListKernel):
        def attend(self, *arguments: Any) -> Any:
            return super().attend(*arguments).out.as_subclass(HostileTensor)

    with pytest.raises(RuntimeError, match="no device had a part in this"):
        check(Confuses)


class HostileTensor(DeadlyTensor):
    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        try:
            return super().__torch_function__(function, types, args, kwargs)
        except RuntimeError:
            raise RuntimeError("no device had a part in this") from None
