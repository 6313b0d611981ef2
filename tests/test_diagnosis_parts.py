"""Numbers that are wrong in a part only, or rounded too far: named where reproduced, else unknown."""

import math
from dataclasses import replace

import pytest
import torch
from backend_scene import Situation, case_of
from diagnosis_backends import Plain, backend_of
from diagnosis_defects import broken, merged, other_heads, rows_read, soft
from diagnosis_situations import ALIBI, CAPPED, COMB, EMPTY, ONE, SINKS

from treeproof.diagnosis.catalogue import HYPOTHESES
from treeproof.diagnosis.diagnose import UNKNOWN, diagnose
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.observe import observe

ALONE = Situation(trees=(COMB,), prefixes=(5,), pads=(0,), heads=(1, 1), dims=(16, 16))
TINY = Situation(trees=(((-1,), (0,)),), prefixes=(1,), pads=(0,), heads=(1, 1), dims=(8, 8))
FOUR = Situation(
    trees=(((-1, 0, 0, 1), (0, 1, 2, 3)),), prefixes=(0,), pads=(0,), heads=(1, 1), dims=(8, 8)
)


def found_in(kernel, situation, hypotheses=HYPOTHESES):
    def seen(case):
        return observe(case, backend_of(kernel), CheckOptions())

    return diagnose(seen(case_of(situation)), seen, hypotheses)


class CapsTheTree(Plain):
    """Two passes a row and head, of which the first, over the prefix, caps no scores."""

    passes = 0

    def capped(self, x, scores):
        self.passes += 1
        return scores if self.passes % 2 else Plain.capped(self, x, scores)


def last_head(x, head):
    return head == len(x.sinks if x.sinks is not None else x.alibi_slopes) - 1


def no_sink(self, x, head, lse):
    return 1.0 if last_head(x, head) else Plain.beside_sink(self, x, head, lse)


def no_slope(self, x, head):
    return 0.0 if head % 2 else Plain.slope(self, x, head)


def causal(self, x, b, row):
    return list(range(row + 1))


def exp2_from_the_top(a, b):
    top = torch.maximum(a, b)
    za, zb = (a - top).exp2(), (b - top).exp2()
    return za / (za + zb), zb / (za + zb), top + (za + zb).log()


def rounding(what):
    """A kernel whose last product is taken by `what(weights, values)`; weights are divided later."""

    def combine(self, x, a, b):
        scores, values = torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])
        p = (scores - scores.max()).exp()
        return what(p, values) / p.sum(), scores.logsumexp(0)

    return broken(combine=combine)


def halved(p, v):
    return (p.half().double() @ v.half().double()).half().double()


def of_weights(p, v):
    return p.bfloat16().double() @ v


def one_by_one(p, v):
    total = torch.zeros(v.shape[1], dtype=torch.float16)
    for weight, value in zip(p.half(), v.half(), strict=True):
        total = (total.double() + weight.double() * value.double()).half()
    return total.double()


ROUNDED = rounding(of_weights)


class RoundsFromFive(Plain):
    """Another kernel takes over where a request has five rows."""

    def combine(self, x, a, b):
        wide = int(x.qo_indptr.diff().max()) >= 5
        return (ROUNDED if wide else Plain).combine(self, x, a, b)


LARGE = Situation(trees=(COMB,), prefixes=(0,), pads=(0,), heads=(1, 1), dims=(8, 8))
IN_PART = [
    (CapsTheTree, CAPPED, "softcap-missing", "for keys of the prefix"),
    pytest.param(broken(beside_sink=no_sink), SINKS, "sinks-missing", "in the last head", marks=pytest.mark.long),
    (
        broken(beside_sink=no_sink), replace(SINKS, heads=(1, 1)), "sinks-missing",
        "in the last head",
    ),
    pytest.param(broken(slope=no_slope), replace(ALIBI, heads=(4, 2)), "alibi-missing", "in odd heads", marks=pytest.mark.long),
    (other_heads({1, 2, 3}, "keys", rows_read(causal)), ALONE, "one-head-only", "the first head: causal-mask"),
    (merged(exp2_from_the_top), TINY, "base-2-lse", "natural ones read as base 2, a natural logarithm added to the larger one"),
    (merged(lambda a, b: (*soft(a, b)[1::-1], soft(a, b)[2])), ONE, "merge-unweighted", "by each other's"),
    pytest.param(merged(lambda a, b: (0.5, 0.5, torch.logaddexp(a, b))), EMPTY, "merge-unweighted", "empty parts too", marks=pytest.mark.long),
    pytest.param(rounding(halved), ONE, "low-precision-accumulator", "weights and values and sums in float16, relative to the largest", marks=pytest.mark.long),
    pytest.param(rounding(one_by_one), ONE, "low-precision-accumulator", "weights and values and the sum key by key in float16, relative to the largest", marks=pytest.mark.long),
    (ROUNDED, FOUR, "low-precision-accumulator", "weights in bfloat16, relative to the largest"),
    (RoundsFromFive, LARGE, "rows-change-numbers", "weights in bfloat16, relative to the largest, where"),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "situation", "name", "detail"), IN_PART)
def test_what_is_so_in_a_part_is_named_with_the_part(kernel, situation, name, detail):
    found = found_in(kernel, situation)
    assert (found.cause, found.candidates[0]) == (name, name)
    assert found.detail.startswith(detail)


# Of a law, of what is read, of a merge; the others where long tests are asked for.
@pytest.mark.parametrize(
    ("kernel", "situation", "name"),
    [
        pytest.param(*values[:3], marks=[pytest.mark.long] * (i not in (0, 4, 6)))
        for i, values in enumerate(getattr(one, "values", one) for one in IN_PART)
    ],
)
def test_a_cause_in_a_part_that_is_not_among_the_hypotheses_is_unknown(kernel, situation, name):
    others = tuple(h for h in HYPOTHESES if h.name != name)
    assert found_in(kernel, situation, others).cause == UNKNOWN


def off(p, v):
    return (p @ v) * (1 + 2.0**-9)


def noisy(p, v):
    return p @ v * (1 + torch.linspace(-(2.0**-8), 2.0**-8, v.shape[1], dtype=torch.float64))


def cut_off(p, v):
    """Towards zero, to eight bits: no rounding to nearest does so."""
    bits = (p.float().view(torch.int32) >> 16 << 16).view(torch.float32)
    return bits.double() @ v


@pytest.mark.parametrize(
    "what",
    [
        pytest.param(off, marks=pytest.mark.long),
        pytest.param(noisy, marks=pytest.mark.long),
        cut_off,
    ],
)
def test_a_kernel_that_is_slightly_off_in_another_way_has_no_low_precision(what):
    assert found_in(rounding(what), ONE).cause == UNKNOWN


def test_a_part_of_heads_that_no_statement_names_is_unknown():
    kernel = other_heads({0, 3}, "keys", rows_read(causal))
    assert found_in(kernel, replace(ALONE, heads=(4, 2))).cause == UNKNOWN


def test_a_fault_of_all_heads_is_not_said_to_be_one_of_some():
    found = found_in(rows_read(causal), ALONE)
    assert (found.cause, found.candidates) == ("causal-mask", ("causal-mask",))


def test_rounding_is_followed_where_a_kernels_own_error_tips_it():
    """A weight between two that are kept: either is as predicted, and nothing else is."""
    from treeproof.diagnosis.rounding import ROUNDED as laws

    law = laws["weights in bfloat16"]
    middle = 0.5 + 2.0**-9  # halfway between 0.5 and the next bfloat16
    weights, v = torch.tensor([[middle, 0.25]]).double(), torch.ones(1, 2, 1).double()
    own = torch.tensor([False, True])
    least, most = law.sum(weights * (1 - 1e-7), weights * (1 + 1e-7), v, own)
    assert (float(least), float(most)) == (0.75, 0.75 + 2.0**-8)
    least, most = law.sum(weights * 0.9, weights * 0.9, v, own)
    assert math.isclose(float(least), float(most))
