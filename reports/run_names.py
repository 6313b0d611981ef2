"""What several runs in one report are called, so that each line can say whose it is."""

from __future__ import annotations

from collections.abc import Sequence

from treeproof.engine.called import called
from treeproof.engine.summary import Run
from treeproof.reports.text import shown


def run_names(runs: Sequence[Run]) -> list[str]:
    """One a run: the name of its folder, its path where two have one name; empty where it is alone."""
    if len(runs) == 1:
        return [""]
    return [shown(name, 200) for name in called(runs)]


def of_run(name: str, words: str) -> str:
    """Words that are about one of several runs."""
    return f"{name}: {words}" if name else words
