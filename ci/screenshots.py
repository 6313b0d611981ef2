"""The pictures of docs/read-a-failure-report.md: a planted fault an identity, one of them dark too.

    python ci/screenshots.py

Needs treeproof[browser] and a Chromium. Pictures change where the page or what it says does.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings
from treeproof.faults.catalog import FAULTS
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


def page(fault: str, backend: str, folder: Path) -> Path:
    """The page of a run on the smallest case that shows the fault."""
    (case,) = (found.smallest for found in FAULTS if found.name == fault)
    settings = RunSettings(
        backends=(str(planted_file(fault, backend, folder)),), workers=1, store=None,
        run_dir=folder / "run",
    )  # fmt: skip
    path = folder / "report.html"
    path.write_text(render(page_of([run(settings, cases=[case])])), "utf-8")
    return path


def main() -> None:
    INTO.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as temporary:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for identity, (fault, backend) in SHOWN.items():
            folder = Path(temporary) / identity
            folder.mkdir()
            path = page(fault, backend, folder)
            for scheme in ("light", "dark") if identity == DARK else ("light",):
                tab = browser.new_page(
                    viewport={"width": WIDTH, "height": 900}, color_scheme=scheme
                )
                tab.goto(path.as_uri())
                article = tab.locator(f"article[data-identity={identity}]").first
                article.locator("details.drawn > summary").click()
                article.locator(".tracer table").wait_for()
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
