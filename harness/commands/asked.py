"""What a command line asks for, looked up or refused by name before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from treeproof.config import did_you_mean
from treeproof.contract.case import VerifyCase
from treeproof.contract.registry import BackendError, entry_points
from treeproof.contract.wire import FileError, Reproducer, read_case_file


def require_known(references: Iterable[str]) -> None:
    """Every reference names an installed backend, an existing file, or some module:name.

    Raises BackendError listing what is known.
    """
    known = entry_points()
    for reference in references:
        file, suffix, _ = reference.partition(".py")
        if suffix and not Path(file + suffix).is_file():
            raise BackendError(f"backend file {file + suffix}: no such file")
        if not suffix and ":" not in reference and reference not in known:
            raise BackendError(
                f"no backend named {reference!r}; known are {', '.join(known)}, and any "
                f"path/to/file.py or module:name{_meant(reference, known)}"
            )


def _meant(reference: str, known: Iterable[str]) -> str:
    """A file that is there is meant rather than a name that is alike."""
    for file in (f"{reference}.py", f"{reference.replace('-', '_')}.py"):
        if Path(file).is_file():
            return f"; did you mean {file}?"
    return did_you_mean(reference, known)


def read_case(path: Path) -> tuple[VerifyCase, Reproducer | None]:
    """The case of a case or reproducer file, and the reproducer where it is one."""
    found = read_case_file(path)
    return (found.case, found) if isinstance(found, Reproducer) else (found, None)


def backend_for(path: Path, reproducer: Reproducer | None, given: str | None) -> str:
    """The backend to run a case file on: the one given, else the installed one that it names.

    Raises FileError where the file alone does not say, for a file never makes code be imported.
    """
    if given is not None:
        require_known((given,))
        return given
    if reproducer is None:
        raise FileError(f"{path} is a plain case and names no backend: give --backend NAME|FILE")
    if reproducer.backend not in entry_points():
        raise FileError(
            f"{path} names the backend {reproducer.backend!r}, which is not an installed one, and "
            f"a case file never makes code be imported: give --backend {reproducer.backend}"
        )
    return reproducer.backend


def require_row(case: VerifyCase, request: int, row: int) -> None:
    """The request and its real row are in the case. Raises FileError with what is accepted."""
    if not 0 <= request < len(case.requests):
        raise FileError(
            f"--request {request}: this case has requests 0 to {len(case.requests) - 1}"
        )
    rows = case.requests[request].num_nodes
    if not 0 <= row < rows:
        raise FileError(f"--row {row}: request {request} has rows 0 to {rows - 1}")
