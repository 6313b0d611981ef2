"""Causes that only a second call, a merge by itself or the whole check can show; and honest limits."""

import math
import time

import pytest
import torch
from backend_scene import case_of
from diagnosis_backends import CONSUMES, Plain, backend_of
from diagnosis_broken import BROKEN
from diagnosis_defects import broken, rows_read, up
from diagnosis_situations import ONE, TWO
from msgspec.structs import replace

from treeproof.contract.backend import describe
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.inputs import Attended
from treeproof.contract.registry import load
from treeproof.diagnosis.catalogue import HYPOTHESES
from treeproof.diagnosis.diagnose import UNKNOWN, diagnose
from treeproof.diagnosis.further import further_cases
from treeproof.engine.check import check_case
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.look import look
from treeproof.engine.observe import observe
from treeproof.faults.catalog import exactly

OPTIONS = CheckOptions()
CASE = case_of(ONE)


def cause_of(kernel, case=CASE, *, again=False, hypotheses=HYPOTHESES, observed=None):
    backend = kernel if not isinstance(kernel, type) else backend_of(kernel)

    def seen(further):
        if observed is not None:
            observed.append(further)
        return observe(further, backend, OPTIONS, again=again)

    return diagnose(seen(case), seen, hypotheses)


# --- an earlier call -------------------------------------------------------------------------------


class KeepsMask(Plain):
    """The parents of the first call decide for ever who is read."""

    def __init__(self):
        self.first = None

    def attend(self, x, *tensors):
        self.first = x.retrieve_parent_token.clone() if self.first is None else self.first
        return super().attend(x, *tensors)

    def path(self, x, b, row):
        if b >= len(self.first) or row >= self.first.shape[1]:
            return up(x, b, row)
        above = [row]
        while above[-1] > 0:
            above.append(int(self.first[b, above[-1]]))
        return [r for r in above[::-1] if r < self.nodes(x, b)]


class KeepsPrefix(Plain):
    """The token table of the first call is looked up for ever."""

    def __init__(self):
        self.first = None

    def attend(self, x, *tensors):
        if self.first is None:
            self.first = x.req_to_token[x.request_slots].clone()
        return super().attend(x, *tensors)

    def prefix_slots(self, x, b, row):
        return [(c, int(self.first[b, c])) for c in range(int(x.seq_lens[b]))]


class KeepsPositions(Plain):
    """Positions are built once for each number of rows."""

    def __init__(self):
        self.kept = {}

    def build(self, c):
        built = super().build(c)
        kept = self.kept.setdefault(len(built["positions"]), built["positions"].clone())
        return {**built, "positions": kept.clone()}


class RunsAsWide(Plain):
    """As many rows as the widest batch had, over tables of this one."""

    widest = 0

    def attend(self, x, *tensors):
        self.widest = max(self.widest, len(x.out_cache_loc))
        x.out_cache_loc[torch.arange(self.widest)]
        return super().attend(x, *tensors)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (KeepsMask, "mask-stale"),
        pytest.param(KeepsPrefix, "stale-plan", marks=pytest.mark.long),
        (KeepsPositions, "stale-plan"),
        (RunsAsWide, "raises"),
    ],
)
def test_what_an_object_keeps_from_an_earlier_call_is_named(kernel, name):
    case = case_of(TWO)
    assert cause_of(kernel, case) is None  # a fresh object does no wrong
    assert cause_of(kernel, case, again=True).cause == name
    others = tuple(h for h in HYPOTHESES if h.name != name)
    assert cause_of(kernel, case, again=True, hypotheses=others).cause == UNKNOWN


# --- a merge by itself -----------------------------------------------------------------------------


def merging(weigh):
    """A kernel of one stage; `weigh` gives weights and log-sum-exp from those of two parts."""

    class Merges:
        def merge(self, out_a, lse_a, out_b, lse_b):
            wa, wb, lse = weigh(lse_a.double(), lse_b.double())
            out = [
                torch.where((w == 0)[..., None], 0.0, w[..., None] * out.double())
                for w, out in ((wa, out_a), (wb, out_b))
            ]
            return (out[0] + out[1]).to(out_a.dtype), lse.float()

    numerics = Numerics(partial="float32", merges=1)
    return describe(Merges, "merges", capabilities=Capabilities(), numerics=numerics)


def softly(a, b):
    lse = torch.logaddexp(a, b)
    none = lse == -math.inf
    return (a - lse).exp().masked_fill(none, 0), (b - lse).exp().masked_fill(none, 0), lse


def infinite_for_nothing(a, b):
    a, b = (torch.where(part == -math.inf, math.inf, part) for part in (a, b))
    top = torch.maximum(a, b)
    za, zb = (a - top).exp(), (b - top).exp()
    return za / (za + zb), zb / (za + zb), top + (za + zb).log()


def second_kept_for_nothing(a, b):
    wa, wb, lse = softly(a, b)
    return wa, wb.masked_fill(lse == -math.inf, 1), lse


def exp2_and_log(a, b):
    top = torch.maximum(a, b).nan_to_num(neginf=0.0)
    za, zb = (a - top).exp2(), (b - top).exp2()
    some = (za + zb).where(za + zb > 0, 1.0)
    return za / some, zb / some, top + (za + zb).log()


def nan_for_nothing(a, b):
    lse = torch.logaddexp(a, b)
    return (a - lse).exp(), (b - lse).exp(), lse


@pytest.mark.parametrize(
    ("weigh", "name"),
    [
        (lambda a, b: softly(a / math.log(2), b / math.log(2)), "base-2-lse"),
        (nan_for_nothing, "nan-empty-row"),
        (exp2_and_log, "base-2-lse"),
        (infinite_for_nothing, "empty-part-counted"),
        (second_kept_for_nothing, "unwritten-output"),
        (lambda a, b: (*softly(a, b)[1::-1], softly(a, b)[2]), "merge-unweighted"),
        (
            lambda a, b: softly(a.nan_to_num(neginf=0.0), b.nan_to_num(neginf=0.0)),
            "empty-part-counted",
        ),
    ],
)
def test_a_merge_is_explained_by_itself(weigh, name):
    assert cause_of(merging(softly)) is None
    assert cause_of(merging(weigh)).cause == name
    others = tuple(h for h in HYPOTHESES if h.name != name)
    assert cause_of(merging(weigh), hypotheses=others).cause == UNKNOWN


# --- what only a check sees ------------------------------------------------------------------------


class Drifts(Plain):
    calls = 0

    def attend(self, *arguments):
        Drifts.calls += 1
        done = super().attend(*arguments)
        done.out[0, 0, 0] *= 1 + 2.0**-22 * (Drifts.calls % 2)
        return done


class Peeks(Plain):
    def attend(self, x, *tensors):
        done = super().attend(x, *tensors)
        done.out[0] *= 1 + 2.0**-23 * (int(x.cache_seqlens.sum()) % 7)
        return done


@pytest.mark.parametrize(
    ("kernel", "name"), [(Drifts, "nondeterministic"), (Peeks, "undeclared-input")]
)
def test_a_broken_contract_that_only_a_check_sees_is_named(kernel, name):
    assert look(CASE, backend_of(kernel), OPTIONS)[0].cause == name


def test_keys_past_the_end_are_named_where_a_check_sees_that_the_tail_counts():
    """A check fills what lies past the end in two ways; that alone is another cause."""

    def one_more(self, x, b, row):
        end = int(x.seq_lens[b]) + self.nodes(x, b)
        return [*Plain.prefix_slots(self, x, b, row), (end, self.column(x, b, end))]

    found, *_ = look(CASE, backend_of(broken(prefix_slots=one_more)), OPTIONS)
    assert found.cause == "past-the-end"
    tail = observe(CASE, backend_of(Plain), OPTIONS).with_contract(
        [("depends-on-tail", "attend", "")]
    )
    assert diagnose(tail, lambda further: None).candidates == ("depends-on-tail",)


def test_a_right_kernel_is_looked_at_in_vain():
    assert look(CASE, backend_of(Plain), OPTIONS) == ()


def test_an_attend_of_its_own_is_enough_for_a_cause():
    """No table is declared: what is read, and the numbers, are all there is."""
    kernel = rows_read(lambda self, x, b, row: list(range(row + 1)))
    backend = describe(
        kernel, "attend-only", stages={"attend"}, consumes=CONSUMES, numerics=Numerics(p="float32")
    )
    found = cause_of(backend, case_of(TWO))
    assert (found.cause, found.groups) == ("causal-mask", ("attend",))


# --- several hypotheses, and none ------------------------------------------------------------------


def test_two_causes_that_explain_one_case_are_told_apart_by_a_further_one():
    """On a fork, a row that reads all rows before its own reads its sibling, and no more."""
    fork = replace(
        CASE.requests[0],
        tree=replace(CASE.requests[0].tree, tokens=(7, 8, 9), parents=(-1, 0, 0)),
        row_of_node=(0, 1, 2),
    )
    case = replace(CASE, requests=(fork,))
    causal, sibling = BROKEN["causal-mask"][0][0], rows_read(
        lambda self, x, b, row: sorted(
            {*up(x, b, row), *(r for r in range(1, row) if up(x, b, r)[-2] == up(x, b, row)[-2])}
        )
    )  # fmt: skip
    alone = {"causal-mask", "sibling-visible"}
    for kernel, name in ((causal, "causal-mask"), (sibling, "sibling-visible")):
        before = diagnose(
            observe(case, backend_of(kernel), OPTIONS), lambda further: None, HYPOTHESES, 0
        )
        assert alone <= set(before.candidates)
        asked = []
        found = cause_of(kernel, case, observed=asked)
        assert (found.cause, found.candidates) == (name, (name,))
        assert len(asked) > 1


class Forgetful(Plain):
    """Reads no key whose slot is even, which no hypothesis states."""

    def cut(self, x, b, row, prefix, path):
        kept = [
            [(k, v) for _, k, v in keys if v % 2 or v == self.own_slot(x, b, row)]
            for keys in (prefix, path)
        ]
        return kept[0], kept[1]


class Doubles(Plain):
    """Outputs of the last lane are half as large again."""

    def attend(self, *arguments):
        done = super().attend(*arguments)
        out = done.out.clone()
        out[..., -1] *= 1.5
        return Attended(out=out, lse=done.lse)


class TwoFaults(Plain):
    """A causal mask, and rows that lose their last prefix key."""

    path = BROKEN["causal-mask"][0][0].path
    prefix_slots = BROKEN["prefix-last-key-missing"][0][0].prefix_slots


@pytest.mark.parametrize("kernel", [Forgetful, Doubles, TwoFaults])
def test_what_no_hypothesis_states_is_unknown_with_all_that_is_ruled_out(kernel):
    found = cause_of(kernel)
    assert found.cause == UNKNOWN
    assert found.candidates == ()
    assert set(found.ruled_out) == {h.name for h in HYPOTHESES}


def test_a_fault_that_comes_and_goes_with_the_case_is_not_given_a_name_that_fits_once():
    """A mask that is causal in trees of eight rows only is no causal mask."""
    causal = BROKEN["causal-mask"][0][0]

    def path(self, x, b, row):
        kernel = causal if self.nodes(x, b) == 8 else Plain
        return kernel.path(self, x, b, row)

    assert cause_of(broken(path=path)).cause == UNKNOWN


def test_names_are_unique_and_every_hypothesis_says_a_sentence():
    names = [h.name for h in HYPOTHESES]
    assert len(set(names)) == len(names)
    assert all(h.says and not h.says.endswith(".") for h in HYPOTHESES)


def test_further_cases_are_valid_always_the_same_and_not_the_case_itself():
    first = [case.id for case in further_cases(CASE)]
    assert first == [case.id for case in further_cases(CASE)]
    assert len(set(first)) == len(first) >= 10
    assert CASE.id not in first


def test_a_cause_takes_seconds_and_not_minutes():
    """A generous limit under load; alone it is below 2 s."""
    kernel = broken(position=lambda self, c, trees, b, row: int(c.seq_lens[b]) + row)
    start = time.process_time()
    assert cause_of(kernel).cause == "position-is-row"
    assert time.process_time() - start < 10


def test_what_lies_behind_a_mask_is_read_because_offsets_are_wrong_and_is_no_second_cause():
    fault = exactly("mask-offsets.elements")
    padded, plain = fault.smallest.requests[1], fault.smallest.requests[0]
    case = replace(
        fault.smallest,
        requests=(replace(padded, pad_rows=1), plain),
        mask=replace(fault.smallest.mask, slack=64),
        seed=0,
    )
    planted = fault.into(load("direct-mask"))
    kinds = {failure.kind for failure in check_case(case, planted, OPTIONS).failures}
    assert "depends-on-tail" in kinds
    found, *_ = look(case, planted, OPTIONS)
    assert found.cause == "mask-of-neighbour"


# --- what a captured launch shows beside others ----------------------------------------------------


def test_a_launch_that_waits_for_the_device_and_writes_elsewhere_has_a_cause_of_each():
    fault = exactly("write-off-by-one.up")
    whole, *each = look(fault.smallest, fault.into(load("page-table")), OPTIONS)
    assert whole.cause == UNKNOWN
    assert {one.kind: one.cause for one in each} == {
        "not-written": "slot-off-by-one",
        "written-elsewhere": "slot-off-by-one",
        "not-capturable": "host-decides",
    }


@pytest.mark.parametrize("name", ["slots-frozen", "kept-from-earlier-call.page-table"])
def test_what_an_object_keeps_is_named_where_replays_show_it_too(name):
    fault = exactly(name)
    planted = fault.into(load("page-table"))
    probes = {f.probe for f in check_case(fault.smallest, planted, OPTIONS).failures}
    assert probes == {"stale", "captured"}
    (found,) = look(fault.smallest, planted, OPTIONS)
    assert found.cause == "stale-plan"
