"""A whole run from Python: `treeproof.check`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from treeproof.contract.registry import entry_points, registered
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings, SettingsError
from treeproof.engine.shards import Shard
from treeproof.engine.summary import Run
from treeproof.reports.files import write_reports


class RunOptions(TypedDict, total=False):
    """The fields of `RunSettings`, whose defaults stand where one is not given."""

    identities: str | Sequence[str]
    profile: str
    seed: int
    examples: int | None
    trees: str | Path | Sequence[str | Path]
    prefixes: int | Sequence[int]
    device: str
    dtype: str | None
    workers: int | None
    time_limit: float | None
    launch_timeout: float
    fail_fast: bool
    reduce: bool
    sanitize: bool
    run_dir: str | Path | None
    store: str | Path | None
    ledger: str | Path | None
    endless: bool
    units: tuple[int, int] | None
    shard: Shard
    report_dir: str | Path | None
    junit: str | Path | None


def check(*backends: str | Path, **options: Unpack[RunOptions]) -> Run:
    """Check backends as `treeproof check` does, and return what was found. Prints nothing; reports are
    written where `report_dir` and `junit` say.

    `backends` are names of installed backends, `module:name`, files, or names registered in this
    very process, a notebook's cell for instance; those are checked in this process (`workers=0`),
    all others in processes of their own, in which a crash or a hang is a finding. A script needs no
    `if __name__ == "__main__"` for that. Options are the fields of `RunSettings`; configuration
    files are not read.

    Raises ValueError where an option cannot be used, BackendError where a backend is not there or
    fails on import. Backends that cannot run here are in `Run.unavailable`, and `Run.exit_code` is
    3 then, as for the command.
    """
    unknown = sorted(set(options) - set(RunOptions.__annotations__))
    if unknown:
        known = list(RunOptions.__annotations__)
        close = difflib.get_close_matches(unknown[0], known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise TypeError(f"check() takes no {unknown[0]}; accepted are {', '.join(known)}{hint}")
    references = tuple(map(str, backends))
    only_here = [name for name in references if registered(name) and name not in entry_points()]
    if only_here:
        workers = options.setdefault("workers", 0)
        if workers != 0:
            raise ValueError(
                f"workers is {workers}: {', '.join(only_here)} is registered in this process only, "
                "where 0 workers are accepted; a file of its own can be checked by any number"
            )
    try:
        settings = RunSettings(backends=references, **_plain(options))
        found = run(settings)
        write_reports([found], folder=settings.report_dir, junit=settings.junit)
        return found
    except SettingsError as error:
        raise ValueError(str(error)) from None


def _plain(options: RunOptions) -> dict[str, Any]:
    """The options as `RunSettings` holds them: tuples, and paths."""
    fields: dict[str, Any] = dict(options)
    for name in ("identities", "trees", "prefixes"):
        value = fields.get(name)
        if value is not None:
            fields[name] = tuple(value) if isinstance(value, list | tuple) else (value,)
    if "trees" in fields:
        fields["trees"] = tuple(map(Path, fields["trees"]))
    for name in ("run_dir", "store", "ledger", "report_dir", "junit"):
        if fields.get(name) is not None:
            fields[name] = Path(fields[name])
    return fields
