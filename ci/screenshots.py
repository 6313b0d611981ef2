"""The pictures of docs/read-a-failure-report.md: a planted fault an identity, one of them dark too, and
one of rounds.

    python ci/screenshots.py

Needs treeproof[browser] and a Chromium. Pictures change where the page or what it says does.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from treeproof.contract.case import VerifyCase
from treeproof.contract.script import Admit, Prefill, Round, Turn
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings
from treeproof.faults.catalog import FAULTS
from treeproof.faults.smallest import request, script
from treeproof.reports.page.facts import page_of
from treeproof.reports.page.render import render
from treeproof.scoring.planted_file import planted_file

INTO = Path(__file__).resolve().parent.parent / "docs" / "images"
SHOWN = {
    "candidate": ("draft-index.one-early", "direct-mask"),
    "position": ("position-is-row", "swa-window"),
    "visibility": ("causal-kernel", "page-table"),
    "traversal": ("link-off-by-one.sibling-up", "topology"),
    "kv": ("moved-in-place.forwards", "direct-mask"),
}
WIDTH = 860
DARK = "visibility"
ROUNDS = "rounds"
IN_ROUNDS = ("companion.from-old-boundary", "direct-mask")
SCRIPT = script(
    request((-1, 0, 0, 1, 1, 2), 6),
    steps=[
        Admit(request=0), Prefill(request=0), Round(turns=(Turn(request=0, accept=4),)),
        Round(turns=(Turn(request=0, accept=2),)),
    ],
    page_size=4,
)  # fmt: skip
"""Larger than it must be, so that there is something to see."""


def page(fault: str, backend: str, folder: Path, case: VerifyCase | None = None) -> Path:
    """The page of a run on a case, without one on the smallest that shows the fault."""
    (smallest,) = (found.smallest for found in FAULTS if found.name == fault)
    settings = RunSettings(
        backends=(str(planted_file(fault, backend, folder)),), workers=1, store=None,
        run_dir=folder / "run", reduce=case is None,
    )  # fmt: skip
    path = folder / "report.html"
    found = run(settings, cases=[case or smallest], explain=True)
    path.write_text(render(page_of([found])), "utf-8")
    return path


def main() -> None:
    INTO.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as temporary:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for identity, (fault, backend) in {**SHOWN, ROUNDS: IN_ROUNDS}.items():
            folder = Path(temporary) / identity
            folder.mkdir()
            path = page(fault, backend, folder, SCRIPT if identity == ROUNDS else None)
            for scheme in ("light", "dark") if identity == DARK else ("light",):
                tab = browser.new_page(
                    viewport={"width": WIDTH, "height": 900}, color_scheme=scheme
                )
                tab.goto(path.as_uri())
                article = tab.locator(
                    "article" if identity == ROUNDS else f"article[data-identity={identity}]"
                ).first
                article.locator("details.drawn > summary").click()
                article.locator(".tracer table, .round").first.wait_for()
                # Folder names of this run are nobody else's.
                tab.evaluate(
                    "folder => document.querySelectorAll('code').forEach(code => "
                    "{ code.textContent = code.textContent.replaceAll(folder, '.') })",
                    str(folder),
                )
                article.screenshot(path=INTO / f"{identity}{'-dark' * (scheme == 'dark')}.png")
                tab.close()
            print(f"{identity}: {fault} in {backend}")
        browser.close()


if __name__ == "__main__":
    main()
