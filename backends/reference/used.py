"""Which reference stages ran: what the reference does is no evidence about who called it."""

from __future__ import annotations

from contextvars import ContextVar

used: ContextVar[frozenset[str]] = ContextVar("used", default=frozenset())
"""Names of the reference stages, `store` among them, that ran in this context."""


def note(stage: str) -> None:
    """Say that a reference stage runs."""
    used.set(used.get() | {stage})
