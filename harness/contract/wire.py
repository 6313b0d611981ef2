"""Cases and reproducers as JSON: strict reading, versioned writing."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from treeproof.contract.case import VerifyCase

CASE_SCHEMA, REPRODUCER_SCHEMA = "treeproof.case", "treeproof.reproducer"
VERSION = 1
MAX_BYTES = 64 << 20

Converter = Callable[[dict[str, Any]], dict[str, Any]]
CONVERTERS: Mapping[int, Converter] = {}
"""From version v to v + 1, applied one after another; documents older than the first are refused."""


class FileError(Exception):
    """A file that cannot be used; the message names the file, the field and the row."""


class FailureKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a reproducer reproduces."""

    identity: str
    kind: str


class Reproducer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One failure, small enough to send: `treeproof replay` runs it.

    `backend` is a name, `module:name` or a file as given on the command line. Nothing in here makes
    anything be imported: replay takes a backend's file from its own command line or from the name.
    """

    case: VerifyCase
    backend: str
    failure: FailureKey
    message: str = ""
    seed: int = 0
    device: str = "cpu"
    versions: dict[str, str] = {}




S = TypeVar("S")


def encode_case(case: VerifyCase) -> bytes:
    return _encode(CASE_SCHEMA, msgspec.to_builtins(case))


def encode_reproducer(reproducer: Reproducer) -> bytes:
    return _encode(REPRODUCER_SCHEMA, msgspec.to_builtins(reproducer))


def _encode(schema: str, body: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"schema": schema, "version": VERSION, **body}) + b"\n"


def decode_case(data: bytes, source: str = "case") -> VerifyCase:
    """A case from JSON. Raises FileError naming `source` and the field."""
    return _convert(_document(data, source, {CASE_SCHEMA}), VerifyCase, source)


def decode_reproducer(data: bytes, source: str = "reproducer") -> Reproducer:
    """A reproducer from JSON. Raises FileError naming `source` and the field."""
    return _convert(_document(data, source, {REPRODUCER_SCHEMA}), Reproducer, source)


def read_case_file(path: Path) -> VerifyCase | Reproducer:
    """Either kind of case file, told apart by its schema field."""
    source = str(path)
    document = _document(read_bytes(path), source, {CASE_SCHEMA, REPRODUCER_SCHEMA}, keep=True)
    schema = document.pop("schema")
    if schema == CASE_SCHEMA:
        return _convert(document, VerifyCase, source)
    return _convert(document, Reproducer, source)


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, or FileError where it is missing, unreadable or too large."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise FileError(f"{path}: {size} bytes, at most {MAX_BYTES} are accepted")
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error


def parse_json(data: bytes, source: str) -> Any:
    """JSON with duplicate keys, NaN, over-deep nesting and stray bytes refused by name."""
    if len(data) > MAX_BYTES:
        raise FileError(f"{source}: {len(data)} bytes, at most {MAX_BYTES} are accepted")

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise FileError(f"{source}: duplicate key {key!r}")
            found[key] = value
        return found

    def no_constants(name: str) -> Any:
        raise FileError(f"{source}: {name} is not a number that JSON knows")

    try:
        return json.loads(
            data, object_pairs_hook=no_duplicates, parse_constant=no_constants
        )
    except RecursionError as error:
        raise FileError(f"{source}: nested too deeply") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{source}: not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise FileError(
            f"{source}: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except ValueError as error:  # an integer of thousands of digits
        raise FileError(f"{source}: {error}") from error


def _document(
    data: bytes, source: str, schemas: set[str], *, keep: bool = False
) -> dict[str, Any]:
    document = parse_json(data, source)
    if not isinstance(document, dict):
        raise FileError(f"{source}: a JSON object is expected, found {type(document).__name__}")
    schema, version = document.pop("schema", None), document.pop("version", None)
    if schema not in schemas:
        raise FileError(
            f"{source}: schema is {schema!r}; accepted are {', '.join(sorted(schemas))}"
        )
    oldest = min(CONVERTERS, default=VERSION)
    if isinstance(version, bool) or not isinstance(version, int):
        raise FileError(f"{source}: version is {version!r}; a whole number is expected")
    if not oldest <= version <= VERSION:
        raise FileError(
            f"{source}: version is {version}; this treeproof reads {oldest} to {VERSION}"
        )
    for step in range(version, VERSION):
        document = CONVERTERS[step](document)
    return {"schema": schema, **document} if keep else document


def _convert(document: dict[str, Any], kind: type[S], source: str) -> S:
    try:
        return msgspec.convert(document, kind, strict=True)
    except msgspec.ValidationError as error:
        raise FileError(f"{source}: {error}") from error
    except (RecursionError, OverflowError) as error:
        raise FileError(f"{source}: {error}") from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def json_schema() -> dict[str, Any]:
    """JSON Schema of the case and reproducer files."""
    schemas, components = msgspec.json.schema_components(
        [VerifyCase, Reproducer], ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{CASE_SCHEMA} and {REPRODUCER_SCHEMA}, version {VERSION}",
        "anyOf": list(schemas),
        "$defs": components,
    }
