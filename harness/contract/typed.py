"""Plain data that is checked when it is made, by Python code as by a file."""

from __future__ import annotations

from collections.abc import Set
from enum import Enum
from functools import cache
from typing import Any, Literal, get_args, get_origin

import msgspec


class Typed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """A frozen struct whose fields hold exactly what they are annotated with.

    Lists become tuples, sets are frozen and whole numbers in float fields become floats, so that
    values which are equal are alike, however they were written. Raises ValueError naming field and
    entry.
    """

    def __post_init__(self) -> None:
        for name, kind in _field_types(type(self)):
            value = getattr(self, name)
            try:
                exact = msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                raise ValueError(_said(name, value, kind, str(error))) from None
            if isinstance(exact, set):
                exact = frozenset(exact)
            if exact is not value:
                msgspec.structs.force_setattr(self, name, exact)


@cache
def _field_types(kind: type[Typed]) -> tuple[tuple[str, Any], ...]:
    return tuple((info.name, info.type) for info in msgspec.structs.fields(kind))


def _said(name: str, value: object, kind: Any, error: str) -> str:
    accepted = choices(kind)
    if accepted:
        return f"{name} is {value!r}: accepted are {accepted}"
    what, _, where = error.partition(" - at `$")
    return f"{name}{where.rstrip('`')}: {what}"


def choices(kind: Any) -> str:
    """The values of a Literal, an enumeration, or sets of them, in words; empty for other types."""
    origin = get_origin(kind)
    if origin is Literal:
        return ", ".join(map(str, get_args(kind)))
    if origin is Set:
        members = choices(get_args(kind)[0])
        return members and f"sets of {members}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"{member.value} ({member.name})" for member in kind)
    return ", ".join(filter(None, map(choices, get_args(kind))))  # of a union
