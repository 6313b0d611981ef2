"""A ledger file for tests, and dates that do not grow old."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

TODAY = datetime.now(UTC).date()


def in_days(days: int) -> str:
    return (TODAY + timedelta(days=days)).isoformat()


def entry(**changes: str) -> str:
    """A [[known]] table; values are TOML, and an empty one leaves the field out."""
    fields = {
        "backend": '"bad"',
        "identity": '"visibility"',
        "kind": '"reads-sibling"',
        "reason": '"the mask goes by rows: some/engine#12"',
        "expires": in_days(30),
        **changes,
    }
    return "\n".join(["[[known]]", *(f"{key} = {value}" for key, value in fields.items() if value)])


def write_ledger(folder: Path, *entries: str) -> Path:
    path = folder / "known.toml"
    path.write_text("\n\n".join(entries) + "\n", "utf-8")
    return path
