"""The HTML page without a browser: what it holds, what it must not, and how large it is."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import time
from datetime import date
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from report_runs import HOSTILE, again, checked, leak, run_of, star

from treeproof.contract.event import Read, Shown, ShownRound, ShownTurn
from treeproof.contract.known_failure import KnownFailure
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.script import Admit, Prefill, Round, Turn
from treeproof.engine.summary import Run
from treeproof.reports.page.facts import page_of
from treeproof.reports.page.render import render
from treeproof.reports.script_lines import script_lines


class Elements(HTMLParser):
    """Start tags with their attributes, and all text outside of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self._raw = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._raw = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._raw = False

    def handle_data(self, data: str) -> None:
        self.words += "" if self._raw else data


def island(html: str) -> list[dict[str, Any]]:
    found = re.search(r'id="island">([A-Za-z0-9+/=]*)<', html)
    assert found
    drawings: list[dict[str, Any]] = json.loads(gzip.decompress(base64.b64decode(found[1])))
    return drawings


def failing(folder: Path, message: str = "row 2 reads row 1") -> Run:
    case = star()
    return run_of(folder, [(case, checked(case, "mine", leak(message)))])


def test_a_failure_stands_on_the_page_in_words_with_the_commands(tmp_path: Path) -> None:
    words = Elements(render(page_of([failing(tmp_path / "run")]))).words
    assert "✗ 1 distinct failure, in 1 of 1 check" in words
    assert "row 2 reads row 1" in words
    assert f"/run/cases/{star().id}.json --backend mine" in words
    assert "5 of 5" in words


def test_the_drawing_of_a_failure_holds_tree_keys_slots_and_what_was_recovered(
    tmp_path: Path,
) -> None:
    (drawing,) = island(render(page_of([failing(tmp_path / "run")])))
    (request,) = drawing["requests"]
    assert request["parents"] == [-1, 0, 0]
    assert request["reads"] == [0, 0, 0]  # as it must be: the path of each row
    assert request["first"] == [0, 0, 0]
    assert len({*request["slots"], *request["prefix_slots"]}) == 6
    assert drawing["marks"] == [[0, 2, 4, "+", "measured"]]
    assert [r["values"] for r in drawing["recovered"]] == [[[-1, 0, 1]], [0]]


def test_a_run_without_failures_says_so_and_an_empty_one_says_that_nothing_was_checked(
    tmp_path: Path,
) -> None:
    case = star()
    clean = Elements(render(page_of([run_of(tmp_path / "a", [(case, checked(case, "mine"))])])))
    assert "✓ no identity violated in 1 check" in clean.words
    assert "Nothing failed in what was checked." in clean.words
    empty = Elements(render(page_of([run_of(tmp_path / "b", [], exit_code=3)])))
    assert "nothing was checked" in empty.words
    assert "backend mine completed no check" in empty.words
    assert "What was not checked is no pass." in empty.words
    assert "✓" not in empty.words


def test_what_a_backend_says_is_text_and_nothing_else(tmp_path: Path) -> None:
    plain = Elements(render(page_of([failing(tmp_path / "plain")])))
    html = render(page_of([failing(tmp_path / "hostile", HOSTILE * 3)]))
    hostile = Elements(html)
    assert hostile.tags == plain.tags
    assert "<script>alert(1)</script>" in hostile.words
    assert not re.search("[\x00\x1b\u202e]", html)


def test_a_message_of_ten_megabytes_is_cut_and_the_cut_is_told(tmp_path: Path) -> None:
    html = render(page_of([failing(tmp_path / "run", "y" * 10_000_000)]))
    assert len(html) < 100_000
    assert "… (10,000,000 characters)" in html


def test_script_and_style_are_the_ones_that_the_policy_names(tmp_path: Path) -> None:
    html = render(page_of([failing(tmp_path / "run")]))
    policy = next(
        attributes["content"] or ""
        for tag, attributes in Elements(html).tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'")
    for part, body in (
        ("style", re.search(r"<style>(.*?)</style>", html, re.S)),
        ("script", re.search(r"<script>(.*?)</script>", html, re.S)),
    ):
        assert body
        digest = base64.b64encode(hashlib.sha256(body[1].encode()).digest()).decode()
        assert f"{part}-src 'sha256-{digest}'" in policy
    assert not any(
        name.startswith("on") for _, attributes in Elements(html).tags for name in attributes
    )
    assert not re.search(r"(src|href)=\"(?!#)", html)


def test_a_case_that_cannot_be_read_leaves_the_words_and_says_why(tmp_path: Path) -> None:
    run = failing(tmp_path / "run")
    run.folder.case_path(star().id).write_text("{")
    html = render(page_of([Run.read(tmp_path / "run")]))
    assert "row 2 reads row 1" in Elements(html).words
    (drawing,) = island(html)
    assert star().id in drawing["missing"]


def test_what_was_seen_on_the_case_is_drawn_request_by_request(tmp_path: Path) -> None:
    case = star()
    slots = SlotLedger.of(case).row_slots(0)
    reads = tuple(Read(prefix=3.0, slots=((slot, 1.0),)) for slot in slots)
    seen = Shown(
        backend="mine", case=case.id, errors=((0.1, 0.2), (0.3, 0.4), (7.0, 0.5)), reads=reads,
        declared={"attend: masks": reads}, writes=((slots[0], 0, 0), (9, 1, -2)),
        positions=(3, 4, 4), slots=(*slots[:2], 9), links={"retrieve_next_token": ((1, -1, -1),)},
    )  # fmt: skip
    run = run_of(tmp_path / "run", [(case, checked(case, "mine", leak()))], further=[seen])
    (drawing,) = island(render(page_of([run])))
    assert drawing["seen"]["errors"] == [[[0.1, 0.2], [0.3, 0.4], [7.0, 0.5]]]
    others = [[3.0, [[slots[row], 1.0]]] for row in (1, 2)]
    assert drawing["seen"]["reads"] == [[0, *others]]  # the root reads what it must
    assert drawing["seen"]["declared"] == {"attend: masks": [[0, *others]]}
    assert drawing["seen"]["links"] == {"retrieve_next_token": [[1, -1, -1]]}
    assert (drawing["seen"]["positions"], drawing["seen"]["slots"]) == ([0], [[*slots[:2], 9]])
    assert drawing["seen"]["writes"] == [{"wrong": [[9, 1, -2]], "missing": [1, 2], "any": True}]
    assert drawing["seen"]["owners"] == {}  # 9 is nobody's, and rows are found in the request


SCRIPT = msgspec.structs.replace(
    star(),
    script=(
        Admit(request=0), Prefill(request=0), Round(turns=(Turn(request=0, accept=1),)),
        Round(turns=(Turn(request=0, accept=0, nodes=2),)),
    ),
)  # fmt: skip
WRONG = msgspec.structs.replace(leak("slot 9 changed; seen in step 4 of the script"), column=3)


def test_a_script_is_shown_step_by_step_with_the_one_that_went_wrong(tmp_path: Path) -> None:
    seen = Shown(backend="mine", case=SCRIPT.id, step=4)
    run = run_of(tmp_path / "run", [(SCRIPT, checked(SCRIPT, "mine", WRONG))], further=[seen])
    html = render(page_of([run]))
    words = Elements(html).words
    assert all(line in words for line in script_lines(SCRIPT))
    assert words.count("it went wrong here") == 1
    assert f"{script_lines(SCRIPT)[3]}  ◄ it went wrong here" in words


def test_rounds_are_drawn_as_they_went_and_without_evidence_as_they_are_written(
    tmp_path: Path,
) -> None:
    found = [(SCRIPT, checked(SCRIPT, "mine", WRONG))]
    (bare,) = island(render(page_of([run_of(tmp_path / "bare", found)])))
    assert [(r["step"], [t["parents"] for t in r["turns"]]) for r in bare["rounds"]] == [
        (3, [[-1, 0, 0]]), (4, [[-1, 0]]),
    ]  # fmt: skip
    assert [r["turns"][0]["due"] for r in bare["rounds"]] == [[0, 1], [0]]
    assert {r["turns"][0]["ready"] for r in bare["rounds"]} == {None}
    assert (bare["step"], bare["otherwise"]) == (0, False)
    turn = ShownTurn(
        request=0, ready=3, tokens=(5, 6, 7), parents=(-1, 0, 0), due=(0, 1), pages=(1, 2, 3, 4, 5),
        accepted=(0, 1), emitted=(6, 9), ready_after=5,
    )  # fmt: skip
    for name, step, otherwise in (("same", 4, False), ("other", 3, True)):
        seen = Shown(
            backend="mine", case=SCRIPT.id, rounds=(ShownRound(step=3, turns=(turn,)),), step=step
        )
        run = run_of(tmp_path / name, found, further=[seen])
        (drawing,) = island(render(page_of([run])))
        (only,) = drawing["rounds"][0]["turns"]
        assert (only["ready"], only["after"], only["accepted"]) == (3, 5, [0, 1])
        assert (drawing["at"], drawing["step"], drawing["otherwise"]) == (
            [0, 2, 3],
            step,
            otherwise,
        )


def test_reasons_of_the_ledger_lead_to_http_addresses_and_nowhere_else(tmp_path: Path) -> None:
    reason = (
        "owner/repo#1, see (https://a.example/x?y=1&z=2). javascript:alert(1) data:text/html,x "
        'http://b.example/" onclick="alert(2) file:///etc/passwd'
    )
    entry = KnownFailure(
        number=1, backend="mine", identity="kv", kind="stale-write", reason=reason,
        expires=date(2020, 1, 1),
    )  # fmt: skip
    run = again(failing(tmp_path / "run"), tmp_path / "again", ledger=(entry,))
    found = Elements(render(page_of([run])))
    links = [attributes for tag, attributes in found.tags if tag == "a"]
    outside = [one["href"] for one in links if not (one["href"] or "").startswith("#")]
    assert outside == ["https://a.example/x?y=1&z=2", "http://b.example/"]
    assert not any("onclick" in attributes for attributes in links)
    assert "1. mine  kv: stale-write: expired on 2020-01-01" in found.words
    assert "javascript:alert(1)" in found.words


def test_the_top_says_what_the_run_was_made_with(tmp_path: Path) -> None:
    run = failing(tmp_path / "run")
    assert page_of([run]).made == (
        "seed 7, profile quick, device cpu",
        "versions torch 2.13.0",
        "time 1.0 s; in all workers: generate 0.0",
    )
    assert page_of([run, run]).made == ()


def test_damage_is_told_and_what_stands_before_it_is_shown(tmp_path: Path) -> None:
    run = failing(tmp_path / "run")
    with run.folder.events_path("w0").open("ab") as stream:
        stream.write(b'{"type":"checked"\n')
    words = Elements(render(page_of([Run.read(tmp_path / "run")]))).words
    assert "events-w0.ndjson: line 4" in words
    assert "row 2 reads row 1" in words


def test_several_runs_make_one_page(tmp_path: Path) -> None:
    case = star()
    clean = run_of(tmp_path / "b", [(case, checked(case, "other"))], backends=("other",))
    page = page_of([failing(tmp_path / "a"), clean])
    assert [row.backend for row in page.rows] == ["mine", "other"]
    assert page.tone == "bad"
    assert len(page.blocks) == len(page.drawings) == 1


def test_rows_and_blocks_of_several_runs_say_whose_they_are(tmp_path: Path) -> None:
    one, two = failing(tmp_path / "monday"), failing(tmp_path / "tuesday")
    two.folder.events_path("w0").write_bytes(
        b"".join(two.folder.events_path("w0").read_bytes().splitlines(keepends=True)[:-1])
    )
    page = page_of([one, Run.read(tmp_path / "tuesday")])
    assert [(row.run, row.backend) for row in page.rows] == [
        ("monday", "mine"), ("tuesday", "mine"),
    ]  # fmt: skip
    assert [block.run for block in page.blocks] == ["monday", "tuesday"]
    assert page.warnings == ("tuesday: the run was cut short",)
    words = Elements(render(page)).words
    assert "mine · run tuesday · measured" in words
    alone = page_of([one])
    assert [row.run for row in alone.rows] == [""]
    assert "mine · measured" in Elements(render(alone)).words


@pytest.mark.long
def test_five_hundred_failures_of_64_rows_stay_below_two_megabytes_and_three_seconds(
    tmp_path: Path,
) -> None:
    from page_of_many import many

    many(tmp_path / "run", 500, 64)
    before = time.process_time()
    html = render(page_of([Run.read(tmp_path / "run")]))
    seconds = time.process_time() - before
    print(f"{len(html.encode()) / 1e6:.2f} MB in {seconds:.1f} s")
    assert html.count("<article") == 500
    assert len(html.encode()) < 2_000_000
    assert seconds < 3.0


def test_the_drawings_are_plain_json(tmp_path: Path) -> None:
    page = page_of([failing(tmp_path / "run")])
    assert msgspec.json.decode(msgspec.json.encode(page.drawings)) == island(render(page))
