"""Ids of plain data: equal values have equal ids, on every machine and in later versions."""

from __future__ import annotations

import hashlib
from functools import cache

import msgspec


def content_id(value: msgspec.Struct) -> str:
    """blake2b of the canonical JSON, 20 hex digits."""
    canonical = msgspec.json.encode(_canonical(value), order="sorted")
    return hashlib.blake2b(canonical, digest_size=10).hexdigest()


def _canonical(value: object) -> object:
    """Plain data in which equal structs are equal JSON.

    Fields at their default are left out, so that a new field with a default keeps old ids. The
    comparison is by value: `omit_defaults` compares strings and floats by identity, which differs
    between a case that was made and the same case read from a file.
    """
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        body: dict[str, object] = {}
        if config.tag is not None:
            body[str(config.tag_field)] = config.tag
        for name, default in _defaults(type(value)):
            item = getattr(value, name)
            if item != default:
                body[name] = _canonical(item)
        return body
    if isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
        return [_canonical(item) for item in value]
    return value


@cache
def _defaults(kind: type[msgspec.Struct]) -> tuple[tuple[str, object], ...]:
    """Name and default of each field; `NODEFAULT` where a field has none."""
    return tuple(
        (
            info.name,
            info.default if info.default_factory is msgspec.NODEFAULT else info.default_factory(),
        )
        for info in msgspec.structs.fields(kind)
    )
