"""What several runs are called beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from treeproof.engine.summary import Run


def called(runs: Sequence[Run]) -> list[str]:
    """One a run: the name of its folder, its path where two have one name."""
    names = [run.folder.path.absolute().name for run in runs]
    often = Counter(names)
    return [
        name if often[name] == 1 else str(run.folder.path)
        for name, run in zip(names, runs, strict=True)
    ]
