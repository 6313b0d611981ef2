"""The verdict as the JSON of a status badge (the endpoint format of shields.io)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from treeproof.engine.summary import CLEAN, VIOLATED, Run
from treeproof.reports.case_sheet import count


def badge_json(runs: Sequence[Run]) -> str:
    """Red, grey or green; green only where everything asked for was checked and nothing failed."""
    codes = {run.exit_code for run in runs}
    checks = sum(run.completed_checks(name) for run in runs for name in run.backends)
    distinct = sum(len(run.failures) for run in runs)
    if distinct or VIOLATED in codes:
        message, colour = count(distinct, "failure") if distinct else "failing", "red"
    elif codes == {CLEAN} and checks:
        message, colour = count(checks, "check"), "brightgreen"
    else:
        message, colour = "not checked", "lightgrey"
    if all(run.vacuous for run in runs):
        shards = ", ".join(run.shard for run in runs if run.shard)
        message = f"nothing in shard {shards}" if shards else "nothing checked"
    return json.dumps(
        {"schemaVersion": 1, "label": "treeproof", "message": message, "color": colour}
    )
