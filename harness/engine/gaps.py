"""What a run was asked for and did not check, in words: what it knows by itself, and what it may owe to
being one shard of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from treeproof.engine.completed import evidence, unchecked_shapes

if TYPE_CHECKING:
    from treeproof.engine.summary import Run


def unable(run: Run) -> Iterator[str]:
    """Backends that cannot run here, or could not in some cases: whatever else is checked elsewhere."""
    for name, why in run.unavailable.items():
        yield f"backend {name} cannot run here: {why}"
    for name in run.backends:
        reasons, checks = _refusals(run, name)
        if not reasons:
            continue
        why = reasons.most_common(1)[0][0]
        if run.completed_checks(name):
            yield (
                f"backend {name} could not run in {reasons.total()} of {checks} cases: {why}; "
                "Capabilities can say which it does not take"
            )
        else:
            yield f"backend {name} completed no check: {why}"


def unjudged(run: Run) -> Iterator[str]:
    """Backends, columns and shapes that no check came to, for no such reason."""
    for name in run.backends:
        silent = name not in run.unavailable and not run.completed_checks(name)
        if silent and not _refusals(run, name)[0]:
            yield f"backend {name} completed no check"
    for column in run.meta.identities:
        if not any(evidence(columns[column]) for columns in run.matrix.values()):
            yield f"{column} was asked for and no backend gave evidence of it"
    if run.meta.settings.get("trees"):
        judged = [name for name in run.backends if run.completed_checks(name)]
        yield from unchecked_shapes(run.cases, run.checks, judged)


def _refusals(run: Run, backend: str) -> tuple[Counter[str], int]:
    """Why a backend that was loaded could not run, in how many of its checks, and how many there are."""
    checks = [check for check in run.checks if check.backend == backend]
    cells = (cell for check in checks for cell in check.cells[:1])
    return Counter(cell.reason for cell in cells if cell.status == "unavailable"), len(checks)
