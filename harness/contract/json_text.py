"""JSON read strictly: what it holds is plain, bounded and unambiguous, or refused by name."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

MAX_BYTES = 64 << 20
MAX_DIGITS = 20
"""A 64-bit number with its sign has no more."""


class FileError(Exception):
    """A file that cannot be used; the message names the file, the field and the row."""


def parse_json(data: bytes, source: str) -> Any:
    """The document in `data`: dicts, lists, str, int, finite float, bool and None.

    Raises FileError, naming `source` and the place, where it is no JSON in UTF-8, or has a duplicate
    key, a number that is not finite or has more than 20 digits, text that is not Unicode, or more
    nesting than Python reads.
    """
    if len(data) > MAX_BYTES:
        raise FileError(f"{source}: {len(data)} bytes, at most {MAX_BYTES} are accepted")
    reading = _Reading()
    try:
        text = data.decode("utf-8")
        document = json.loads(
            text,
            object_pairs_hook=reading.object,
            parse_int=reading.whole,
            parse_float=reading.real,
            parse_constant=reading.constant,
        )
    except RecursionError as error:
        raise FileError(f"{source}: nested too deeply") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{source}: not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise FileError(
            f"{source}: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    if reading.refused or "\\ud" in text.lower():
        _raise_refusal(document, source)
    return document


@dataclass(frozen=True)
class _Refused:
    """Stands in the document for what cannot be taken, so that its place can be told."""

    why: str


class _Reading:
    """Hooks of `json.loads`. They see no place, so they leave a mark where there is none to keep."""

    refused = False

    def _refuse(self, why: str) -> _Refused:
        self.refused = True
        return _Refused(why)

    def object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Refused:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        return self._refuse(f"duplicate key {printable(twice)!r}")

    def whole(self, text: str) -> int | _Refused:
        if len(text) > MAX_DIGITS:
            return self._refuse(
                f"a number of {len(text)} digits, at most {MAX_DIGITS} are accepted"
            )
        return int(text)

    def real(self, text: str) -> float | _Refused:
        value = float(text)
        return value if math.isfinite(value) else self._refuse(f"{printable(text)} is too large")

    def constant(self, name: str) -> _Refused:
        return self._refuse(f"{name} is not a number that JSON knows")


def _raise_refusal(document: Any, source: str) -> None:
    """Raise FileError for the first thing in the document that was refused, if there is any."""
    pending = [("$", document)]
    while pending:
        where, value = pending.pop()
        why = value.why if isinstance(value, _Refused) else ""
        if isinstance(value, str) and not _is_unicode(value):
            why = "text with half a surrogate pair"
        if why:
            place = "" if where == "$" else f" - at `{printable(where)}`"
            raise FileError(f"{source}: {why}{place}")
        if isinstance(value, dict):
            for key, item in reversed(value.items()):
                pending += [(f"{where}.{key}", item), (f"{where}.{key}", key)]
        elif isinstance(value, list):
            pending += [(f"{where}[{i}]", value[i]) for i in reversed(range(len(value)))]


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def printable(text: str) -> str:
    """Foreign text for a message: short, and without what a terminal would act upon."""
    if len(text) > 400:
        text = f"{text[:200]} … {text[-200:]}"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
