"""What a backend says, in every field that it can reach, is inert and cut text in every output."""

from __future__ import annotations

import io
import json
import re
import time
import unicodedata
import xml.etree.ElementTree as ET
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest
from markdown_it import MarkdownIt
from report_runs import checked, leak, star, written
from test_report_page import Elements
from xmlschema import XMLSchema

from treeproof.contract.event import CaseDrawn, Checked, Diagnosed, Event, Finished, WorkerLost
from treeproof.contract.failure import Cell
from treeproof.contract.kernels import Kernel
from treeproof.contract.known_failure import KnownFailure
from treeproof.engine.run_folder import BackendMeta, RunFolder, RunMeta
from treeproof.engine.summary import Run
from treeproof.plugin.report import summary_lines as pytest_lines
from treeproof.reports.badge import badge_json
from treeproof.reports.comparison import compare
from treeproof.reports.comparison_lines import comparison_lines
from treeproof.reports.console import MAX_WIDTH, open_console, write
from treeproof.reports.github import MOST_BYTES, error_commands, step_summary
from treeproof.reports.junit import junit_xml
from treeproof.reports.page.facts import page_of
from treeproof.reports.page.render import render
from treeproof.reports.terminal import report
from treeproof.reports.trace import trace_lines

KINDS = {
    "markup": "<script>alert(1)</script><img src=x onerror=alert(2)>\"'</textarea>]]>&amp;<!--",
    "controls": "\x1b[31m\x1b]0;title\x07\x1b[2J\r\x08\x9b31m\x7f",
    "bidi": "\u202eabc\u2066def\u2069\u200f\u200b",
    "commands": (
        "::error title=forged::x\n::set-output name=a::b\r\n##[error]y ##vso[task.complete]z "
        "##teamcity[buildProblem] " + "long " * 15 + "::warning::w"
    ),
    "long": "y" * 10_000_000,
    "not UTF-8": "caf\udce9 \udcff\udc80",
    "not XML": "\x00\x0b\ufffe\uffff\ud800",
    "Markdown": "# h\n\n| a | b |\n|--|--|\n[l](http://x.y) ![i](http://x.y) `c` **b** <b>u</b> @user #12 ~~s~~ http://x.y",
}
SCHEMA = XMLSchema(Path(__file__).with_name("jenkins_junit.xsd"))
FIELD = 100_000
"""Characters that other fields than the message hold at most; all of them stand in the file."""


def run_saying(folder: Path, words: str) -> Run:
    """A run in which a backend has these words wherever it can put any."""
    few, case = words[:FIELD], star()
    meta = RunMeta(
        started="2026-01-01T00:00:00+00:00", settings={"profile": "quick"}, seed=7, device="cuda",
        device_name=_writable(few), platform=_writable(few), command=("treeproof", _writable(few)),
        versions={"torch": _writable(few), _writable(few)[:50]: "1"},
        backends=(
            BackendMeta(reference=f"{_writable(few)[:200]}.py", name="mine", kernels=(_writable(few),)),
            BackendMeta(reference="gone", name="gone", unavailable=_writable(few)),
        ),
        ledger=(
            KnownFailure(number=1, backend="mine", identity="kv", kind="k", reason=_writable(few),
                         expires=date(2000, 1, 1)),
        ),
    )  # fmt: skip
    failure = msgspec.structs.replace(
        leak(words, kind=f"raises-{few}"), expected=few, actual=few, cause=few, stage=few,
        probe=few, column=None,
    )  # fmt: skip
    verdicts = checked(case, "mine", failure)
    unsupported = Cell(
        identity="kv", evidence="declared", status="unsupported", stage=few, reason=few
    )
    events: list[Event] = [
        CaseDrawn(case=case.id, unit=few, tags=(f"tree:{few}", few), rows=(3,), prefixes=(3,)),
        msgspec.structs.replace(
            verdicts, cells=(*verdicts.cells, unsupported),
            kernels=(Kernel(name=few, mode="compiled", on=few),),
        ),
        Diagnosed(
            backend="mine", identity="visibility", kind=failure.kind, case=case.id, cause=few,
            says=few, detail=few, candidates=(few, few), ruled_out=(few,),
        ),
        WorkerLost(case=case.id, backend="mine", how="crash", detail=few),
        Finished(exit_code=1, seconds=1.0, reason=few),
    ]  # fmt: skip
    run = RunFolder(folder)
    run.make()
    run.write_case(case)
    return written(folder, meta, events)


def _writable(words: str) -> str:
    """What meta.json can hold: nothing in it comes from a backend while it runs."""
    return words.encode("utf-8", "backslashreplace").decode()


@pytest.fixture(params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return run_saying(tmp_path / "run", KINDS[request.param])


def assert_inert(text: str) -> None:
    """No character drives a terminal, and no line a CI service."""
    odd = {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs")}
    assert odd == set()
    for line in text.splitlines():
        assert not line.lstrip().startswith("::"), line[:80]
        assert not re.search(r"##\w*\[", line), line[:80]


def printed(lines: Any) -> str:
    stream = io.StringIO()
    write(open_console(stream), lines)
    return stream.getvalue()


def test_on_the_page(run: Run, tmp_path: Path) -> None:
    html = render(page_of([run]))
    plain = Elements(render(page_of([run_saying(tmp_path / "plain", "plain")])))
    found = Elements(html)
    assert Counter(tag for tag, _ in found.tags if tag != "a") == Counter(
        tag for tag, _ in plain.tags if tag != "a"
    )
    for tag, attributes in found.tags:
        assert not any(name.startswith("on") for name in attributes)
        assert "src" not in attributes
        if tag == "a":
            assert re.match(r"#|https?://", attributes["href"] or "")
    assert not {c for c in html if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs")}
    assert len(html) < 200_000


def test_in_the_terminal(run: Run) -> None:
    stream, before = io.StringIO(), time.process_time()
    report(open_console(stream), run)
    assert time.process_time() - before < 5
    text = stream.getvalue()
    assert_inert(text)
    assert len(text) < 60_000
    lines = text.splitlines()
    block = lines[next(i for i, line in enumerate(lines) if line.startswith("✗ mine")) :]
    end = next(i for i, line in enumerate(block) if line.startswith("treeproof "))
    assert end < 40
    assert all(len(line) <= MAX_WIDTH for line in lines if not line.startswith("treeproof "))


def test_in_junit_xml(run: Run) -> None:
    text = junit_xml([run])
    root = ET.fromstring(text)
    SCHEMA.validate(root)
    assert [suite.get("name") for suite in root] == ["mine", "gone", "treeproof"]
    assert len(text) < 100_000


def test_in_annotations(run: Run) -> None:
    lines = error_commands([run])
    for line, title in zip(lines, ("treeproof", "mine%3A visibility raises-"), strict=True):
        assert not re.search("[\r\n]", line)
        found = re.fullmatch(r"::error title=([^:,]*)::(.*)", line)
        assert found
        assert found[1].startswith(title)
        assert not {c for c in line if unicodedata.category(c) in ("Cc", "Cf", "Cs")}
        assert len(line) < 5_000


def test_in_the_step_summary(run: Run) -> None:
    text = step_summary([run])
    assert len(text.encode()) < min(MOST_BYTES, 100_000)
    assert_inert(text)
    tokens = [
        inner
        for token in MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
        for inner in (token, *(token.children or ()))
    ]
    kinds = Counter(token.type for token in tokens)
    assert not {"link_open", "image", "code_inline", "strong_open", "em_open"} & set(kinds)
    tags = {t.content.strip() for t in tokens if t.type in ("html_block", "html_inline")}
    assert {re.sub(r">[^<]+<", "><", tag) for tag in tags} <= {
        "<details><summary></summary>", "</details>",
    }  # fmt: skip
    assert kinds["table_open"] == 1
    assert kinds["heading_open"] == 2


def test_in_the_badge(run: Run) -> None:
    assert json.loads(badge_json([run])) == {
        "schemaVersion": 1, "label": "treeproof", "message": "1 failure", "color": "red",
    }  # fmt: skip


def test_in_a_comparison(run: Run, tmp_path: Path) -> None:
    text = printed(comparison_lines(compare(run_saying(tmp_path / "plain", "plain"), run)))
    assert_inert(text)
    assert "1 new, 0 still failing, 1 fixed" in text
    assert len(text) < 30_000


def test_in_a_trace(run: Run) -> None:
    text = printed(trace_lines(star(), 0, 2, run.failures[0].checked))
    assert_inert(text)
    assert all(len(line) <= MAX_WIDTH for line in text.splitlines())
    assert len(text) < 20_000


def test_at_the_end_of_a_pytest_session(run: Run) -> None:
    lines = list(pytest_lines(run, {}))
    assert_inert("\n".join(lines))
    assert sum(map(len, lines)) < 60_000


def test_the_predicate_sees_what_is_not_inert() -> None:
    for words in ("\x1b[31m", "a\u202eb", "  ::error::x", "x ##[error]y", "##vso[a]"):
        with pytest.raises(AssertionError):
            assert_inert(words)
    assert_inert("at::native, a ## b [c]\nplain")
    assert isinstance(checked(star(), "mine"), Checked)
