"""The HTML page in headless Chromium: what a reader clicks, types and sees."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from page_of_many import many
from report_runs import HOSTILE, checked, leak, run_of, star

from treeproof.contract.event import (
    Acceptance,
    Diagnosed,
    Read,
    Reduced,
    Shown,
    ShownRound,
    ShownTurn,
)
from treeproof.contract.failure import Failure
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.script import Admit, Prefill, Round, Turn
from treeproof.reports.page.facts import page_of
from treeproof.reports.page.render import render
from treeproof.reports.trace import trace_lines

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
REQUIRED = os.environ.get("TREEPROOF_REQUIRE_BROWSER") == "1"
if not REQUIRED:
    pytest.importorskip("playwright", reason="pip install playwright axe-playwright-python")
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt install chromium", allow_module_level=True)

from playwright.sync_api import Browser, Page, expect, sync_playwright  # noqa: E402

KV = Failure(
    identity="kv", kind="wrong-slot", evidence="measured", stage="attend", request=0, row=1,
    message="row 1 is written to slot 9", expected="slot 4", actual="slot 9",
)  # fmt: skip


ROUNDS = Failure(
    identity="kv", kind="wrong-boundary", evidence="measured", stage="commit", request=0, row=None,
    column=5, message="column 5 holds nothing; seen in step 4 of the script",
)  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    case, other = star(), star(prefix=5)
    walks = Acceptance(way="greedy", expected=(8, 4, 2), observed=(8, 3))
    found = [
        (case, msgspec.structs.replace(checked(case, "mine", leak(), KV), acceptance=(walks,))),
        (other, checked(other, "theirs", leak(HOSTILE, "reads-twice"))),
    ]
    slots = SlotLedger.of(case).row_slots(0)
    reads = tuple(
        Read(prefix=3.0, slots=tuple((slot, 1.0) for slot in slots[: row + 1])) for row in range(3)
    )
    seen = Shown(
        backend="mine", case=case.id, errors=((0.1, 0.2), (0.3, 0.6), (7.0, 1e9)), reads=reads,
        shares=((0.75, 0.75), (0.6, 0.602), (0.9, 0.6)),
        declared={"attend: masks": reads}, positions=(3, 4, 4), slots=slots,
        writes=((slots[0], 0, 0), (slots[1], 1, -1), (slots[2], 2, 2), (15, 1, -2)),
    )  # fmt: skip
    there = SlotLedger.of(other).row_slots(0)
    strays = tuple(
        Read(prefix=5.0, slots=((there[row], 1.0), (15, 1.0)) if row == 1 else ((there[row], 1.0),))
        for row in range(3)
    )
    collide = Shown(
        backend="theirs", case=other.id, reads=strays, slots=(there[0], there[1], there[1])
    )
    smaller = Reduced(
        backend="mine", identity="visibility", kind="reads-sibling", original=other.id,
        reduced=case.id, evaluations=3, seconds=0.1,
    )  # fmt: skip
    causes = [
        Diagnosed(
            backend="mine", identity=failure.identity, kind=failure.kind, case=case.id,
            cause="causal-mask", says="a row reads all rows up to its own",
        )
        for failure in (leak(), KV)
    ]  # fmt: skip
    served = msgspec.structs.replace(
        star(),
        script=(
            Admit(request=0), Prefill(request=0), Round(turns=(Turn(request=0, accept=2),)),
            Round(turns=(Turn(request=0, accept=1),)),
        ),
    )  # fmt: skip
    found.append((served, checked(served, "rounds", ROUNDS)))
    turn = ShownTurn(
        request=0, ready=3, tokens=(5, 6, 7), parents=(-1, 0, 0), due=(0, 2), pages=(1, 2, 3, 4, 5, 6),
        accepted=(0, 2), emitted=(7, 9), ready_after=5,
    )  # fmt: skip
    second = ShownTurn(
        request=0, ready=5, tokens=(9, 6, 7), parents=(-1, 0, 0), due=(0, 1),
        pages=(1, 2, 3, 4, 5, 7, 8, 9),
    )  # fmt: skip
    went = Shown(
        backend="rounds", case=served.id, step=4,
        rounds=(ShownRound(step=3, turns=(turn,)), ShownRound(step=4, turns=(second,))),
    )  # fmt: skip
    run = run_of(
        folder / "run", found, backends=("mine", "theirs", "rounds"),
        further=[seen, collide, went, smaller, *causes],
    )  # fmt: skip
    path = folder / "report.html"
    path.write_text(render(page_of([run])), "utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # A container's root has no sandbox of Chromium's.
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


class Opened:
    """A page, and what went wrong in it: console messages, errors, requests beyond the file."""

    def __init__(self, browser: Browser, path: Path, hash: str = "", **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page: Page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.wrong.append("dialog"), dialog.dismiss()))
        self.page.on("request", lambda request: self._asked(request.url))
        self.url = path.as_uri()
        self.page.goto(self.url + hash)

    def _asked(self, url: str) -> None:
        if not url.startswith(self.url):
            self.wrong.append(url)

    def close(self) -> None:
        self.context.close()
        assert self.wrong == []


@pytest.fixture
def opened(browser: Browser, report: Path) -> Iterator[Opened]:
    found = Opened(browser, report, viewport={"width": 1200, "height": 900})
    yield found
    found.close()


def tracer(page: Page, number: int = 1) -> Any:
    return page.locator(f"#failure-{number} .tracer")


def test_a_click_on_a_node_traces_that_row(opened: Opened) -> None:
    page = opened.page
    page.locator("#failure-1 summary").first.click()
    expect(tracer(page).locator("h4")).to_have_text("Row 2 of request 0")
    expect(tracer(page)).to_contain_text("✗ measured: row 2 reads row 1")
    page.locator("#failure-1 svg .node").nth(1).click()
    expect(tracer(page).locator("h4")).to_have_text("Row 1 of request 0")
    expect(tracer(page)).to_contain_text("4 = prefix 3 + depth 1")
    assert page.url.endswith("#failure-1/0/1")


def test_a_click_anywhere_in_a_line_traces_its_row(opened: Opened) -> None:
    article = opened.page.locator("#failure-1")
    article.locator("summary").first.click()
    for number, name in enumerate(("Keys read by each row", "Errors", "Keys seen to be read")):
        lines = article.get_by_role("region", name=name).locator("tbody tr")
        lines.nth(number).locator("td").last.click()
        expect(tracer(opened.page).locator("h4")).to_have_text(f"Row {number} of request 0")
        lines.nth((number + 1) % 3).get_by_role("button").press("Enter")
        expect(tracer(opened.page).locator("h4")).to_have_text(
            f"Row {(number + 1) % 3} of request 0"
        )


def test_nodes_are_reached_and_picked_by_the_keyboard(opened: Opened) -> None:
    page = opened.page
    page.keyboard.press("j")
    page.keyboard.press("o")
    page.locator("#failure-1 svg .node").first.focus()
    page.keyboard.press("Enter")
    expect(tracer(page).locator("h4")).to_have_text("Row 0 of request 0")


def test_the_wrong_edge_stands_beside_the_right_one(opened: Opened) -> None:
    page = opened.page
    page.locator("#failure-1 summary").first.click()
    wrong = page.locator("#failure-1 figure.wrong")
    expect(wrong).to_have_count(1)
    expect(wrong.locator("figcaption")).to_have_text(
        "visibility (measured): parents, differs in row 2"
    )
    expect(wrong.locator(".edge.bad")).to_have_count(1)
    expect(wrong.locator(".edge.due")).to_have_attribute("d", re.compile("Q"))  # beside the other
    expect(page.locator("#failure-1 figure figcaption").nth(1)).to_contain_text("differs")
    expect(page.locator("#failure-1 td.over[title]")).to_have_text("+")


def test_errors_reads_and_writes_are_drawn_from_what_was_seen(opened: Opened) -> None:
    article = opened.page.locator("#failure-1")
    article.locator("summary").first.click()
    expect(article.locator("td.hot")).to_have_text("∞")
    expect(article.locator("td.warm")).to_have_text("7.00")
    expect(
        article.get_by_role("region", name="Keys seen to be read").locator("span.over")
    ).to_have_text("row 1 ")
    weighed = article.get_by_role("region", name="Keys seen to be read").locator("td:last-child")
    expect(weighed).to_have_text(["75.0 % / 75.0 %", "60.0 % / 60.2 %", "90.0 % / 60.0 %"])
    expect(weighed.locator("xpath=self::*[contains(@class, 'over')]")).to_have_count(1)
    expect(article.locator("ul.wrong li")).to_have_text(
        [
            re.compile(r"\(row 1\) now holds K of row 1 and V of as before"),
            "slot 15, nobody's, now holds K of row 1 and V of what no row brought",
        ]
    )
    article.get_by_text("Declared: attend: masks").click()
    expect(article.get_by_role("region", name="attend: masks")).to_be_visible()


def test_a_slot_says_who_read_it_and_who_must_not(opened: Opened) -> None:
    article = opened.page.locator("#failure-1")
    article.locator("summary").first.click()
    expect(article.locator(".leaf button.bad")).to_have_text("r1")
    article.locator(".leaf button.bad").click()
    expect(tracer(opened.page)).to_contain_text("measured: read by rows 1 2")
    expect(tracer(opened.page)).to_contain_text("measured: must not be read by row 2")
    article.locator(".leaf button").first.click()
    expect(tracer(opened.page)).to_contain_text("measured: read by rows 0-2")
    expect(tracer(opened.page)).not_to_contain_text("must not be read by")


def test_a_slot_that_others_hold_is_shown_where_the_build_or_a_row_goes_there(
    opened: Opened,
) -> None:
    article = opened.page.locator("article", has_text="reads-twice")
    article.locator("summary").first.click()
    expect(article.locator(".leaf .bad")).to_have_text(["r1←r1 r2", "r2←–", "nobody's"])
    article.locator(".leaf button.bad").nth(1).click()
    expect(article.locator(".tracer")).to_contain_text("declared: no row to be written here")


def test_the_tracer_says_all_that_treeproof_trace_says(opened: Opened) -> None:
    case = star()
    article = opened.page.locator("#failure-1")
    article.locator("summary").first.click()
    for row in range(3):
        article.locator("svg .node").nth(row).click()
        words = " ".join(tracer(opened.page).inner_text().split())
        said = trace_lines(case, 0, row, checked(case, "mine", leak(), KV))[2:]
        assert len(said) >= 10
        for line in said:
            name, text = line[2:12].strip(), " ".join(line[12:].split())
            assert name in words
            assert text in words


def test_evidence_that_determined_nothing_says_why(opened: Opened) -> None:
    article = opened.page.locator("#failure-1")
    article.locator("summary").first.click()
    for name in ("candidate", "position", "traversal"):
        figure = article.locator("figure", has_text=f"{name}: not determined")
        expect(figure).to_contain_text("measured, attend: pass")


def test_the_case_before_it_was_made_smaller_is_drawn(opened: Opened) -> None:
    page = opened.page
    page.locator("#failure-1 summary").first.click()
    before = page.locator("#failure-1 section", has_text="Before it was made smaller").last
    expect(before.locator("summary")).to_have_text("1 request, 3 rows, prefix 5")
    before.locator("summary").click()
    expect(before.locator("figcaption")).to_have_text("request 0: prefix 5, 3 rows")
    expect(before.locator(".node text")).to_have_text(["0", "1", "2"])
    page.locator("#failure-2 summary").first.click()
    expect(tracer(page, 2)).to_be_visible()
    expect(page.locator("#failure-2")).not_to_contain_text("Before it was made smaller")


def test_failures_that_share_a_cause_are_listed_and_lead_to_their_blocks(opened: Opened) -> None:
    causes = opened.page.locator(".causes li")
    expect(causes).to_have_text(
        "causal-mask: a row reads all rows up to its own. 2 failures of mine: "
        "visibility reads-sibling, KV wrong-slot"
    )
    causes.get_by_role("link").nth(1).click()
    expect(opened.page.locator("article:target h3")).to_contain_text("wrong-slot")


def test_the_tracer_of_a_large_tree_stays_in_sight(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "large.html"
    path.write_text(render(page_of([many(tmp_path / "run", 1, 64)])), "utf-8")
    found = Opened(browser, path, viewport={"width": 1200, "height": 900})
    article = found.page.locator("#failure-1")
    article.locator("summary").first.click()
    expect(tracer(found.page).locator("h4")).not_to_be_in_viewport()  # it would hide the trees
    article.locator("svg .node").first.click()
    expect(tracer(found.page).locator("h4")).to_have_text("Row 0 of request 0")
    expect(tracer(found.page).locator("h4")).to_be_in_viewport()
    tracer(found.page).get_by_role("button", name="let it go").click()
    expect(tracer(found.page).locator("h4")).not_to_be_in_viewport()
    expect(article.locator("section").first.locator("figure:visible")).to_have_count(3)
    article.get_by_text("8 more, which do not differ").click()
    expect(article.locator("section").first.locator("figure:visible")).to_have_count(11)
    found.close()


def test_requests_that_are_not_drawn_are_counted(browser: Browser, tmp_path: Path) -> None:
    one = star()
    case = msgspec.structs.replace(
        one, requests=one.requests * 11, layout=msgspec.structs.replace(one.layout, num_slots=128)
    )
    late = msgspec.structs.replace(leak(), request=9)
    path = tmp_path / "wide.html"
    run = run_of(tmp_path / "run", [(case, checked(case, "mine", late))])
    path.write_text(render(page_of([run])), "utf-8")
    found = Opened(browser, path)
    found.page.locator("#failure-1 summary").first.click()
    expect(found.page.get_by_text("3 more requests of the case are not drawn.")).to_be_visible()
    expect(tracer(found.page).locator("h4")).to_have_text("Row 2 of request 9")
    asked = tracer(found.page).get_by_label("request")
    expect(asked.locator("option")).to_have_text([str(b) for b in range(3, 11)])
    asked.select_option("4")
    expect(tracer(found.page).locator("h4")).to_have_text("Row 0 of request 4")
    found.close()


def test_filters_and_search_leave_what_fits(opened: Opened) -> None:
    page = opened.page
    page.locator("#by-backend").select_option("theirs")
    expect(page.locator("article:visible")).to_have_count(1)
    expect(page.locator("#count")).to_have_text("1 of 4 shown")
    page.locator("#by-backend").select_option("")
    page.keyboard.press("Escape")
    page.locator("#find").fill("wrong-slot mine")
    expect(page.locator("article:visible h3")).to_contain_text("wrong-slot")
    page.locator("#find").fill("no such words")
    expect(page.locator("article:visible")).to_have_count(0)


def test_a_command_is_copied_whole(opened: Opened) -> None:
    opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = opened.page
    page.locator("#failure-1 .copy").first.click()
    expect(page.locator("#failure-1 .copy").first).to_have_text("copied")
    words = page.evaluate("navigator.clipboard.readText()")
    assert re.fullmatch(r"treeproof reduce \S+/cases/\w+\.json --backend mine", words)


def test_a_deep_link_opens_a_failure_at_its_row(browser: Browser, report: Path) -> None:
    found = Opened(browser, report, "#failure-3/0/1")
    expect(tracer(found.page, 3).locator("h4")).to_have_text("Row 1 of request 0")
    found.close()


def test_hostile_words_are_shown_and_do_nothing(opened: Opened) -> None:
    article = opened.page.locator("article", has_text="reads-twice")
    expect(article.locator(".message")).to_contain_text("<script>alert(1)</script>")
    article.locator("summary").first.click()
    expect(article.locator(".tracer")).to_contain_text("Row 2")
    assert opened.page.locator("img").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_axe_finds_nothing_and_nothing_is_cut_at_the_side(
    browser: Browser, report: Path, scheme: str, width: int
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    found = Opened(
        browser,
        report,
        color_scheme=scheme,
        viewport={"width": width, "height": 900},
        bypass_csp=True,
    )
    for number, summary in enumerate(found.page.locator("details.drawn > summary").all(), start=1):
        summary.click()
        # Only then is all that lies below where it stays.
        expect(found.page.locator(".canvas:not(:empty)")).to_have_count(number)
    for summary in found.page.locator(".canvas summary").all():
        summary.click()
    assert found.page.evaluate("document.documentElement.scrollWidth") <= width
    result = Axe().run(found.page)
    assert result.violations_count == 0, result.generate_report()
    found.close()


def test_without_scripts_sentences_and_commands_are_there(browser: Browser, report: Path) -> None:
    found = Opened(browser, report, java_script_enabled=False)
    expect(found.page.locator("#failure-1 .message")).to_be_visible()
    expect(found.page.locator("#failure-1 .commands code").first).to_contain_text(
        "treeproof reduce"
    )
    expect(found.page.get_by_text("Drawings need JavaScript")).to_be_visible()
    found.close()


def test_a_printer_finds_every_drawing_done(opened: Opened) -> None:
    opened.page.wait_for_function("ready !== null")
    drawn = opened.page.evaluate(
        "() => { dispatchEvent(new Event('beforeprint'));"
        " return ['.tracer table', '.round', 'pre.figures'].map("
        "what => [...document.querySelectorAll(what)].filter(e => e.checkVisibility()).length); }"
    )
    assert drawn == [3, 2, 2]


def test_each_round_has_its_tree_accepted_path_lengths_and_slots(opened: Opened) -> None:
    article = opened.page.locator("article", has_text="wrong-boundary")
    article.locator("summary").first.click()
    expect(article.locator(".round")).to_have_count(2)
    first, second = article.locator(".round").all()
    expect(first.locator("figcaption")).to_have_text(
        "request 0: 3 columns ready, 2 drafted, 1 accepted; then 5 columns ready. Emitted: 7 9"
    )
    expect(first.locator(".node.taken text")).to_have_text(["0", "2"])
    expect(first.locator(".edge.taken")).to_have_count(1)
    expect(first.locator(".leaf .kept")).to_have_text(["r0", "r1←r2"])
    expect(second.locator("h4")).to_have_text("Round in step 4: it went wrong here")
    expect(second.locator(".node.due text")).to_have_text(["0", "1"])
    expect(second.locator(".leaf .bad")).to_have_text("r0")
    second.locator(".node").nth(1).click()
    expect(second.locator("p.mono")).to_have_text(
        "row 1, token 6, column 6, slot 8, to be accepted"
    )
    expect(second.locator(".leaf .picked")).to_have_text("r1")


@pytest.mark.long
def test_five_hundred_failures_are_there_within_a_second(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "many.html"
    path.write_text(render(page_of([many(tmp_path / "run", 500, 64)])), "utf-8")
    found = Opened(browser, path)
    ready = found.page.evaluate("performance.getEntriesByType('navigation')[0].domInteractive")
    print(f"interactive after {ready:.0f} ms")
    assert ready < 1000
    found.page.locator("#find").fill("reads-sibling-321")
    expect(found.page.locator("article:visible")).to_have_count(1)
    found.page.locator("article:visible summary").first.click()
    expect(found.page.locator("article:visible .tracer table")).to_be_visible()
    found.close()
