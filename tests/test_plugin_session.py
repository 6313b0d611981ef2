"""The pytest plug-in, in sessions of its own: options, seeds, one report, and no hollow pass."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from treeproof.generate.script_units import draw_scripts, script_units
from treeproof.scoring.planted_file import planted_file

pytest_plugins = ["pytester"]

EXAMPLES = Path(__file__).parent.parent / "examples"
LIGHT = """
import sys

def test_nothing_heavy_was_imported():
    assert not {"torch", "hypothesis", "rich", "numpy"} & set(sys.modules)
"""
BACKENDS = """
import treeproof

test_cascade = treeproof.make_tests("cascade", examples=24)
test_faulty = treeproof.make_tests("faulty_backend.py", examples=24)
"""
# Two of the shape groups, and one that the faulty backend does not take.
FEW = ("-k", "float16-4x2-d64v32-p16-full or float32-4x1-d64-p2-full or bfloat16-4x1-d32-p2-window")
ABSENT = """
import treeproof

@treeproof.register("absent", requires={"no_such_package=pip install no-such-package"})
def attend(x, q, k, v, k_cache, v_cache):
    raise AssertionError("never called")
"""


# Sessions that import nothing new run in this process; all others in one of their own.


def header(result: pytest.RunResult) -> str:
    return next(line for line in result.outlines if line.startswith("treeproof: "))


def test_a_session_without_our_tests_imports_nothing_heavy_and_reports_nothing(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(LIGHT)
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    assert header(result) == "treeproof: seed 0, profile quick"
    result.stdout.no_fnmatch_line("*== treeproof ==*")
    assert not (pytester.path / ".treeproof").exists()


def test_the_command_line_wins_over_the_ini_file_and_that_over_the_table(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(LIGHT)
    pytester.makepyprojecttoml("[tool.treeproof]\nseed = 1\nprofile = 'ci'\n")
    seen = [header(pytester.runpytest_inprocess("--collect-only"))]
    ini = "[pytest]\ntreeproof_seed = 2\n"
    (pytester.path / "pytest.ini").write_text(ini)
    seen.append(header(pytester.runpytest_inprocess("--collect-only")))
    seen.append(header(pytester.runpytest_inprocess("--collect-only", "--treeproof-seed=3")))
    assert seen == [f"treeproof: seed {seed}, profile ci" for seed in (1, 2, 3)]


def test_nightly_draws_anew_unless_it_is_told_a_seed(pytester: pytest.Pytester) -> None:
    nightly = ("--collect-only", "--treeproof-profile", "nightly")
    seeds = {header(pytester.runpytest_inprocess(*nightly)) for _ in range(2)}
    assert len(seeds) == 2
    told = pytester.runpytest_inprocess(*nightly, "--treeproof-seed", "0")
    assert header(told) == "treeproof: seed 0, profile nightly"


@pytest.mark.parametrize(
    ("arguments", "ini", "message"),
    [
        (["--treeproof-seed=x"], "", "--treeproof-seed is 'x': accepted are whole numbers"),
        (["--treeproof-profile=fast"], "", "--treeproof-profile is 'fast': accepted are quick"),
        ([], "treeproof_dtype = fp8", "ini option treeproof_dtype is 'fp8': accepted are float32"),
        ([], "treeproof_identity = mask", "ini option treeproof_identity is"),
    ],
)
def test_an_option_that_cannot_be_used_is_a_usage_error(
    pytester: pytest.Pytester, arguments: list[str], ini: str, message: str
) -> None:
    pytester.makeini(f"[pytest]\n{ini}\n")
    result = pytester.runpytest_inprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: treeproof: {message}*"])


def test_options_stand_in_one_group_and_each_has_an_ini_twin(pytester: pytest.Pytester) -> None:
    text = pytester.runpytest_inprocess("--help").stdout.str()
    options = set(re.findall(r"^  --treeproof-([a-z-]+)", text, re.MULTILINE))
    twins = set(re.findall(r"^  treeproof_([a-z_]+) \(", text, re.MULTILINE))
    assert options == {
        "seed", "profile", "examples", "device", "dtype", "identity", "ledger", "run-dir",
        "no-reduce",
    }  # fmt: skip
    assert twins == {option.removeprefix("no-").replace("-", "_") for option in options}
    markers = pytester.runpytest_inprocess("--markers")
    markers.stdout.fnmatch_lines(["@pytest.mark.treeproof: holds tree attention*"])


def test_made_tests_fail_with_the_smallest_case_and_one_report_however_many_processes(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_kernels=BACKENDS)
    (pytester.path / "faulty_backend.py").write_text(
        (EXAMPLES / "faulty_backend.py").read_text("utf-8"), "utf-8"
    )
    drawn, reports = [], []
    for processes in ("0", "2"):
        result = pytester.runpytest_subprocess(
            *FEW, "-n", processes, f"--treeproof-run-dir=run-{processes}"
        )
        result.assert_outcomes(passed=4, failed=1, skipped=1)
        text = result.stdout.str()
        assert text.count("= treeproof =") == 1
        drawn.append({path.name for path in (pytester.path / f"run-{processes}/cases").iterdir()})
        reports.append([line for line in result.outlines if re.match(r"(cascade|causal) ", line)])
    assert drawn[0] == drawn[1]
    assert reports[0] == reports[1]
    assert len(reports[0]) == 4, "backend by identity, and how far each was exercised"
    assert re.search(r"^cascade +5 of 5 ", text, re.MULTILINE)
    assert re.search(r"^causal +1 of 5 ", text, re.MULTILINE)
    result.stdout.fnmatch_lines(
        [
            "*_ test_faulty[[]float32-4x1-d64-p2-full-FULL_MASK[]] _*",
            "✗ causal  visibility: reads-sibling *",
            "  case of 1 request, 3 rows, prefix 0; reduced in *",
            "*✗ causal  visibility: reads-sibling: row 2 (node 2, path 0→2) reads row 1*",
        ]
    )
    assert not (pytester.path / ".hypothesis").exists()
    line = next(line for line in result.outlines if line.startswith("treeproof replay"))
    replayed = subprocess.run(
        [sys.executable, "-m", *shlex.split(line)],
        cwd=pytester.path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert replayed.returncode == 1
    assert "FAILED" in replayed.stdout


ROUNDS = """
import treeproof

test_right = treeproof.make_tests("direct-mask", examples=18)
test_planted = treeproof.make_tests("planted.py", examples=18)
test_few = treeproof.make_tests("direct-mask", examples=17)
"""


def test_a_made_test_draws_scripts_as_check_does_and_leaves_the_shortest_that_fails(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_rounds=ROUNDS)
    file = planted_file("last-round.lengths", "direct-mask", pytester.path)
    file.rename(pytester.path / "planted.py")
    result = pytester.runpytest_subprocess("-k", "rounds]", "--treeproof-run-dir=run")
    result.assert_outcomes(passed=1, failed=1)
    (drawn,) = draw_scripts(script_units("quick", 0, 1)[0])
    assert f"{drawn.id}.json" in {path.name for path in (pytester.path / "run/cases").iterdir()}
    result.stdout.fnmatch_lines(
        [
            "*_ test_planted[[]rounds[]] _*",
            "✗ direct-mask.last-round.lengths  output: wrong-*",
            "*script of 4 steps*",
            "*4  round    request 0 drafts 0*",
        ]
    )


FUNCTION = """
import treeproof

def attend(x, q, k, v, k_cache, v_cache):
    raise RuntimeError("no kernel image")

test_attend = treeproof.make_tests(attend, examples=1, identity=["output", "contract"])
"""


def test_a_function_that_no_command_line_finds_is_run_again_by_its_item(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_function=FUNCTION)
    result = pytester.runpytest_subprocess("--treeproof-seed=4", "--treeproof-no-reduce")
    result.assert_outcomes(failed=1)
    item = "test_function.py::test_attend[[]float32-2x2-d16-p1-full-FULL_MASK[]]"
    result.stdout.fnmatch_lines(
        [
            "✗ attend  contract: raises*",
            "*attend raised RuntimeError: no kernel image*",
            f"pytest '{item}' --treeproof-seed 4",
            f"pytest '{item}'",
        ]
    )


LACKING = """
import treeproof

def attend(x, q, k, v, k_cache, v_cache):
    import no_such_kernels

test_lacking = treeproof.make_tests(attend, examples=1)
"""


def test_a_kernel_whose_package_is_missing_is_skipped_with_what_to_install(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_lacking=LACKING)
    result = pytester.runpytest_inprocess("-rs")
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["1 skipped: attend: attend: No module named 'no_such_kernels'; pip install *"]
    )


BESIDE = """
import treeproof

def attend(x, q, k, v, k_cache, v_cache):
    return q.new_zeros(*q.shape[:2], v.shape[2])

test_cascade = treeproof.make_tests("cascade", examples=1)

def test_by_hand():
    treeproof.assert_tree_attention(attend)
"""


def test_a_violation_beside_made_tests_is_named_and_shown_at_the_line_of_the_call(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_beside=BESIDE)
    result = pytester.runpytest_inprocess("-p", "no:randomly")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "in made tests: no identity violated in 2 checks",
            "✗ identities violated in other tests: test_beside.py::test_by_hand",
        ]
    )
    result.stdout.no_fnmatch_line("*✓ no identity violated*")
    result.stdout.fnmatch_lines(["test_beside.py:9: *"])
    result.stdout.no_fnmatch_line("*assertion.py:*")


def test_a_session_in_which_all_our_tests_were_skipped_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(absent=ABSENT)
    pytester.makepyfile(
        test_absent="""
        import treeproof

        test_absent = treeproof.make_tests("absent.py", examples=2)

        def test_something_else():
            pass
        """
    )
    result = pytester.runpytest_subprocess("-rs")
    result.assert_outcomes(passed=1, skipped=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    reason = "absent.py cannot run here: package no_such_package is not installed; pip install no-such-package"
    result.stdout.fnmatch_lines(
        [f"2 skipped: {reason}", "✗ all treeproof tests were skipped, so nothing was checked"]
    )
    listed = pytester.runpytest_subprocess("--collect-only", "-q")
    assert listed.ret == pytest.ExitCode.OK
    listed.stdout.fnmatch_lines(
        ["test_absent.py::test_absent[[]float32-2x2-d16-p1-full-FULL_MASK[]]"]
    )


def test_a_marked_test_that_is_skipped_counts_and_one_that_runs_saves_the_session(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.treeproof
        def test_skipped():
            pytest.skip("no GPU")

        @pytest.mark.treeproof
        @pytest.mark.skipif("not config.getoption('verbose')", reason="quiet")
        def test_run():
            pass
        """
    )
    alone = pytester.runpytest_inprocess()
    assert alone.ret == pytest.ExitCode.TESTS_FAILED
    alone.stdout.fnmatch_lines(["1 skipped: no GPU", "1 skipped: quiet"])
    assert pytester.runpytest_inprocess("-v").ret == pytest.ExitCode.OK


def test_an_unknown_backend_or_option_is_a_collection_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_name="import treeproof\ntest_it = treeproof.make_tests('cascad')",
        test_file="import treeproof\ntest_it = treeproof.make_tests('kernel.py')",
        test_option="import treeproof\ntest_it = treeproof.make_tests('cascade', example=1)",
        test_value="import treeproof\ntest_it = treeproof.make_tests('cascade', dtype='fp8')",
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(errors=4)
    for message in (
        "*no backend named 'cascad'; known are cascade,*",
        "*backend file kernel.py: no such file",
        "*make_tests() takes no example; accepted are identity, examples*did you mean examples?",
        "*make_tests: dtype is 'fp8': accepted are float32, bfloat16, float16*",
    ):
        result.stdout.fnmatch_lines([message])


def test_made_tests_work_without_the_plug_ins(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import treeproof

        test_cascade = treeproof.make_tests("cascade", examples=3)
        """
    )
    result = pytester.runpytest_subprocess(
        "-p", "no:treeproof", "-p", "no:hypothesispytest", "--strict-markers"
    )
    result.assert_outcomes(passed=3)
    assert [path.name for path in pytester.path.iterdir() if path.name.startswith(".h")] == []


def test_a_run_folder_is_not_written_over(pytester: pytest.Pytester) -> None:
    (pytester.path / "run").mkdir()
    (pytester.path / "run" / "meta.json").write_text("{}")
    result = pytester.runpytest_inprocess("--treeproof-run-dir=run")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*run folder run already holds a run: name another"])
