"""Each cause is named from what a small broken kernel does, and nothing else is."""

from functools import cache
from zlib import crc32

import pytest
from backend_scene import case_of
from diagnosis_backends import Plain, backend_of
from diagnosis_broken import BROKEN
from diagnosis_defects import RIGHT_MASK
from diagnosis_situations import TWO

from treeproof.diagnosis.catalogue import HYPOTHESES
from treeproof.diagnosis.diagnose import UNKNOWN, diagnose
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.observe import observe

OPTIONS = CheckOptions()
# The first kernel of each cause; the others where long tests are asked for.
EACH = [
    pytest.param(name, number, id=f"{name}-{number}", marks=[pytest.mark.long] * bool(number))
    for name, kernels in BROKEN.items()
    for number in range(len(kernels))
]
# Taking a cause away is tried for a tenth of them.
TAKEN_AWAY = [
    pytest.param(
        *one.values, id=one.id, marks=[pytest.mark.long] * (crc32(one.id.encode()) % 10 > 0)
    )
    for one in EACH
]


@cache
def seen(kernel, case):
    return observe(case, backend_of(kernel), OPTIONS)


def diagnosis_of(kernel, situation, hypotheses=HYPOTHESES):
    case = case_of(situation)
    return diagnose(seen(kernel, case), lambda further: seen(kernel, further), hypotheses)


@pytest.mark.parametrize(("name", "number"), EACH)
def test_the_cause_of_a_broken_kernel_is_named(name, number):
    found = diagnosis_of(*BROKEN[name][number])
    assert found.cause == name, found


@pytest.mark.parametrize(("name", "number"), TAKEN_AWAY)
def test_a_cause_that_is_not_among_the_hypotheses_is_unknown_and_never_another(name, number):
    others = tuple(h for h in HYPOTHESES if h.name != name)
    found = diagnosis_of(*BROKEN[name][number], others)
    assert found.cause == UNKNOWN, found
    assert set(found.ruled_out) == {h.name for h in others}


def test_a_right_kernel_has_no_diagnosis():
    assert diagnosis_of(Plain, TWO) is None


def test_a_mask_laid_out_and_read_rightly_has_no_diagnosis():
    assert diagnosis_of(RIGHT_MASK, TWO) is None
