"""Cases and reproducers as JSON: strict reading, versioned writing."""

from __future__ import annotations

import os
import re
import reprlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from treeproof.contract.case import MaskMode, Order, VerifyCase
from treeproof.contract.failure import Identity
from treeproof.contract.json_text import MAX_BYTES, FileError, parse_json, printable
from treeproof.contract.script import SampledBy
from treeproof.contract.typed import Typed, choices

__all__ = [
    "CASE_SCHEMA",
    "CONVERTERS",
    "MAX_BYTES",
    "REPRODUCER_SCHEMA",
    "VERSION",
    "FailureKey",
    "FileError",
    "Reproducer",
    "decode_case",
    "decode_reproducer",
    "encode_case",
    "encode_reproducer",
    "json_schema",
    "parse_json",
    "read_bytes",
    "read_case_file",
    "write_atomically",
]

Schema = Literal["treeproof.case", "treeproof.reproducer"]
CASE_SCHEMA: Schema = "treeproof.case"
REPRODUCER_SCHEMA: Schema = "treeproof.reproducer"
VERSION = 1

Converter = Callable[[dict[str, Any]], dict[str, Any]]
CONVERTERS: dict[int, Converter] = {}
"""From each older version to the one after it, without a gap up to `VERSION`.

A converter takes a whole document, told apart by its "schema" field, as its version wrote it, and
returns it as the next version would have. Documents older than all of them are refused.
"""


class FailureKey(Typed, frozen=True):
    """What a reproducer reproduces."""

    identity: Identity
    kind: str


class Reproducer(Typed, frozen=True, kw_only=True):
    """One failure, small enough to send: `treeproof replay` runs it.

    `backend` is the reference it was checked by. Reading a reproducer imports nothing.
    """

    case: VerifyCase
    backend: str
    failure: FailureKey
    message: str = ""
    seed: int = 0
    device: str = "cpu"
    versions: dict[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.backend:
            raise ValueError("backend is empty: a name, module:name or a file is expected")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}: accepted are 0 to 2**63 - 1")
        if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", self.device):
            raise ValueError(f"device is {self.device!r}: accepted are cpu, cuda and cuda:N")


S = TypeVar("S")


def encode_case(case: VerifyCase) -> bytes:
    return _encode(CASE_SCHEMA, case)


def encode_reproducer(reproducer: Reproducer) -> bytes:
    return _encode(REPRODUCER_SCHEMA, reproducer)


def _encode(schema: Schema, value: VerifyCase | Reproducer) -> bytes:
    body = msgspec.to_builtins(value)
    return msgspec.json.encode({"schema": schema, "version": VERSION, **body}) + b"\n"


def decode_case(data: bytes, source: str = "case") -> VerifyCase:
    """A case from JSON. Raises FileError naming `source`, the field and the row."""
    _, document = _document(data, source, (CASE_SCHEMA,))
    return _convert(document, VerifyCase, source)


def decode_reproducer(data: bytes, source: str = "reproducer") -> Reproducer:
    """A reproducer from JSON. Raises FileError naming `source`, the field and the row."""
    _, document = _document(data, source, (REPRODUCER_SCHEMA,))
    return _convert(document, Reproducer, source)


def read_case_file(path: Path) -> VerifyCase | Reproducer:
    """Either kind of case file, told apart by its schema field. Raises FileError."""
    source = str(path)
    schema, document = _document(read_bytes(path), source, (CASE_SCHEMA, REPRODUCER_SCHEMA))
    if schema == CASE_SCHEMA:
        return _convert(document, VerifyCase, source)
    return _convert(document, Reproducer, source)


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, or FileError where it is missing, unreadable or too large."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)  # a device file has no size to ask for
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:  # a name with a zero in it
        raise FileError(f"{str(path)!r}: {error}") from error
    if len(data) > MAX_BYTES:
        raise FileError(f"{path}: more than the {MAX_BYTES} bytes that are accepted")
    return data


def _document(
    data: bytes, source: str, schemas: tuple[Schema, ...]
) -> tuple[Schema, dict[str, Any]]:
    """The schema of a document, and its body as the current version would have written it."""
    document = parse_json(data, source)
    if not isinstance(document, dict):
        raise FileError(f"{source}: a JSON object is expected, found {type(document).__name__}")
    found, version = document.get("schema"), document.pop("version", None)
    schema = next((known for known in schemas if known == found), None)
    if schema is None:
        raise FileError(
            f"{source}: schema is {reprlib.repr(found)}; accepted are {', '.join(schemas)}"
        )
    if type(version) is not int:
        raise FileError(f"{source}: version is {reprlib.repr(version)}; a whole number is expected")
    oldest = min(CONVERTERS, default=VERSION)
    if not oldest <= version <= VERSION:
        raise FileError(
            f"{source}: version is {version}; this treeproof reads {oldest} to {VERSION}"
        )
    for step in range(version, VERSION):
        try:
            document = CONVERTERS[step](document)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise FileError(
                f"{source}: not what version {step} wrote: {type(error).__name__}: {error}"
            ) from error
    del document["schema"]
    return schema, document


_CHOICES = {
    "do": "admit, prefill, round, finish, evict",
    "identity": choices(Identity),
    "kind": "full, window",
    "mode": choices(MaskMode),
    "order": choices(Order),
    "sample": choices(SampledBy),
}
"""What msgspec leaves out of its messages, by field."""


def _convert(document: dict[str, Any], kind: type[S], source: str) -> S:
    try:
        return msgspec.convert(document, kind, strict=True)
    except msgspec.ValidationError as error:
        said = str(error)
        if said.startswith("Invalid "):
            said += f": accepted are {_CHOICES[said.rstrip('`').rpartition('.')[2]]}"
        raise FileError(f"{source}: {printable(said)}") from error
    except RecursionError as error:
        raise FileError(f"{source}: nested too deeply") from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, and its folder where there is none yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".tmp-{secrets.token_hex(8)}")
    try:
        with unfinished.open("xb") as stream:
            stream.write(data)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def json_schema() -> dict[str, Any]:
    """JSON Schema of the case and reproducer files."""
    _, components = msgspec.json.schema_components(
        [VerifyCase, Reproducer], ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{CASE_SCHEMA} and {REPRODUCER_SCHEMA}, version {VERSION}",
        "anyOf": [
            _file_schema(CASE_SCHEMA, components["VerifyCase"]),
            _file_schema(REPRODUCER_SCHEMA, components.pop("Reproducer")),
        ],
        "$defs": components,
    }


def _file_schema(schema: Schema, body: dict[str, Any]) -> dict[str, Any]:
    """The body's schema with the two fields beside it that a file has."""
    named = {"schema": {"const": schema}, "version": {"const": VERSION}}
    return {
        **body,
        "title": schema,
        "properties": {**named, **body["properties"]},
        "required": [*named, *body["required"]],
    }
