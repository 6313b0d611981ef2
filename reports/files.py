"""Reports that a run leaves as files, and what it tells the CI service it runs in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from treeproof.contract.wire import FileError, write_atomically
from treeproof.engine.summary import Run


def write_reports(
    runs: Sequence[Run],
    *,
    folder: Path | None = None,
    junit: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[Path]:
    """The files written: into `folder` a page, JUnit XML, a summary in Markdown and a badge; JUnit XML
    at `junit`; on GitHub (GITHUB_STEP_SUMMARY is set) a step summary.

    Raises FileError where one cannot be written.
    """
    written: dict[Path, str | bytes] = {}
    if folder is not None:
        from treeproof.reports.badge import badge_json
        from treeproof.reports.github import step_summary
        from treeproof.reports.junit import junit_xml
        from treeproof.reports.page.facts import page_of
        from treeproof.reports.page.render import render

        written[folder / "report.html"] = render(page_of(runs))
        written[folder / "junit.xml"] = junit_xml(runs)
        written[folder / "summary.md"] = step_summary(runs)
        written[folder / "badge.json"] = badge_json(runs)
    if junit is not None:
        from treeproof.reports.junit import junit_xml

        written[junit] = junit_xml(runs)
    for path, content in written.items():
        write_report(path, content)
    summary = (environment or {}).get("GITHUB_STEP_SUMMARY")
    if summary:
        _append_summary(Path(summary), runs)
    return list(written)


def write_report(path: Path, content: str | bytes) -> int:
    """Write one whole or not at all; returns its bytes. Raises FileError where it cannot be written."""
    data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    try:
        write_atomically(path, data)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    return len(data)


def _append_summary(path: Path, runs: Sequence[Run]) -> None:
    from treeproof.reports.github import step_summary

    try:
        with path.open("a", encoding="utf-8", errors="replace") as stream:
            stream.write(step_summary(runs))
    except OSError as error:
        raise FileError(f"GITHUB_STEP_SUMMARY: {path}: {error.strerror or error}") from error


def announced(runs: Sequence[Run], environment: Mapping[str, str]) -> list[str]:
    """Annotations to print, where GitHub Actions reads them."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return []
    from treeproof.reports.github import error_commands

    return error_commands(runs)
