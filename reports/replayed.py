"""What a replay or a reduction of one failure came to."""

from __future__ import annotations

from rich.text import Text

from treeproof.contract.wire import Reproducer
from treeproof.engine.replay import Outcome, Replay
from treeproof.engine.summary import Run
from treeproof.reports.console import prose
from treeproof.reports.ending import last_words
from treeproof.reports.failure_block import Explained, failure_block
from treeproof.reports.terminal import explained

_STYLES = {Outcome.FIXED: "bold green", Outcome.FAILED: "bold red", Outcome.ERROR: "bold yellow"}


def replay_lines(done: Replay, reproducer: Reproducer, replay: str) -> list[Text]:
    """FIXED, FAILED or ERROR with why; and, where something still fails, its block."""
    lines = [prose(f"{done.outcome}  {done.detail}", _STYLES[done.outcome])]
    if done.checked is None or not done.failures:
        return lines
    key = (reproducer.failure.identity, reproducer.failure.kind)
    failure = min(done.failures, key=lambda failure: failure.key != key)
    block = failure_block(
        Explained(
            backend=done.checked.backend,
            failure=failure,
            case=reproducer.case,
            checked=done.checked,
            checks=1,
            replay=replay,
            sanitized=done.sanitized,
        )
    )
    return [*lines, Text(""), *block]


def reduction_lines(run: Run) -> list[Text]:
    """The smallest case of each failure that a given case shows."""
    lines: list[Text] = []
    for group in run.failures:
        lines += [*failure_block(explained(run, group)), Text("")]
    return [*lines, *last_words(run)]
