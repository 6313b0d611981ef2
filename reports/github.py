"""A run on GitHub: annotations of a job, and its step summary."""

from __future__ import annotations

import re
from collections.abc import Sequence

from treeproof.contract.failure import COLUMNS
from treeproof.engine.failure_group import FailureGroup
from treeproof.engine.summary import Run
from treeproof.reports.case_sheet import count
from treeproof.reports.cause import cause_text, shared_causes
from treeproof.reports.ending import last_words, shortfall
from treeproof.reports.ledger_lines import entry_words
from treeproof.reports.left_lines import left_lines, left_parts
from treeproof.reports.matrix import Tally, tallies
from treeproof.reports.run_names import of_run, run_names
from treeproof.reports.sanitized import sanitized_lines
from treeproof.reports.show_again import replay_command
from treeproof.reports.terminal import figures
from treeproof.reports.text import printable, shown

MOST_ANNOTATIONS = 10
"""GitHub shows so many of a step, and drops the others without a word."""
MOST_BYTES = 900 * 1024
"""GitHub refuses a step summary above 1 MiB; whole lines are kept up to here."""


def error_commands(runs: Sequence[Run]) -> list[str]:
    """Workflow commands, one a line: why a run is not clean where failures do not say it, then at most so
    many failures that there are `MOST_ANNOTATIONS`, and how many more there are."""
    named = list(zip(runs, run_names(runs), strict=True))
    lines = [
        _command(of_run(name, "treeproof"), shown(why))
        for run, name in named
        if (why := shortfall(run))
    ][: MOST_ANNOTATIONS - 1]
    failures = [(run, of_run(name, g.backend), g) for run, name in named for g in run.failures]
    room = MOST_ANNOTATIONS - len(lines)
    most = room if len(failures) <= room else room - 1
    lines += [
        _command(
            f"{shown(backend, 200)}: {group.identity} {shown(group.kind, 200)}",
            f"{shown(group.failure.message, 600)}\n{_cause(group)}{printable(replay_command(run, group))}",
        )
        for run, backend, group in failures[:most]
    ]
    if more := failures[most:]:
        lines.append(
            _command("treeproof", f"{count(len(more), 'more distinct failure')}: see the report")
        )
    return lines


def _cause(group: FailureGroup) -> str:
    return f"{shown(cause_text(group.diagnosed), 600)}\n" if group.diagnosed is not None else ""


def _command(title: str, message: str) -> str:
    """What a value may hold is escaped: nobody else's words end the command or begin another."""
    escaped = title.translate(_ESCAPED | {ord(":"): "%3A", ord(","): "%2C"})
    return f"::error title={escaped}::{message.translate(_ESCAPED)}"


_ESCAPED = {ord("%"): "%25", ord("\r"): "%0D", ord("\n"): "%0A"}


def step_summary(runs: Sequence[Run]) -> str:
    """Markdown: verdict, matrix, failures with the command that replays each."""
    lines: list[str] = []
    for run, name in zip(runs, run_names(runs), strict=True):
        verdict = of_run(name, last_words(run)[-1].plain)
        lines += [f"### {_text(verdict)}", "", *_matrix(run), ""]
        lines += [f"> {_text(line.plain)}" for line in last_words(run)[:-1]]
        lines += _left(run)
        if causes := shared_causes(run.failures):
            lines += ["", *(f"- {_text(cause)}" for cause in causes)]
        for group in run.failures:
            lines += ["", *_failure(run, group)]
        if run.ledger:
            known = [f"- entry {_text(entry_words(state))}" for state in run.ledger]
            lines += [
                "",
                "<details><summary>Known failures</summary>",
                "",
                *known,
                "",
                "</details>",
            ]
        lines += ["", "<details><summary>Sizes, time, seed, versions</summary>", ""]
        lines += [*(f"    {shown(line)}" for line in figures(run)), "", "</details>", ""]
    return _cut(lines)


def _left(run: Run) -> list[str]:
    if not run.left:
        return []
    lines = [f"> left unchecked: {_text(line)}" for line in left_lines(run)]
    parts = [f"    {shown(line, MOST_BYTES)}" for line in left_parts(run)]
    head = "<details><summary>Left unchecked, part by part</summary>"
    return [*lines, "", head, "", *parts, "", "</details>"]


def _matrix(run: Run) -> list[str]:
    found = tallies(run)
    names = ["backend", *("KV" if column == "kv" else column for column in COLUMNS), "exercised"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for name in run.backends:
        if name in run.unavailable:
            cells = [f"cannot run here: {_text(run.unavailable[name])}", *[""] * len(COLUMNS)]
        else:
            cells = [_cell(found[name][column]) for column in COLUMNS]
            cells += [f"{len(run.exercised[name])} of 5"]
        lines.append(f"| {_text(name)} | {' | '.join(cells)} |")
    return lines


def _cell(tally: Tally) -> str:
    for status, mark in (("fail", "❌"), ("known", "known"), ("tie", "~"), ("pass", "✅")):
        if tally.cases[status]:
            return f"{mark} {tally.cases[status]}" + ("" if tally.measured else " (tables)")
    return "·"


def _failure(run: Run, group: FailureGroup) -> list[str]:
    lines = [
        f"#### {_text(group.backend)}: {group.identity}, {_text(group.kind)}",
        "",
        _text(group.failure.message),
        "",
    ]
    if group.diagnosed is not None:
        lines += [_text(cause_text(group.diagnosed)), ""]
    if group.sanitized is not None:
        lines += [text for line in sanitized_lines(group.sanitized) for text in (_text(line), "")]
    return [*lines, f"    {shown(replay_command(run, group))}"]


def _text(words: str) -> str:
    """Words as they are, whatever Markdown or HTML they hold."""
    return re.sub(r"[\\`*_{}\[\]()#+!|<>&~@:-]", lambda found: f"&#{ord(found[0])};", shown(words))


def _cut(lines: Sequence[str]) -> str:
    kept, size = [], 0
    for number, line in enumerate(lines):
        size += len(line.encode("utf-8", "replace")) + 1
        if size > MOST_BYTES:
            kept.append(f"\n… cut: {count(len(lines) - number, 'more line')}; the report has all.")
            break
        kept.append(line)
    return "\n".join(kept) + "\n"
