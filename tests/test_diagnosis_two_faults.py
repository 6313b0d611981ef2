"""Two faults in one backend: each failure gets the cause of its own evidence, and no other."""

from functools import cache
from pathlib import Path

import pytest
from backend_scene import case_of
from diagnosis_backends import Plain, backend_of
from diagnosis_broken import BROKEN
from diagnosis_defects import broken
from diagnosis_situations import ONE, TWO

from treeproof.cli import main
from treeproof.contract.registry import load
from treeproof.diagnosis.catalogue import HYPOTHESES
from treeproof.diagnosis.diagnose import UNKNOWN, diagnose
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.look import look
from treeproof.engine.observe import observe
from treeproof.faults.catalog import exactly

OPTIONS = CheckOptions()
CASE = case_of(TWO)


def planted(backend, *faults):
    made = load(backend)
    for fault in map(exactly, faults):
        assert fault.applies(made)
        made = fault.into(made)
    return made


def seen_by(kernel):
    return cache(lambda case: observe(case, backend_of(kernel), OPTIONS))


def causes_of(backend, case):
    """What is said of all, and the cause of each failure where they are told apart."""
    whole, *each = look(case, backend, OPTIONS)
    return whole, {(one.identity, one.kind): one.cause for one in each}


# --- one stage each --------------------------------------------------------------------------------

PAIRS = [
    # Of two stages.
    ("cascade", "position-off-by-one.all", "bonus-from-parent.always", {
        ("position", "wrong-depth"): "position-off-by-one",
        ("position", "wrong-rotation"): "position-off-by-one",
        ("traversal", "wrong-bonus"): "bonus-from-parent",
    }),
    ("direct-mask", "tree-mask-left-out.causal", "commit-to-neighbour", {
        ("visibility", "reads-sibling"): "causal-mask",
        ("output", "outside-bound"): "causal-mask",
        ("traversal", "wrong-walk"): "causal-mask",
        ("kv", "path-not-compacted"): "slot-of-neighbour",
    }),
    ("page-table", "prefix-dropped.later-requests", "position-off-by-one.all", {
        ("position", "wrong-depth"): "position-off-by-one",
        ("position", "wrong-rotation"): "position-off-by-one",
        ("visibility", "misses-prefix"): "prefix-dropped",
        ("output", "outside-bound"): "prefix-dropped",
    }),
    # Of one stage, in two of its fields.
    ("cascade", "position-is-row", "sibling-lost.elder", {
        ("position", "wrong-depth"): "position-is-row",
        ("position", "wrong-rotation"): "position-is-row",
        ("traversal", "unlinked-row"): "sibling-lost",
    }),
    ("direct-mask", "position-is-row", "tree-mask-left-out.none", {
        ("position", "wrong-depth"): "position-is-row",
        ("visibility", "reads-sibling"): "no-mask",
        ("traversal", "wrong-walk"): "no-mask",
    }),
]  # fmt: skip


@pytest.mark.parametrize(("backend", "one", "other", "wanted"), PAIRS)
def test_two_faults_that_stand_apart_are_named_failure_by_failure(backend, one, other, wanted):
    whole, causes = causes_of(planted(backend, one, other), CASE)
    assert {key: causes[key] for key in wanted} == wanted
    assert whole.cause == UNKNOWN
    assert set(causes.values()) == set(wanted.values())


@pytest.mark.parametrize(("backend", "one", "other", "wanted"), PAIRS[:2])
def test_what_only_one_of_two_shows_is_that_one(backend, one, other, wanted):
    """The negative control: with one fault there is one cause, and nothing of the other."""
    for name in (one, other):
        whole, causes = causes_of(planted(backend, name), CASE)
        assert whole.cause == exactly(name).cause
        assert causes == {}


def test_of_two_faults_in_one_group_none_is_claimed():
    backend = planted("cascade", "bonus-from-parent.always", "accept-len-off-by-one.up")
    whole, causes = causes_of(backend, CASE)
    assert (whole.cause, whole.candidates, causes) == (UNKNOWN, (), {})
    assert set(whole.ruled_out) == {h.name for h in HYPOTHESES}


def test_beside_two_faults_in_one_group_a_third_apart_is_still_named():
    backend = planted(
        "cascade", "bonus-from-parent.always", "accept-len-off-by-one.up", "position-off-by-one.all"
    )
    _, causes = causes_of(backend, CASE)
    assert causes["position", "wrong-depth"] == "position-off-by-one"
    assert causes["traversal", "wrong-bonus"] == UNKNOWN
    assert causes["traversal", "wrong-walk"] == UNKNOWN


# --- by hand, group by group -----------------------------------------------------------------------


def late(self, c, trees, b, row):
    return Plain.position(self, c, trees, b, row) + 1


def first_token(self, x, accepted, roots):
    return [int(token) for token in accepted.tokens[:, 0]]


CAUSAL = BROKEN["causal-mask"][0][0].path


def parts_of(kernel, hypotheses=HYPOTHESES):
    seen = seen_by(kernel)
    found = diagnose(seen(CASE), seen, hypotheses)
    return {part.groups: part.cause for part in found.parts}


def test_one_mistake_made_in_two_stages_stays_one_beside_another():
    """The tree is left out where the tables are built and where they are read."""
    both = ("causal-kernel", "tree-mask-left-out.causal")

    def diagnosed(*names):
        backend = planted("direct-mask", *names)
        seen = cache(lambda case: observe(case, backend, OPTIONS))
        return diagnose(seen(CASE), seen)

    alone = diagnosed(*both)
    assert set(alone.groups) == {"tables", "attend"}
    assert (alone.cause, alone.parts) == ("causal-mask", ())
    found = diagnosed(*both, "position-off-by-one.all")
    beside = {frozenset(part.groups): part.cause for part in found.parts}
    assert beside == {
        frozenset(alone.groups): "causal-mask",
        frozenset({"positions"}): "position-off-by-one",
    }


def test_three_faults_are_three_parts():
    kernel = broken(path=CAUSAL, roots=first_token, position=late)
    assert sorted(parts_of(kernel).values()) == [
        "causal-mask", "next-root-not-bonus", "position-off-by-one"
    ]  # fmt: skip


def test_without_its_hypothesis_a_part_is_unknown_and_never_the_cause_of_the_other():
    kernel = broken(position=late, roots=first_token)
    causes = {("positions",): "position-off-by-one", ("commit",): "next-root-not-bonus"}
    assert parts_of(kernel) == causes
    for groups, name in causes.items():
        others = tuple(h for h in HYPOTHESES if h.name != name)
        assert parts_of(kernel, others) == {**causes, groups: UNKNOWN}


def test_a_fault_that_shows_on_further_cases_alone_does_not_hide_the_one_that_shows_here():
    """A check was reduced to one request: what happens to later ones cannot be seen on it."""

    def later(self, c, trees, b, row):
        return Plain.position(self, c, trees, b, row) + (b > 0)

    kernel, case = broken(position=later, roots=first_token), case_of(ONE)
    seen = seen_by(kernel)
    found = diagnose(seen(case), seen)
    assert (found.cause, found.groups) == ("next-root-not-bonus", ("commit",))


# --- as a user sees it ------------------------------------------------------------------------------

FILE = """
from treeproof.contract.registry import load, register_backend
from treeproof.faults.catalog import exactly

backend = load("cascade")
for name in ("position-off-by-one.all", "bonus-from-parent.always"):
    backend = exactly(name).into(backend)
register_backend(backend)
"""


def test_a_check_of_a_file_with_two_faults_says_which_failure_has_which_cause(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("two.py").write_text(FILE)
    Path("trees.json").write_text("[[-1, 0, 0, 1, 1]]")
    with pytest.raises(SystemExit) as end:
        main(["check", "two.py", "--trees", "trees.json", "--examples", "1", "--in-process"])
    assert end.value.code == 1
    said = {}
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("✗"):
            failure = line.split("(")[0].split()[-2:]
        if line.strip().startswith("likely cause: "):
            said[" ".join(failure)] = line.split(": ")[1]
    assert said == {
        "position: wrong-depth": "position-off-by-one",
        "position: wrong-rotation": "position-off-by-one",
        "output: outside-bound": "position-off-by-one",
        "output: wrong-lse": "position-off-by-one",
        "traversal: wrong-bonus": "bonus-from-parent",
    }
