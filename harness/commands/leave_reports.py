"""After a run: the report files that were asked for, and the word to the CI service."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from treeproof.engine.summary import Run


def leave_reports(runs: Sequence[Run], folder: Path | None, junit: Path | None) -> None:
    """Write them and say where. Raises FileError where one cannot be written."""
    from treeproof.reports.files import announced, write_reports

    for path in write_reports(runs, folder=folder, junit=junit, environment=os.environ):
        click.echo(f"wrote {path}")
    for line in announced(runs, os.environ):
        click.echo(line)
