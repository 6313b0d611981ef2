"""The case that a failure was drawn as, before it was made smaller: its trees, and the steps of a script."""

from __future__ import annotations

from typing import Any

from treeproof.contract.case import VerifyCase
from treeproof.contract.wire import FileError
from treeproof.engine.failure_group import FailureGroup
from treeproof.engine.summary import Run
from treeproof.reports.case_sheet import summary
from treeproof.reports.script_lines import script_lines

MAX_REQUESTS = 8
"""Requests whose trees are drawn, the first ones."""
MAX_STEPS = 40
"""Steps of a script that are listed, the last ones."""


def original_of(run: Run, group: FailureGroup) -> VerifyCase | None:
    """None where the failure is shown on the case that was drawn, or that is not kept."""
    reduced = group.reduced
    if reduced is None or group.case != reduced.reduced or reduced.original == group.case:
        return None
    try:
        return run.folder.read_case(reduced.original)
    except FileError:
        return None


def original_drawn(case: VerifyCase) -> dict[str, Any]:
    """As JSON."""
    requests = case.requests[:MAX_REQUESTS]
    return {
        "size": summary(case),
        "steps": script_lines(case, MAX_STEPS) if case.script else [],
        "requests": [
            {"prefix": request.prefix_len, "parents": list(request.parent_rows)}
            for request in requests
        ],
        "left_out": len(case.requests) - len(requests),
    }
