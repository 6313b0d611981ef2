"""Who ended a worker? Whoever ends a fresh process as well, alone in it.

What a backend leaves behind, a timer, a thread or spoilt memory, ends the process while another one's stage
runs, and so does a system that is short of memory, or a person. So nobody is blamed for having been at work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from treeproof.contract.case import VerifyCase
from treeproof.engine.loss import Lost

LINGER = 1.0
"""Seconds that a process is waited for after a check that is suspected to end it late."""
MOST_SUSPECTS = 8
"""Backends that are tried, of those that ran in the process."""
CASES_EACH = 3
"""Cases of each of them; of these and of backends the latest first."""

Ends = Callable[[str, Iterable[VerifyCase]], Lost | None]
"""How a fresh process ended over a backend of this name on these cases, alone in it; None: it did not."""


def culprit(lost: Lost, read_case: Callable[[str], VerifyCase | None], ends: Ends) -> Lost | None:
    """Of the backends that ran in a process before it ended, the one that ends another, and how.

    `read_case`: the case of an id, None where it is not kept.
    """
    for backend, ids in suspects(lost.ran):
        kept = (case for case in map(read_case, ids) if case is not None)
        found = ends(backend, kept)
        if found is not None:
            return found
    return None


def suspects(ran: Iterable[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Backends and ids of their cases. `ran`: case and backend of each check, the earliest first."""
    found: dict[str, list[str]] = {}
    for case, backend in reversed(list(ran)):
        cases = found.setdefault(backend, [])
        if len(cases) < CASES_EACH:
            cases.append(case)
    yield from list(found.items())[:MOST_SUSPECTS]
