"""The ledger of known failures as a TOML file, read strictly.

[[known]]
backend = "mykernel"
identity = "visibility"
kind = "reads-sibling"
when = { dtype = "bfloat16", window = true, page_size = [1, 16], topk = "2.." }
versions = { mykernel = ">=1.4,<1.6" }
reason = "the window goes by rows: sgl-project/sglang#39287"
expires = 2027-01-31
class = "tolerated"

An entry with a cause may have the kind "*". Entries may name a `finding`, which is described in a
[[finding]] table of the same file and read by `findings_file`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

from treeproof.contract.capabilities import MaskName
from treeproof.contract.failure import COLUMNS
from treeproof.contract.failure_kinds import KINDS, is_kind
from treeproof.contract.known_failure import (
    ANY_KIND,
    TREATMENTS,
    KnownFailure,
    Scope,
    Spans,
    Treatment,
)
from treeproof.contract.shape import DTYPES
from treeproof.contract.typed import choices
from treeproof.contract.wire import FileError, read_bytes
from treeproof.engine.ledger_versions import read_versions

DEADLY = ("crash", "hang", "raises")
"""Kinds that a case may be quarantined for: what only gives wrong numbers is checked."""
MOST = 1 << 40
_REQUIRED = ("backend", "identity", "kind", "reason", "expires")
_OPTIONAL = ("class", "cause", "when", "finding", "versions")
_TRACKER = re.compile(r"https?://[^\s/]+\.[^\s/]+/\S+|\b[\w.-]+/[\w.-]+#\d+\b|\bnot reported\b")
_SPAN = re.compile(r"(\d{1,12})?\.\.(\d{1,12})?")


def read_entries(path: Path) -> tuple[KnownFailure, ...]:
    """The entries of a ledger file, in its order; expired ones too.

    Raises FileError naming the file, the entry, the field and what is accepted.
    """
    tables = read_tables(path)
    named = {table.get("name") for table in tables["finding"]}
    entries = tuple(_entry(table, i, path) for i, table in enumerate(tables["known"], start=1))
    for entry in entries:
        if entry.finding and entry.finding not in named:
            raise FileError(
                f"{path}: entry {entry.number}: finding is {entry.finding!r}: the file has no "
                "[[finding]] of that name"
            )
    return entries


def read_tables(path: Path) -> dict[str, list[dict[str, Any]]]:
    """The [[known]] and the [[finding]] tables of a ledger file, unread. Raises FileError."""
    try:
        document = tomllib.loads(read_bytes(path).decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise FileError(f"{path}: {error}") from error
    unknown = sorted(set(document) - {"known", "finding"})
    if unknown:
        raise FileError(
            f"{path}: unknown key {unknown[0]!r}; accepted are [[known]] tables and [[finding]] tables"
        )
    for key in ("known", "finding"):
        tables = document.setdefault(key, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise FileError(
                f"{path}: {key} is no array of tables: write [[{key}]] before each entry"
            )
    return document


def _entry(table: dict[str, Any], number: int, path: Path) -> KnownFailure:
    where = f"{path}: entry {number}"
    unknown = sorted(set(table) - {*_REQUIRED, *_OPTIONAL})
    if unknown:
        accepted = ", ".join((*_REQUIRED, *_OPTIONAL))
        raise FileError(f"{where}: unknown field {unknown[0]!r}; accepted are {accepted}")
    missing = [field for field in _REQUIRED if field not in table]
    if missing:
        raise FileError(f"{where}: the field {missing[0]} is missing")

    def read(field: str, reader: Callable[[Any], Any], where: str = where) -> Any:
        try:
            return reader(table[field])
        except ValueError as error:
            raise FileError(f"{where}: {field} is {table[field]!r}: {error}") from None

    treatment: Treatment = "tolerated"
    if "class" in table:
        treatment = read("class", _one_of(TREATMENTS))
    if treatment == "quarantined":
        under = f"{where}, which is quarantined"
        identity = read("identity", _one_of(("contract",)), under)
        kind = read("kind", _one_of(DEADLY), under)
    else:
        identity, kind = read("identity", _one_of(COLUMNS)), read("kind", _kind)
        # What reads garbage fails in other ways each time: then its cases are named that narrowly.
        narrow = "finding" in table and {"device", "head_dim"} <= set(table.get("when", ()))
        if kind == ANY_KIND and "cause" not in table and not narrow:
            raise FileError(
                f"{where}: kind is {ANY_KIND!r}: accepted where the entry has a cause, or has a "
                "finding and says when by device and head_dim"
            )
    return KnownFailure(
        number=number,
        backend=read("backend", _text),
        identity=identity,
        kind=kind,
        reason=read("reason", _reason),
        expires=read("expires", _date),
        treatment=treatment,
        cause=read("cause", _text) if "cause" in table else "",
        finding=read("finding", _text) if "finding" in table else "",
        when=_scope(table.get("when", {}), f"{where}: when"),
        versions=read("versions", read_versions) if "versions" in table else (),
    )


def _scope(table: Any, where: str) -> Scope:
    if not isinstance(table, dict):
        raise FileError(f"{where} is {table!r}: a table of {', '.join(_PREDICATES)} is expected")
    fields = {}
    for field, value in table.items():
        if field not in _PREDICATES:
            accepted = ", ".join(_PREDICATES)
            raise FileError(f"{where}: unknown field {field!r}; accepted are {accepted}")
        try:
            fields[field] = _PREDICATES[field](value)
        except ValueError as error:
            raise FileError(f"{where}: {field} is {value!r}: {error}") from None
    return Scope(**fields)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("text is expected")
    return value


def _kind(value: object) -> str:
    kind = _text(value)
    if kind != ANY_KIND and not is_kind(kind):
        close = difflib.get_close_matches(kind, sorted(KINDS), n=1)
        hint = (
            f"; did you mean {close[0]}?" if close else ", as the first line of a failure shows it"
        )
        raise ValueError(f"there is no such kind of failure{hint}")
    return kind


def _one_of(accepted: tuple[str, ...]) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in accepted:
            raise ValueError(f"accepted are {', '.join(accepted)}")
        return str(value)

    return read


def _some_of(accepted: tuple[str, ...]) -> Callable[[object], tuple[str, ...]]:
    def read(value: object) -> tuple[str, ...]:
        items = value if isinstance(value, list) else [value]
        if not items:
            raise ValueError(f"accepted are {', '.join(accepted)}")
        return tuple(_one_of(accepted)(item) for item in items)

    return read


def _reason(value: object) -> str:
    text = _text(value)
    if not _TRACKER.search(text):
        raise ValueError(
            "a reference to a tracker is expected in it: a URL, or owner/repo#123, or the words "
            "not reported"
        )
    return text


def _date(value: object) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        return date.fromisoformat(value) if isinstance(value, str) else date.fromisoformat("")
    except ValueError:
        raise ValueError("a date such as 2027-01-31 is expected") from None


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("accepted are true and false")
    return value


def _spans(value: object) -> Spans:
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError("a whole number or a span is expected")
    return tuple(map(_span, items))


def _span(value: object) -> tuple[int, int]:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST:
        return (value, value)
    match = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if match is None or match.group() == "..":
        raise ValueError(
            "accepted are whole numbers from 0, spans such as 2.. and 1..16, and lists"
        )
    least, most = int(match[1] or 0), int(match[2] or MOST)
    if least > most:
        raise ValueError("the span is empty")
    return (least, most)


_PREDICATES: dict[str, Callable[[object], Any]] = {
    "dtype": _some_of(DTYPES),
    "device": _some_of(("cpu", "cuda")),
    "mask_mode": _some_of(tuple(choices(MaskName).split(", "))),
    "window": _flag,
    **dict.fromkeys(("page_size", "head_dim", "requests", "rows", "topk", "prefix"), _spans),
}
"""What may stand under `when`, and how it is read."""
