"""One thing that `treeproof doctor` looked at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """`advice` is empty where there is nothing to do; `ok` False means treeproof cannot run."""

    name: str
    found: str
    advice: str = ""
    ok: bool = True
