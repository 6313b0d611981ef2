"""Findings: what kernels of others do wrong, told in the ledger that tolerates it.

[[finding]]
name = "window-by-row"
title = "With a sliding window, a branching tree loses keys"
backend = "sglang-extend"
seen_in = "sglang 0.5.23"
reported = "sgl-project/sglang#39287"
parents = [-1, 0, 0]
prefix = 0
window = 2
shows = "treeproof check sglang-extend --seed 0"
says = "What it is, in sentences."
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from treeproof.contract.capabilities import Device
from treeproof.contract.wire import FileError
from treeproof.engine.ledger_file import read_tables


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One finding. `seen_in`: packages and releases that show it. `reported`: where, or "not reported".

    The smallest case is one request: the tree `parents` after `prefix` keys, with a window of
    `window` keys, 0 being none, on `device` and with heads of `head_dim` lanes, 0 being any. `shows`
    is a command that finds it among drawn cases.
    """

    name: str
    title: str
    backend: str
    seen_in: str
    reported: str
    parents: tuple[int, ...]
    prefix: int
    window: int
    shows: str
    says: str
    device: Device = "cpu"
    head_dim: int = 0


def read_findings(path: Path) -> tuple[Finding, ...]:
    """The findings of a ledger file, in its order. Raises FileError naming table, field and value."""
    found: list[Finding] = []
    for number, table in enumerate(read_tables(path)["finding"], start=1):
        try:
            finding = msgspec.convert(table, Finding)
        except msgspec.ValidationError as error:
            raise FileError(f"{path}: finding {number}: {error}") from None
        if any(finding.name == other.name for other in found):
            raise FileError(f"{path}: finding {number}: the name {finding.name!r} is taken")
        found.append(finding)
    return tuple(found)
