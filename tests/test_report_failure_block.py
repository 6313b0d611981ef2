"""The failure block: exact text, at most 40 lines, the replay command last and whole."""

from __future__ import annotations

import io
from dataclasses import replace

import msgspec
import pytest

from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.event import Checked, Diagnosed
from treeproof.contract.failure import Failure, Recovered
from treeproof.contract.registry import load
from treeproof.contract.script import Admit, Prefill, Round, Turn
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import check_case
from treeproof.engine.checks.options import CheckOptions
from treeproof.faults.catalog import FAULTS
from treeproof.reports.console import MAX_WIDTH, open_console, write
from treeproof.reports.failure_block import MAX_LINES, Explained, failure_block
from treeproof.reports.varies import varies_freely
from treeproof.scoring.pairs import SUBJECTS, pairs

REPLAY = "treeproof replay .treeproof/runs/1/failures/causal.json --backend causal.py"


def case_of(*parents: tuple[int, ...], prefix_len: int = 0) -> VerifyCase:
    requests = tuple(
        Request(
            tree=CandidateTree(tokens=tuple(range(10, 10 + len(p))), parents=p),
            row_of_node=tuple(range(len(p))),
            prefix_len=prefix_len,
        )
        for p in parents
    )
    shape = AttentionShape(num_q_heads=2, num_kv_heads=1, head_dim=16, v_head_dim=16)
    return VerifyCase(requests=requests, shape=shape, layout=KVLayout(page_size=1, num_slots=4096))


SIBLING = Failure(
    identity="visibility",
    kind="reads-sibling",
    evidence="measured",
    stage="attend",
    request=0,
    row=2,
    column=1,
    expected="not read",
    actual="read once",
    message="row 2 (node 2, path 0→2) reads row 1 (node 1), which is not an ancestor",
)
RECOVERED = (
    Recovered(identity="visibility", evidence="measured", what="parents", values=((-1, 0, 1),)),
    Recovered(identity="traversal", evidence="declared", what="parents", values=((-1, 0, 0),)),
    Recovered(identity="position", evidence="declared", what="depths", values=((0, 1, 2),)),
    Recovered(identity="kv", evidence="measured", what="rows", values=((None, None, None),)),
    Recovered(identity="candidate", evidence="measured", what="tokens", values=((None, 11, 12),)),
)


def explained(case: VerifyCase, *failures: Failure, **fields: object) -> Explained:
    checked = Checked(
        case=case.id, backend="causal", cells=(), failures=failures, recovered=RECOVERED
    )
    first = Explained(
        backend="causal",
        failure=failures[0],
        case=case,
        checked=checked,
        checks=41,
        replay=REPLAY,
        reduction="reduced from 37 rows",
    )
    return replace(first, **fields)  # type: ignore[arg-type]


def plain(what: Explained) -> list[str]:
    return [line.plain for line in failure_block(what)]


def test_a_leaked_sibling_is_named_drawn_and_replayable() -> None:
    assert plain(explained(case_of((-1, 0, 0)), SIBLING)) == [
        "✗ causal  visibility: reads-sibling  (measured, stage attend)  in 41 checks",
        "  row 2 (node 2, path 0→2) reads row 1 (node 1), which is not an ancestor",
        "  expected not read, got read once",
        "  case of 1 request, 3 rows, prefix 0; reduced from 37 rows",
        "",
        "  row 0 token 10",
        "  ├─ row 1 token 11 ◄─┐  must not be read",
        "  └─ row 2 token 12 ──┘  row 2 reads it",
        "",
        "  • must read  + reads but must not",
        "            prefix   0 1 2",
        "  row 2     empty    • + •",
        "",
        "  drawn tree   visibility (measured)   position (declared)",
        "  0            0                       row 0 depth 0",
        "  ├─ 1         └─ 1                    row 1 depth 1",
        "  └─ 2            └─ 2                 row 2 depth 2, not 1",
        "  recovered as drawn: traversal (declared), candidate (measured)",
        "  not determined: kv (measured), 1 of 3 rows in candidate (measured)",
        REPLAY,
    ]


def test_a_missed_ancestor_is_marked_as_missing() -> None:
    missed = msgspec.structs.replace(SIBLING, kind="misses-ancestor", column=0)
    lines = plain(explained(case_of((-1, 0, 0)), missed))
    assert "  row 0 token 10 ◄────┐  must be read" in lines
    assert "  └─ row 2 token 12 ──┘  row 2 does not read it" in lines
    assert "  row 2     empty    - · •" in lines


def test_heads_that_disagree_and_keys_read_twice_have_signs_of_their_own() -> None:
    twice = msgspec.structs.replace(SIBLING, kind="reads-twice", column=0)
    mixed = msgspec.structs.replace(SIBLING, kind="heads-differ", column=2)
    lines = plain(explained(case_of((-1, 0, 0)), twice, mixed))
    assert "  row 2     empty    2 · ~" in lines
    assert "  └─ row 2 token 12 ──┘  row 2 reads it twice" in lines


def test_a_prefix_key_is_marked_on_the_row_and_folded_in_the_grid() -> None:
    missed = [
        msgspec.structs.replace(SIBLING, kind="misses-prefix", column=column)
        for column in (3, 4, 5, 9)
    ]
    lines = plain(explained(case_of((-1, 0, 0), prefix_len=12), *missed))
    assert "  └─ row 2 token 12  ◄── here" in lines
    assert "  row 2     all  - 3-5 9   • · •" in lines


def test_of_several_requests_the_failing_one_is_drawn() -> None:
    second = msgspec.structs.replace(SIBLING, request=1, row=1, column=2)
    lines = plain(explained(case_of((-1,), (-1, 0, 0)), second))
    assert "  request 1" in lines
    assert "  ├─ row 1 token 11 ──┐  row 1 reads it" in lines


def test_the_failing_row_comes_first_among_the_rows_that_differ() -> None:
    star = case_of((-1, *[0] * 30))
    failures = [msgspec.structs.replace(SIBLING, row=row, column=1) for row in range(2, 30)]
    lines = plain(explained(star, failures[-1], *failures))
    start = lines.index("            prefix  rows")
    assert lines[start + 1] == "  row 29    empty   • 0 29   + 1"
    assert lines[start + 2] == "  row 2     empty   • 0 2   + 1"
    assert "  … 22 more rows that differ" in lines


def test_the_worst_case_still_fits_and_ends_in_the_command() -> None:
    big = case_of((-1, *[(node - 1) // 2 for node in range(1, 200)]), (-1, 0), prefix_len=300)
    wide = msgspec.structs.replace(
        SIBLING,
        row=150,
        column=300 + 149,
        message="word " * 200,
        expected="e" * 300,
        actual="a" * 300,
        cause="c " * 200,
    )
    failures = [msgspec.structs.replace(wide, row=row) for row in range(2, 190)]
    recovered = tuple(
        Recovered(identity=name, evidence=evidence, what="parents", values=((-1, *range(199)),))
        for name in ("candidate", "visibility", "traversal", "kv")
        for evidence in ("declared", "measured")
    )
    what = explained(big, wide, *failures)
    assert what.checked is not None
    checked = msgspec.structs.replace(what.checked, recovered=recovered)
    lines = plain(replace(what, checked=checked))
    assert len(lines) <= MAX_LINES
    assert lines[-1] == REPLAY
    assert max(map(len, lines)) <= 100


def test_without_case_or_check_the_sentence_and_the_command_remain() -> None:
    crash = Failure(
        identity="contract",
        kind="crash",
        evidence="measured",
        stage="attend",
        message="attend died: segmentation fault",
        severity="crash",
    )
    unknown = replace(explained(case_of((-1,)), crash), case=None, checked=None, checks=1)
    assert plain(unknown) == [
        "✗ causal  contract: crash  (measured, stage attend)  in 1 check",
        "  attend died: segmentation fault",
        REPLAY,
    ]


@pytest.mark.parametrize(("kind", "said"), [("outside-bound", True), ("wrong-lse", False)])
def test_an_output_failure_says_how_far_beyond_the_bound_where_it_is_about_the_output(
    kind: str, said: bool
) -> None:
    off = msgspec.structs.replace(SIBLING, identity="output", kind=kind, column=None)
    what = explained(case_of((-1, 0, 0)), off)
    assert what.checked is not None
    checked = msgspec.structs.replace(what.checked, margin=31.25)
    lines = plain(replace(what, checked=checked))
    assert ("  worst error 31.2 times the bound" in lines) == said


def test_a_likely_cause_is_said() -> None:
    caused = msgspec.structs.replace(SIBLING, cause="a causal mask in row order")
    lines = plain(explained(case_of((-1, 0, 0)), caused))
    assert "  likely cause: a causal mask in row order" in lines


def test_a_diagnosis_is_said_as_a_sentence_in_place_of_the_bare_name() -> None:
    found = Diagnosed(
        backend="causal", identity="visibility", kind="reads-sibling", case="c", cause="causal-mask",
        says="a row reads all rows up to its own", candidates=("causal-mask",),
    )  # fmt: skip
    caused = msgspec.structs.replace(SIBLING, cause="causal-mask")
    lines = plain(replace(explained(case_of((-1, 0, 0)), caused), diagnosed=found))
    assert "  likely cause: causal-mask: a row reads all rows up to its own" in lines
    unknown = msgspec.structs.replace(found, cause="unknown", ruled_out=("no-mask",))
    lines = plain(replace(explained(case_of((-1, 0, 0)), caused), diagnosed=unknown))
    assert "  cause unknown: ruled out no-mask" in lines
    assert not any("likely cause" in line for line in lines)


def test_values_that_both_the_drawn_and_the_reduced_case_fail_at_vary_freely() -> None:
    drawn, reduced = case_of((-1, 0, 0), (-1, 0), prefix_len=7), case_of((-1, 0, 0))
    drawn = msgspec.structs.replace(
        drawn, shape=msgspec.structs.replace(drawn.shape, dtype="bfloat16", rotary=10000.0)
    )
    words = "dtype (bfloat16, float32), rotary (on, off), requests (2, 1), longest prefix (7, 0)"
    assert varies_freely(drawn, reduced) == words
    assert varies_freely(reduced, reduced) == ""
    lines = [line.plain for line in failure_block(explained(reduced, SIBLING, varies=words))]
    assert f"  varies freely: {words.removesuffix(' 0)')}" in lines
    without = [line.plain for line in failure_block(explained(reduced, SIBLING))]
    assert not any("varies freely" in line for line in without)


def printed(what: Explained) -> list[str]:
    """The block as it stands in a log."""
    stream = io.StringIO()
    write(open_console(stream), failure_block(what))
    return stream.getvalue().splitlines()


def assert_fits(lines: list[str], replay: str) -> None:
    assert len(lines) <= MAX_LINES
    assert lines[-1] == replay
    assert max(map(len, lines[:-1])) <= MAX_WIDTH


def test_a_long_script_of_many_requests_fits() -> None:
    chain = tuple(range(-1, 59))
    plain = case_of(*[chain] * 8, prefix_len=40)
    turns = tuple(Turn(request=b, accept=50, nodes=55, stop=40) for b in range(8))
    steps = [Admit(request=b) for b in range(8)] + [Prefill(request=b) for b in range(8)]
    script = msgspec.structs.replace(
        plain,
        script=(*steps, *[Round(turns=turns, idle=3)] * 20),
        shape=msgspec.structs.replace(plain.shape, rotary=100.0),
        layout=KVLayout(page_size=1, num_slots=16384),
    )
    failure = msgspec.structs.replace(
        SIBLING, identity="kv", kind="path-not-compacted", stage="commit", column=70, row=50,
        message="column 70 does not hold what it must, " * 40 + "; seen in step 30 of the script",
        expected="x " * 400, actual="y " * 400,
    )  # fmt: skip
    what = replace(
        explained(script, failure),
        varies="aspect (one, other), " * 60,
        reduction="not reduced, " * 20,
    )
    assert_fits(printed(what), REPLAY)


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "name",
    [
        "layers-confused.window-used-up",  # a model of several layers
        "end-of-another",  # the last of several rounds
        pytest.param("coins-not-advanced.draw", marks=LONG),  # sampled rounds
        pytest.param("grammar-by-rows", marks=LONG),  # adjusted logits
        pytest.param("one-coin-for-two", marks=LONG),  # sampled acceptance
        pytest.param("engine-causal.later-layers", marks=LONG),  # a whole engine
        pytest.param("draft-slots-of-first-round", marks=LONG),
    ],
)
def test_what_real_failures_of_other_stages_say_fits(name: str) -> None:
    faults = [fault for fault in FAULTS if fault.name == name or fault.name.startswith(f"{name}.")]
    (pair, *_) = pairs(faults, SUBJECTS, every_backend=False)
    smallest = pair.fault.smallest
    assert smallest is not None
    found = check_case(smallest, pair.fault.into(load(pair.backend)), CheckOptions())
    assert found.failures
    for failure in {f.key: f for f in found.failures}.values():
        what = Explained("mine", failure, smallest, found, 1, REPLAY, reduction="not reduced")
        assert_fits(printed(what), REPLAY)
