"""What several runs in one report are called, so that each line can say whose it is."""

from __future__ import annotations

from collections.abc import Sequence

from treeproof.engine.summary import Run
from treeproof.reports.text import shown


def run_names(runs: Sequence[Run]) -> list[str]:
    """One a run: the name of its folder, its path where two have one name; empty where it is alone."""
    if len(runs) == 1:
        return [""]
    names = [run.folder.path.absolute().name for run in runs]
    return [
        shown(name if names.count(name) == 1 else str(run.folder.path), 200)
        for name, run in zip(names, runs, strict=True)
    ]


def of_run(name: str, words: str) -> str:
    """Words that are about one of several runs."""
    return f"{name}: {words}" if name else words
