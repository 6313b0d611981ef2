"""How a run ended: its verdict in one line, and why where that is not plain."""

from __future__ import annotations

from rich.text import Text

from treeproof.engine.summary import CLEAN, INTERRUPTED, OWN_FAULT, VIOLATED, Run
from treeproof.reports.case_sheet import count
from treeproof.reports.console import prose


def last_words(run: Run) -> list[Text]:
    """What is to be said beside the verdict, then the verdict."""
    if run.exit_code == OWN_FAULT:
        return [*(Text(line) for why in reasons(run) for line in why.splitlines()), verdict(run)]
    beside = [*reasons(run), *run.unexplained, *_of_shard(run)]
    return [*(prose(f"! {why}", "yellow") for why in beside), verdict(run)]


def reasons(run: Run) -> list[str]:
    """Why it did less than it was asked for, failures apart."""
    if run.exit_code == OWN_FAULT:
        return [run.finished.reason if run.finished is not None else ""]
    reason = run.finished.reason if run.finished is not None else "the run was cut short"
    return [*run.missing, *([reason] if reason else [])]


def shortfall(run: Run) -> str:
    """Why the run as a whole is not clean, where failures do not say all of it; empty where they do."""
    cut = run.finished is None or bool(run.missing)
    if run.exit_code == CLEAN or (run.exit_code == VIOLATED and run.failures and not cut):
        return ""
    return "; ".join(reasons(run)) or verdict(run).plain.lstrip("✗! ")


def _of_shard(run: Run) -> list[str]:
    """What it takes the union to say."""
    if not run.shard:
        return []
    drawn = run.cases or run.left or run.meta.settings.get("endless")
    part = "holds no part of this run" if run.vacuous and not drawn else "is a part of this run"
    alone = [f"in shard {run.shard} {why}" for why in run.undecided] if drawn else []
    union = f"shard {run.shard} {part}: treeproof merge says whether anything was left out"
    return [*alone, union]


def verdict(run: Run) -> Text:
    completed = sum(run.completed_checks(name) for name in run.backends)
    checks = count(completed, "check")
    if run.exit_code == OWN_FAULT:
        return Text("✗ treeproof itself failed, see above", style="bold red")
    if run.failures:
        failing = sum(bool(run.untolerated(check)) for check in run.checks)
        distinct = count(len(run.failures), "distinct failure")
        return Text(f"✗ {distinct}, in {failing} of {checks}", style="bold red")
    if run.unexpected_passes and not run.shard:
        entries = ", ".join(str(state.entry.number) for state in run.unexpected_passes)
        return Text(f"✗ unexpected pass of ledger entry {entries}", style="bold red")
    if run.exit_code == INTERRUPTED:
        return Text(f"interrupted; nothing failed in {checks}", style="yellow")
    if run.exit_code:
        what = "not everything that was asked for" if completed else "nothing"
        return Text(f"! {what} was checked", style="bold yellow")
    if run.vacuous:
        where = f" in shard {run.shard}" if run.shard else ""
        return Text(f"nothing was checked{where}", style="yellow")
    return Text(f"✓ no identity violated in {checks}", style="bold green")
