"""What CI services are told: JUnit XML, annotations, the step summary, the badge, the files."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from report_runs import HOSTILE, again, checked, leak, run_of, star, written
from xmlschema import XMLSchema, XMLSchemaValidationError

from treeproof.contract.event import Covered, Diagnosed, Finished, Tolerated
from treeproof.contract.failure import COLUMNS, Failure
from treeproof.contract.known_failure import KnownFailure
from treeproof.contract.wire import FileError
from treeproof.engine.merge import merge
from treeproof.engine.run_folder import BackendMeta, append_event
from treeproof.engine.summary import Run
from treeproof.reports.badge import badge_json
from treeproof.reports.files import announced, write_reports
from treeproof.reports.github import MOST_BYTES, error_commands, step_summary
from treeproof.reports.junit import junit_xml
from treeproof.reports.run_names import run_names


def failing(folder: Path, failures: int = 1, message: str = "row 2 reads row 1") -> Run:
    case = star()
    leaks = [leak(message, f"reads-sibling-{number}") for number in range(failures)]
    return run_of(folder, [(case, checked(case, "mine", *leaks))], backends=("mine", "idle"))


def cases(run: Run) -> dict[str, ET.Element]:
    root = ET.fromstring(junit_xml([run]))
    return {f"{c.get('classname')}.{c.get('name')}": c for c in root.iter("testcase")}


def test_junit_has_one_test_case_for_each_backend_and_identity(tmp_path: Path) -> None:
    found = cases(failing(tmp_path / "run"))
    whole = "treeproof.the run as a whole"  # of which "idle" is missing
    assert set(found) == {f"treeproof.{b}.{c}" for b in ("mine", "idle") for c in COLUMNS} | {whole}
    failure = found["treeproof.mine.visibility"].find("failure")
    assert failure is not None
    assert "row 2 reads row 1" in (failure.text or "")
    assert f"/run/cases/{star().id}.json --backend mine" in (failure.text or "")
    assert [child.tag for child in found["treeproof.mine.kv"]] == []


SCHEMA = XMLSchema(Path(__file__).with_name("jenkins_junit.xsd"))
OWN = Finished(exit_code=4, seconds=1.0, reason="Traceback\nKeyError: '\x00'")
GONE = (
    BackendMeta(reference="mine", name="mine"),
    BackendMeta(reference="x", name="x", unavailable="no wheel"),
)


def of_all_kinds(folder: Path) -> dict[str, list[Run]]:
    """Runs whose XML has each kind of element that there is."""
    one = failing(folder / "one", message=HOSTILE * 500)
    case = star()
    clean = run_of(folder / "clean", [(case, checked(case, "mine"))])
    return {
        "failures": [one],
        "a clean run": [clean],
        "nothing": [run_of(folder / "empty", [], exit_code=3)],
        "no backend": [run_of(folder / "none", [], backends=(), exit_code=3)],
        "an own fault": [written(folder / "own", clean.meta, [OWN])],
        "unavailable": [again(clean, folder / "gone", backends=GONE)],
        "several runs with one backend": [one, clean, failing(folder / "two")],
    }


@pytest.mark.parametrize("kind", [
    "failures", "a clean run", "nothing", "no backend", "an own fault", "unavailable",
    "several runs with one backend",
])  # fmt: skip
def test_jenkins_takes_what_is_written(tmp_path: Path, kind: str) -> None:
    runs = of_all_kinds(tmp_path)[kind]
    text = junit_xml(runs)
    SCHEMA.validate(ET.fromstring(text))
    root = ET.fromstring(text)
    suites = list(root)
    assert len({suite.get("name") for suite in suites}) == len(suites)
    assert int(root.get("tests") or 0) == len(list(root.iter("testcase")))
    assert int(root.get("failures") or 0) == len(list(root.iter("failure")))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("<testsuites ", '<testsuites skipped="1" '),
        ('<testcase name="kv" ', "<testcase "),
        ('<testcase name="kv" ', '<testcase name="kv" file="x" '),
        ("</testsuite>", "<note/></testsuite>"),
        (' tests="7"', ""),
        ('<property name="seed" value="7"', '<property name="seed"'),
        ("<failure ", "<failed "),
    ],
)
def test_what_jenkins_refuses_the_schema_refuses(tmp_path: Path, right: str, wrong: str) -> None:
    text = junit_xml([failing(tmp_path / "run")]).decode()
    assert right in text
    spoilt = text.replace(right, wrong).replace(
        "</failure>", f"</{wrong[1:-1]}>" if "failed" in wrong else "</failure>"
    )
    with pytest.raises(XMLSchemaValidationError):
        SCHEMA.validate(ET.fromstring(spoilt))


def test_several_runs_are_told_apart_in_every_output(tmp_path: Path) -> None:
    runs = [failing(tmp_path / "monday"), failing(tmp_path / "tuesday")]
    root = ET.fromstring(junit_xml(runs))
    assert [suite.get("name") for suite in root] == [
        f"{day}: {of}" for day in ("monday", "tuesday") for of in ("mine", "idle", "treeproof")
    ]
    assert len({case.get("classname") for case in root.iter("testcase")}) == 6
    titles = [line.partition(" title=")[2].partition("::")[0] for line in error_commands(runs)]
    assert titles == [
        "monday%3A treeproof", "tuesday%3A treeproof",
        "monday%3A mine%3A visibility reads-sibling-0",
        "tuesday%3A mine%3A visibility reads-sibling-0",
    ]  # fmt: skip
    heads = [line for line in step_summary(runs).splitlines() if line.startswith("### ")]
    assert [head[4:10].strip("&#") for head in heads] == ["monday", "tuesda"]
    same = [failing(tmp_path / day / "run") for day in ("a", "b")]
    assert run_names(same) == [str(tmp_path / "a" / "run"), str(tmp_path / "b" / "run")]
    assert run_names(same[:1]) == [""]


def test_what_was_not_judged_is_skipped_and_never_passes(tmp_path: Path) -> None:
    found = cases(failing(tmp_path / "run"))
    for column in COLUMNS:
        (skipped,) = found[f"treeproof.idle.{column}"]
        assert (skipped.tag, skipped.get("message")) == ("skipped", "no completed check")


def cut_short(folder: Path) -> Run:
    """A killed run: what it found stands, and no word of how it ended."""
    path = clean(folder).folder.events_path("w0")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    return Run.read(folder)


def clean(folder: Path, *failures: Failure, **how: Any) -> Run:
    return run_of(folder, [(star(), checked(star(), "mine", *failures))], **how)


def damaged(folder: Path) -> Run:
    with clean(folder).folder.events_path("w1").open("wb") as stream:
        stream.write(b"{\n")
    return Run.read(folder)


def truncated(folder: Path) -> Run:
    """Its only check is gone from a file that was written whole."""
    path = clean(folder / "whole").folder.events_path("w0")
    end = Finished(exit_code=0, seconds=1.0, written=((path.name, path.stat().st_size),))
    run = again(clean(folder / "other"), folder / "run")
    run.folder.events_path("w0").write_bytes(msgspec.json.encode(end) + b"\n")
    return Run.read(folder / "run")


def half(folder: Path) -> Run:
    """The union of one shard of two."""
    part = again(clean(folder / "a"), folder / "1", settings={"shard": {"number": 1, "count": 2}})
    return merge([part], folder / "union").run


def unneeded(folder: Path) -> Run:
    entry = KnownFailure(
        number=1, backend="mine", identity="kv", kind="stray", reason="not reported",
        expires=date(2999, 1, 1),
    )  # fmt: skip
    written_ = again(clean(folder / "a", exit_code=1), folder / "b", ledger=(entry,))
    append_event(written_.folder.events_path("w0"), Covered(entry=1, checks=1))
    return Run.read(folder / "b")


def interrupted(folder: Path, *failures: Failure) -> Run:
    run = clean(folder / "a", *failures)
    end = Finished(exit_code=130, seconds=1.0, reason="interrupted")
    return written(folder / "b", run.meta, [*list(run.events)[:-1], end])


NOT_CLEAN: dict[str, tuple[Callable[[Path], Run], str]] = {
    "killed": (cut_short, "the run was cut short"),
    "interrupted": (interrupted, "interrupted"),
    "interrupted after a failure": (lambda folder: interrupted(folder, leak()), "interrupted"),
    "a line of events does not read": (damaged, "events-w1.ndjson: line 1: "),
    "a file of events is cut": (truncated, "its end is missing, "),
    "a shard is missing": (half, "shard 2/2 of backend mine not among the runs"),
    "a backend was not checked": (
        partial(clean, backends=("mine", "idle"), exit_code=3), "backend idle completed no check",
    ),
    "the ledger is behind": (unneeded, "unexpected pass of ledger entry 1"),
    "a fault of our own": (
        lambda folder: written(folder / "b", clean(folder / "a").meta, [OWN]), "Traceback",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", NOT_CLEAN)
def test_a_run_that_is_not_clean_has_an_error_that_says_why(tmp_path: Path, kind: str) -> None:
    make, why = NOT_CLEAN[kind]
    run = make(tmp_path / "run")
    assert run.exit_code != 0
    root = ET.fromstring(junit_xml([run]))
    SCHEMA.validate(root)
    (error,) = root.iter("error")
    assert why in (error.get("message") or "")
    assert why.partition("\n")[0] in (error.text or "")
    assert (root.get("errors"), list(root)[-1].get("errors")) == ("1", "1")


def test_no_error_is_made_of_what_the_exit_code_does_not_say(tmp_path: Path) -> None:
    for run in (clean(tmp_path / "clean"), clean(tmp_path / "failing", leak())):
        assert ET.fromstring(junit_xml([run])).get("errors") == "0"


def test_a_suite_takes_as_long_as_the_checks_of_its_backend(tmp_path: Path) -> None:
    found = [
        (star(prefix), msgspec.structs.replace(checked(star(prefix), name), seconds=seconds))
        for prefix, name, seconds in (
            (3, "mine", {"backend": 1.25, "oracle": 0.5}),
            (4, "mine", {"backend": 0.00004}),
            (3, "other", {"probe": 20.0}),
        )
    ]
    run = run_of(tmp_path / "run", found, backends=("mine", "other", "idle"), exit_code=3)
    root = ET.fromstring(junit_xml([run]))
    SCHEMA.validate(root)
    times = {suite.get("name"): float(suite.get("time") or "nan") for suite in root}
    assert times == {"mine": 1.75, "other": 20.0, "idle": 0.0, "treeproof": 0.0}
    assert root.get("time") == "21.75"


def test_junit_stays_xml_whatever_a_backend_says(tmp_path: Path) -> None:
    found = cases(failing(tmp_path / "run", message=HOSTILE))
    failure = found["treeproof.mine.visibility"].find("failure")
    assert failure is not None
    assert "<script>alert(1)</script>" in (failure.text or "")


def test_at_most_nine_annotations_and_the_number_of_the_others(tmp_path: Path) -> None:
    leaks = [leak(kind=f"reads-{number}") for number in range(14)]
    lines = error_commands([clean(tmp_path / "run", *leaks)])
    assert len(lines) == 10
    assert all(line.startswith("::error title=mine%3A visibility reads-") for line in lines[:9])
    assert lines[9] == "::error title=treeproof::5 more distinct failures: see the report"
    assert len(error_commands([clean(tmp_path / "ten", *leaks[:10])])) == 10
    beside = error_commands([clean(tmp_path / "also", *leaks[:10], backends=("mine", "idle"))])
    assert beside[0] == "::error title=treeproof::backend idle completed no check"
    assert (len(beside), beside[9]) == (
        10, "::error title=treeproof::2 more distinct failures: see the report",
    )  # fmt: skip


def test_an_annotation_says_why_a_run_without_failures_is_not_clean(tmp_path: Path) -> None:
    assert error_commands([cut_short(tmp_path / "run")]) == [
        "::error title=treeproof::the run was cut short"
    ]
    assert error_commands([clean(tmp_path / "clean")]) == []


def test_no_words_of_a_backend_begin_a_command_of_their_own(tmp_path: Path) -> None:
    (line,) = error_commands([clean(tmp_path / "run", leak(HOSTILE))])
    assert "\n" not in line
    assert "\r" not in line
    assert line.count("::error title=") == 1  # its own; the forged one is spaced out
    assert ": :error title=forged" in line


def test_a_summary_is_cut_between_lines_below_what_github_takes(tmp_path: Path) -> None:
    text = step_summary([failing(tmp_path / "run", failures=3_000, message="long " * 200)])
    assert MOST_BYTES - 5_000 < len(text.encode()) < MOST_BYTES + 200
    assert re.search(r"… cut: [\d,]+ more lines; the report has all\.\n$", text)


def test_the_summary_says_which_failures_share_a_cause(tmp_path: Path) -> None:
    run = failing(tmp_path / "run", failures=2)
    diagnosed = [
        Diagnosed(
            backend="mine", identity="visibility", kind=group.kind, case=group.case, cause="causal"
        )
        for group in run.failures
    ]  # fmt: skip
    assert "one cause" not in step_summary([again(run, tmp_path / "one", diagnosed[0])])
    text = step_summary([again(run, tmp_path / "both", *diagnosed)])
    assert "\n- 2 failures, one cause&#58; mine causal&#58; visibility reads&#45;sibling" in text


def test_markdown_of_a_backend_is_text_in_the_summary(tmp_path: Path) -> None:
    text = step_summary([failing(tmp_path / "run", message=HOSTILE + "[a](http://x)")])
    assert "<script" not in text
    assert "<img" not in text
    assert "](" not in text
    assert "\n::error" not in text


@pytest.mark.parametrize(
    ("failures", "exit_code", "message", "colour"),
    [
        (2, None, "2 failures", "red"),
        (0, 0, "1 check", "brightgreen"),
        (0, 3, "not checked", "lightgrey"),
    ],
)
def test_the_badge_is_green_only_where_all_was_checked(
    tmp_path: Path, failures: int, exit_code: int | None, message: str, colour: str
) -> None:
    case = star()
    leaks = [leak(kind=f"k{number}") for number in range(failures)]
    run = run_of(tmp_path / "run", [(case, checked(case, "mine", *leaks))], exit_code=exit_code)
    found = json.loads(badge_json([run]))
    assert (found["message"], found["color"]) == (message, colour)


def test_an_interrupted_run_with_failures_has_a_red_badge(tmp_path: Path) -> None:
    case = star()
    run = run_of(tmp_path / "run", [(case, checked(case, "mine", leak()))], exit_code=130)
    assert json.loads(badge_json([run]))["color"] == "red"


def test_reports_are_written_where_they_were_asked_for(tmp_path: Path) -> None:
    run, summary = failing(tmp_path / "run"), tmp_path / "step.md"
    summary.write_text("before\n")
    written = write_reports(
        [run], folder=tmp_path / "out", junit=tmp_path / "j.xml",
        environment={"GITHUB_STEP_SUMMARY": str(summary)},
    )  # fmt: skip
    assert [path.name for path in written] == [
        "report.html", "junit.xml", "summary.md", "badge.json", "j.xml",
    ]  # fmt: skip
    assert all(path.stat().st_size for path in written)
    assert summary.read_text().startswith("before\n### ")
    assert announced([run], {}) == []
    assert len(announced([run], {"GITHUB_ACTIONS": "true"})) == 2


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="file"):
        write_reports([failing(tmp_path / "run")], folder=tmp_path / "file")


def test_what_the_ledger_tolerates_is_skipped_with_that_for_a_reason(tmp_path: Path) -> None:
    run, case = failing(tmp_path / "run"), star()
    entry = KnownFailure(
        number=1, backend="mine", identity="visibility", kind="reads-sibling-0",
        reason="not reported", expires=date(2999, 1, 1),
    )  # fmt: skip
    tolerated = Tolerated(
        case=case.id, backend="mine", identity="visibility", kind="reads-sibling-0", entry=1
    )
    known = again(run, tmp_path / "again", tolerated, ledger=(entry,))
    found = cases(known)
    text = step_summary([known])
    assert "- entry 1. mine  visibility" in text
    assert "tolerated in 1 check" in text
    (skipped,) = found["treeproof.mine.visibility"]
    assert (skipped.tag, skipped.get("message")) == (
        "skipped",
        "fails only as the ledger says, in 1 case",
    )
