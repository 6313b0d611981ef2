"""After a run: the report files that were asked for, and the word to the CI service."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from treeproof.engine.summary import Run


@contextmanager
def leave_reports(runs: Sequence[Run], folder: Path | None, junit: Path | None) -> Iterator[None]:
    """Write them and say where, once all else is said; and write them, too, where nobody reads that any more
    (`treeproof check ... | head`). Raises FileError where one cannot be written."""
    from treeproof.reports.files import announced, write_reports

    try:
        yield
    finally:
        written = write_reports(runs, folder=folder, junit=junit, environment=os.environ)
    for path in written:
        click.echo(f"wrote {path}")
    for line in announced(runs, os.environ):
        click.echo(line)
