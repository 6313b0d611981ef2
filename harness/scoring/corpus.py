"""The corpus: the reduced case of every fault, kept as a file, failing with it and passing without."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from treeproof.contract.failure import COLUMNS, PROBES
from treeproof.contract.json_text import FileError
from treeproof.contract.registry import load
from treeproof.contract.wire import (
    FailureKey,
    Reproducer,
    encode_reproducer,
    read_case_file,
    write_atomically,
)
from treeproof.engine.check import CheckOptions, check_case
from treeproof.faults.catalog import exactly
from treeproof.faults.fault import Fault
from treeproof.scoring.asking import asking
from treeproof.scoring.kill import catches
from treeproof.scoring.pairs import Pair
from treeproof.scoring.result import Kill


@dataclass(frozen=True)
class Kept:
    """One file of the corpus: `FAULT.json`, a reproducer on the backend it was found in."""

    path: Path
    fault: Fault
    reproducer: Reproducer


@dataclass(frozen=True)
class Replayed:
    """Whether the case fails with the fault, and what it fails of without."""

    kept: Kept
    caught: bool
    false_alarms: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return self.caught and not self.false_alarms


def keep(kill: Kill, folder: Path) -> Path:
    """Write the smallest case of a killed fault; returns its path."""
    assert kill.case is not None
    reproducer = Reproducer(
        case=kill.case,
        backend=kill.backend,
        failure=FailureKey(identity=kill.identity, kind=kill.kind),
        message=exactly(kill.fault).says,
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kill.fault}.json"
    write_atomically(path, encode_reproducer(reproducer))
    return path


def read_corpus(folder: Path) -> Iterator[Kept]:
    """Every file of the corpus. Raises FileError naming the file, UnknownFault for a strange name."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise FileError(f"{folder} holds no FAULT.json")
    for path in paths:
        found = read_case_file(path)
        if not isinstance(found, Reproducer):
            raise FileError(f"{path} is a plain case: a corpus holds reproducers")
        yield Kept(path, exactly(path.stem), found)


def replay(kept: Kept) -> Replayed:
    """The case on the backend with the fault, and without."""
    case, backend = kept.reproducer.case, kept.reproducer.backend
    right = load(backend)
    with asking(Pair(kept.fault, backend), kept.fault.into(right)) as ask:
        caught = catches(kept.fault, ask(case, frozenset(COLUMNS), frozenset(PROBES)))
    sound = check_case(case, right, CheckOptions())
    return Replayed(kept, caught is not None, tuple(f.message for f in sound.failures))
