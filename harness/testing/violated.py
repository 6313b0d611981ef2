"""Failures as an exception: one class a failure key, so that test tools keep bugs apart."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import COLUMNS, Failure
from treeproof.reports.failure_block import Explained, failure_block
from treeproof.reports.text import printable

Key = tuple[str, str]


class TreeAttentionError(AssertionError):
    """Tree attention that is not right; the message explains it.

    The class that is raised is named after the failure, as `VisibilityReadsSibling`.
    """

    def __init__(self, message: str, failures: Sequence[Failure], case: VerifyCase) -> None:
        super().__init__(message)
        self.failures = tuple(failures)
        """All that was found, the failure that the class is named after first."""
        self.case = case


@cache
def error_class(identity: str, kind: str) -> type[TreeAttentionError]:
    """The one exception class of a failure key."""
    name = "".join(part.capitalize() for part in f"{identity}-{kind}".split("-"))
    return type(name, (TreeAttentionError,), {"__module__": "treeproof"})


def by_key(failures: Sequence[Failure]) -> dict[Key, list[Failure]]:
    """Failures grouped by (identity, kind), in the order of the columns."""
    groups: dict[Key, list[Failure]] = {}
    for failure in sorted(failures, key=lambda failure: COLUMNS.index(failure.identity)):
        groups.setdefault(failure.key, []).append(failure)
    return groups


def violation(
    case: VerifyCase,
    checked: Checked,
    *,
    replay: str = "",
    reduction: str = "",
    key: Key | None = None,
) -> TreeAttentionError:
    """What to raise for a check that failed: a block for one key, a line for the others.

    `key` is the failure that it is about, the first one if None. `replay` is the line that shows
    the failure again, empty where there is none; `reduction` says how the case was made smaller.
    """
    groups = by_key(checked.failures)
    identity, kind = key = key or next(iter(groups))
    explained = Explained(
        backend=checked.backend, failure=groups[key][0], case=case, checked=checked, checks=1,
        replay=replay, reduction=reduction,
    )  # fmt: skip
    lines = [printable(line.plain) for line in failure_block(explained)]
    others = [f"{i}: {k} ({len(found)})" for (i, k), found in groups.items() if (i, k) != key]
    if others:
        lines.insert(len(lines) - 1, f"  in the same case: {', '.join(others)}")
    failures = [*groups.pop(key), *(failure for found in groups.values() for failure in found)]
    return error_class(identity, kind)("\n".join(lines).rstrip(), failures, case)
