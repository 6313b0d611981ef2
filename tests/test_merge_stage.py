"""The merge of two partial results: what right merges give, and what wrong ones are told."""

import math
from dataclasses import replace

import pytest
import torch

from treeproof.contract.backend import describe
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.registry import load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.properties.merging import judge_merge, parts


def case_of(dtype="float32", heads=4):
    return VerifyCase(
        requests=(Request(tree=CandidateTree((0,), (-1,)), row_of_node=(0,), prefix_len=2),),
        shape=AttentionShape(
            num_q_heads=heads, num_kv_heads=2, head_dim=16, v_head_dim=16, dtype=dtype
        ),
        layout=KVLayout(page_size=1, num_slots=8),
        seed=5,
    )


def plain(out_a, lse_a, out_b, lse_b):
    """By weights relative to the larger part; nothing is 0 and -inf."""
    top = torch.maximum(lse_a, lse_b)
    shift = torch.where(top.isinf(), 0.0, top)
    w_a, w_b = torch.exp(lse_a - shift), torch.exp(lse_b - shift)
    total = w_a + w_b
    safe = torch.where(total == 0, 1.0, total)
    out = (out_a.float() * w_a[..., None] + out_b.float() * w_b[..., None]) / safe[..., None]
    return out.to(out_a.dtype), shift + total.log()


def base_two(out_a, lse_a, out_b, lse_b):
    """As FlashInfer merges: exp2 and log2 throughout."""
    top = torch.maximum(lse_a, lse_b)
    shift = torch.where(top.isinf(), 0.0, top)
    w_a, w_b = torch.exp2(lse_a - shift), torch.exp2(lse_b - shift)
    total = w_a + w_b
    safe = torch.where(total == 0, 1.0, total)
    out = (out_a.float() * w_a[..., None] + out_b.float() * w_b[..., None]) / safe[..., None]
    return out.to(out_a.dtype), shift + total.log2()


def nan_on_nothing(out_a, lse_a, out_b, lse_b):
    out, lse = plain(out_a, lse_a, out_b, lse_b)
    nothing = (lse_a == -math.inf) & (lse_b == -math.inf)
    return torch.where(nothing[..., None], math.nan, out), torch.where(nothing, math.nan, lse)


def unweighted(out_a, lse_a, out_b, lse_b):
    return (out_a + out_b) / 2, torch.logaddexp(lse_a, lse_b)


def empty_counts(out_a, lse_a, out_b, lse_b):
    """A part of no key is taken for one of mass 1."""
    return plain(out_a, lse_a.nan_to_num(neginf=0.0), out_b, lse_b.nan_to_num(neginf=0.0))


def unshifted(out_a, lse_a, out_b, lse_b):
    w_a, w_b = lse_a.exp(), lse_b.exp()
    total = w_a + w_b
    safe = torch.where(total == 0, 1.0, total)
    out = (out_a * w_a[..., None] + out_b * w_b[..., None]) / safe[..., None]
    return out, total.log()


def multiplies_nothing(out_a, lse_a, out_b, lse_b):
    """-inf less -inf is NaN where nobody looks."""
    lse = torch.logaddexp(lse_a, lse_b)
    w_a, w_b = (lse_a - lse).exp(), (lse_b - lse).exp()
    return out_a * w_a[..., None] + out_b * w_b[..., None], lse


def larger_lse(out_a, lse_a, out_b, lse_b):
    return plain(out_a, lse_a, out_b, lse_b)[0], torch.maximum(lse_a, lse_b)


def failures(merge, dtype="float32", **said):
    numerics = {name: said.pop(name) for name in ("partial", "merges", "acc") if name in said}
    backend = describe(
        merge, "mine", stages={"merge"}, capabilities=Capabilities(**said), numerics=Numerics(**numerics)
    )  # fmt: skip
    checked = check_case(case_of(dtype), backend, CheckOptions())
    judged = [c for c in checked.cells if c.identity == "output"]
    assert [(c.stage, c.evidence) for c in judged] == [("merge", "measured")]
    assert (judged[0].status == "fail") == bool(checked.failures)
    return checked.failures


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("partial", ["float32", "input"])
def test_a_right_merge_passes_in_every_dtype(dtype, partial):
    assert failures(plain, dtype, partial=partial) == ()
    assert failures(base_two, dtype, partial=partial, lse_base="2") == ()


def flushing(out_a, lse_a, out_b, lse_b):
    """As hardware does that knows no numbers below the normal range."""
    out, lse = plain(out_a, lse_a, out_b, lse_b)
    shift = torch.maximum(lse_a, lse_b)
    w_a, w_b = torch.exp(lse_a - shift), torch.exp(lse_b - shift)
    small = (torch.minimum(w_a, w_b) < 2.0**-126) & ~shift.isinf()
    largest = torch.where((lse_a > lse_b)[..., None], out_a, out_b)
    return torch.where(small[..., None] & (largest == 0), torch.zeros_like(out), out), lse


def test_a_share_below_the_normal_range_may_be_flushed_and_a_larger_one_may_not():
    drawn = parts(case_of(), Numerics(), Capabilities(), "cpu")
    zero = torch.zeros_like(drawn.out_a)
    given = replace(drawn, out_a=zero, out_b=torch.ones_like(zero))
    right, lse = plain(given.out_a, given.lse_a, given.out_b, given.lse_b)
    flushed, _ = flushing(given.out_a, given.lse_a, given.out_b, given.lse_b)
    assert (flushed != right).any()  # a part 100 below the other weighs 3.7e-44
    judged = judge_merge(given, flushed, lse, case_of(), Numerics(), Capabilities())
    assert judged == []
    off = right + 2.0**-120 * ((right > 0) & (right < 1e-37))
    kinds = {f.kind for f in judge_merge(given, off, lse, case_of(), Numerics(), Capabilities())}
    assert kinds == {"wrong-merge"}


def test_masses_of_three_to_one_are_in_the_message():
    found = failures(unweighted)
    assert {f.kind for f in found} == {"wrong-merge"}
    first = found[0]
    assert (first.identity, first.stage, first.probe) == ("output", "merge", "merge")
    assert first.message.startswith("masses 3 to 1: the merged output is 6, expected 4")


@pytest.mark.parametrize(
    ("merge", "said", "kinds"),
    [
        # 2 ** ln 3 to 1 is not 3 to 1.
        (base_two, {}, {"wrong-merge", "wrong-merged-lse"}),
        (plain, {"lse_base": "2"}, {"wrong-merge", "wrong-merged-lse"}),
        (nan_on_nothing, {}, {"merged-nothing"}),
        (plain, {"empty_rows": "nan"}, {"merged-nothing"}),
        (empty_counts, {}, {"wrong-merge", "wrong-merged-lse", "merged-nothing"}),
        (multiplies_nothing, {}, {"merged-nothing"}),
        (larger_lse, {}, {"wrong-merged-lse"}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_wrong_merge_is_told_what_is_wrong(merge, said, kinds):
    assert {f.kind for f in failures(merge, **said)} == kinds


def test_what_becomes_of_nothing_is_as_declared():
    assert failures(nan_on_nothing, empty_rows="nan") == ()
    assert failures(nan_on_nothing, empty_rows="undefined") == ()
    assert failures(plain, empty_rows="undefined") == ()


def test_only_parts_far_from_zero_show_a_missing_shift():
    messages = [f.message for f in failures(unshifted)]
    assert messages
    assert all("near 100" in m or "near -100" in m for m in messages)


def test_a_merge_that_changes_its_parts_is_told():
    def spoils(out_a, lse_a, out_b, lse_b):
        merged = plain(out_a, lse_a, out_b, lse_b)
        out_a.zero_()
        return merged

    found = failures_of_contract(spoils)
    assert [(f.kind, f.message) for f in found] == [
        ("mutates-input", "merge changed its inputs out_a")
    ]


@pytest.mark.parametrize(
    ("returned", "kind"),
    [
        (lambda a, la, b, lb: a, "wrong-type"),
        (lambda a, la, b, lb: (a[:1], la), "wrong-shape"),
        (lambda a, la, b, lb: (a, la.double()), "wrong-dtype"),
        (lambda a, la, b, lb: 1 / 0, "raises"),
    ],
)
def test_a_merge_that_returns_something_else_breaks_its_contract(returned, kind):
    assert [f.kind for f in failures_of_contract(returned)] == [kind]


def failures_of_contract(merge):
    checked = check_case(case_of(), describe(merge, "mine", stages={"merge"}), CheckOptions())
    assert all((f.identity, f.stage) == ("contract", "merge") for f in checked.failures)
    return checked.failures


def test_parts_in_bfloat16_that_are_declared_in_float32_are_too_coarse():
    def coarse(out_a, lse_a, out_b, lse_b):
        out, lse = plain(out_a, lse_a, out_b, lse_b)
        return out.bfloat16().float(), lse

    assert {f.kind for f in failures(coarse)} == {"wrong-merge"}


def test_the_merge_of_cascade_is_judged_and_the_others_have_none():
    for name in ("cascade", "topology"):
        checked = check_case(case_of(), load(name), CheckOptions())
        merged = [c.status for c in checked.cells if c.stage == "merge"]
        assert merged == (["pass"] if name == "cascade" else [])
        assert checked.failures == ()


def test_the_probe_can_be_switched_off():
    backend = describe(unweighted, "mine", stages={"merge"})
    probes = frozenset({"random"})
    assert check_case(case_of(), backend, CheckOptions(probes=probes)).failures == ()
