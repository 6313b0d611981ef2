"""The folder of one run: everything that is known about it, and all that reports read.

meta.json               what was asked for, with which versions, where
events-<writer>.ndjson  one event a line, one file a writing process
cases/<id>.json         every case, there before it is first launched
inflight/               what each worker is doing this moment
output/                 what backends printed, one file a worker that did
failures/               one reproducer a failure key
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Event
from treeproof.contract.known_failure import KnownFailure
from treeproof.contract.layout import CacheLayout
from treeproof.contract.wire import (
    FileError,
    Reproducer,
    decode_case,
    encode_case,
    encode_reproducer,
    read_bytes,
    write_atomically,
)

EVENTS_VERSION = 1
"""What `meta.json` and events are written as; older ones are read, newer ones are refused."""

MAX_NAME = 100

MAX_LINE = 256 << 20
"""Bytes of one event that are read; no writer writes nearly as many."""

_event_decoder = msgspec.json.Decoder(Event)


@dataclass(frozen=True)
class Place:
    """Where an event stands. Files of events only grow, so there it stays."""

    path: Path
    offset: int

    def read(self) -> Event:
        """The event, from the file. Raises FileError where it is not there any more."""
        for _, event in each_event(self.path, self.offset):
            return event
        raise FileError(f"{self.path}: nothing at byte {self.offset} any more")


@dataclass(frozen=True)
class Damage:
    """Where a file of events does not read, and why."""

    where: str


Placed = tuple[Place, Event]


class BackendMeta(msgspec.Struct, frozen=True, kw_only=True):
    """A backend of the run: the reference it was asked for by, and its registered name."""

    reference: str
    name: str
    stages: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    """Names of the kernels that every launch of its attend must run."""
    cache_layouts: tuple[CacheLayout, ...] = ("NHD",)
    unavailable: str = ""
    """Why it cannot run here, and what to install; empty where it can."""
    source: str = ""
    """Digest of what it is written in, with all that it imports; empty in a run of before there was one."""
    compiled: str = ""
    """Digest of what of it is compiled, which may come out otherwise on each host."""


class RunMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What meta.json holds. `started` is UTC, `device_name` the device in words."""

    started: str
    settings: dict[str, Any]
    seed: int
    device: str
    device_name: str
    backends: tuple[BackendMeta, ...]
    command: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    platform: str = ""
    ledger: tuple[KnownFailure, ...] = ()
    """Known failures, as the run's ledger had them."""
    parts: tuple[str, ...] = ()
    """Names of the runs that were merged into this one."""
    damage: tuple[str, ...] = ()
    """What of these is lost: where their files of events did not read, and shards that are not there."""
    version: int = EVENTS_VERSION
    """Of the events beside it. Fields that are added do not change it; what is said otherwise does."""

    @property
    def identities(self) -> tuple[str, ...]:
        """Columns that were asked for by name; empty where all of them are judged."""
        return tuple(self.settings.get("identities", ()))


class _Version(msgspec.Struct):
    version: int = EVENTS_VERSION


@dataclass(frozen=True)
class RunFolder:
    """Paths and files of one run. Reading raises FileError naming file and line."""

    path: Path

    def create(self, meta: RunMeta) -> None:
        """Make the folder. Raises FileError where it already holds a run."""
        if self.meta_path.exists():
            raise FileError(f"{self.path} already holds a run: name a new folder")
        try:
            self.make()
            write_atomically(self.meta_path, msgspec.json.format(msgspec.json.encode(meta)) + b"\n")
        except OSError as error:
            raise FileError(f"{self.path}: {error.strerror or error}") from error

    def make(self) -> None:
        for folder in ("cases", "inflight", "failures"):
            (self.path / folder).mkdir(parents=True, exist_ok=True)

    @property
    def meta_path(self) -> Path:
        return self.path / "meta.json"

    @property
    def in_flight(self) -> Path:
        return self.path / "inflight"

    def events_path(self, writer: str) -> Path:
        return self.path / f"events-{writer}.ndjson"

    def output(self, writer: str) -> Path:
        """The file for what a writer prints; its folder is made. Raises FileError where it cannot be."""
        path = self.path / "output" / f"{writer}.txt"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"{self.path}: {error.strerror or error}") from error
        return path

    @property
    def printed(self) -> int:
        """Bytes that backends printed."""
        return sum(path.stat().st_size for path in self.path.glob("output/*.txt"))

    def written(self) -> tuple[tuple[str, int], ...]:
        """Each file of events, and its bytes."""
        paths = sorted(self.path.glob("events-*.ndjson"))
        return tuple((path.name, path.stat().st_size) for path in paths)

    def cut(self, written: Iterable[tuple[str, int]]) -> tuple[str, ...]:
        """Files of events that hold less than was written into them, in words."""
        there = dict(self.written())
        return tuple(
            f"{self.path / name}: its end is missing, {there.get(name, 0):,} of {size:,} bytes are there"
            for name, size in written
            if there.get(name, 0) < size
        )

    def case_path(self, case_id: str) -> Path:
        return self.path / "cases" / f"{case_id}.json"

    def reproducer_path(self, backend: str, identity: str, kind: str) -> Path:
        return self.path / "failures" / f"{backend}-{file_name(identity, kind)}"

    def write_case(self, case: VerifyCase) -> None:
        write_atomically(self.case_path(case.id), encode_case(case))

    def read_case(self, case_id: str) -> VerifyCase:
        path = self.case_path(case_id)
        return decode_case(read_bytes(path), str(path))

    def write_reproducer(self, backend: str, reproducer: Reproducer) -> Path:
        key = reproducer.failure
        path = self.reproducer_path(backend, key.identity, key.kind)
        write_atomically(path, encode_reproducer(reproducer))
        return path

    def read_meta(self) -> RunMeta:
        """Raises FileError where the run was written by a treeproof that says things otherwise."""
        return read_meta(self.meta_path)

    def placed_events(self) -> Iterator[Placed | Damage]:
        """The events of all writers one after another, each writer's in its own order and up to a
        damaged line, which is told in its place. One is in memory at a time."""
        for path in sorted(self.path.glob("events-*.ndjson")):
            try:
                for offset, event in each_event(path):
                    yield Place(path, offset), event
            except FileError as error:
                yield Damage(f"{error}; nothing behind it in this file was read")


def read_meta(path: Path) -> RunMeta:
    """Of such a file. Raises FileError where a newer treeproof wrote it, or it does not read."""
    data = read_bytes(path)
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version > EVENTS_VERSION:
            raise FileError(
                f"{path}: version is {version}; this treeproof reads up to {EVENTS_VERSION}"
            )
        return msgspec.json.decode(data, type=RunMeta)
    except msgspec.DecodeError as error:
        raise FileError(f"{path}: {error}") from error


def file_name(identity: str, kind: str) -> str:
    """File name of a reproducer, of characters, and no more of them, than every file system takes."""
    name = re.sub(r"[^a-z0-9.-]+", "-", f"{identity}-{kind}".lower())
    if len(name) > MAX_NAME:
        name = f"{name[:MAX_NAME]}-{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"
    return f"{name}.json"


def append_event(path: Path, event: Event) -> None:
    """Add one line with one write, so that a killed process leaves whole lines behind.

    Raises OSError where the line could not be written whole (a full disk).
    """
    descriptor = open_events(path)
    try:
        write_event(descriptor, path, event)
    finally:
        os.close(descriptor)


def open_events(path: Path) -> int:
    """The descriptor of a file of events."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)


def write_event(descriptor: int, path: Path, event: Event) -> None:
    """As `append_event`, where a process may have no file left that it could open."""
    line = encode_event(event)
    written = os.write(descriptor, line)
    if written != len(line):
        raise OSError(f"{path}: {written} of {len(line)} bytes written; is the disk full?")


def encode_event(event: Event) -> bytes:
    """One line. What no file can hold of a backend's words, lone surrogates, is written as an escape."""
    try:
        return msgspec.json.encode(event) + b"\n"
    except UnicodeEncodeError:
        return msgspec.json.encode(_writable(msgspec.to_builtins(event))) + b"\n"


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_writable(key): _writable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(one) for one in value]
    return value


def read_events(path: Path, offset: int = 0) -> list[Event]:
    """Events of one file from a byte offset on, as `each_event` reads them."""
    return [event for _, event in each_event(path, offset)]


def each_event(path: Path, offset: int = 0) -> Iterator[tuple[int, Event]]:
    """Events of one file from a byte offset on, each with its own; one line is in memory at a time.

    A last line without its line break was torn by the end of its writer and is left out. Any other
    line that does not read raises FileError.
    """
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            while line := stream.readline(MAX_LINE):
                if line.endswith(b"\n"):
                    yield offset, _event(line, path, offset)
                elif len(line) == MAX_LINE:
                    raise FileError(f"{path}: {_line(path, offset)}: more than {MAX_LINE} bytes")
                offset += len(line)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from error


def _event(line: bytes, path: Path, offset: int) -> Event:
    try:
        return _event_decoder.decode(line)
    except msgspec.DecodeError as error:
        raise FileError(f"{path}: {_line(path, offset)}: {error}") from error


def _line(path: Path, offset: int) -> str:
    """The line at a byte offset, by its number."""
    before = 0
    with path.open("rb") as stream:
        while offset > 0 and (part := stream.read(min(offset, 1 << 20))):
            before, offset = before + part.count(b"\n"), offset - len(part)
    return f"line {before + 1}"
