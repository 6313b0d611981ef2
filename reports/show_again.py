"""The commands that show a failure again, from the current folder."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from treeproof.engine.failure_group import FailureGroup
from treeproof.engine.gpus import anywhere
from treeproof.engine.settings import RunSettings
from treeproof.engine.summary import Run

DRAWS = {
    "identities": "--identity",
    "trees": "--trees",
    "prefixes": "--prefix",
    "examples": "--examples",
    "dtype": "--dtype",
    "device": "--device",
    "ledger": "--ledger",
    "launch_timeout": "--launch-timeout",
}
"""Settings that decide what is drawn, checked and told, and their options; beside them seed, profile and
shard, which meta.json holds otherwise, and the time of a soak."""


def replay_command(run: Run, group: FailureGroup) -> str:
    """Is it fixed? The kept failure is replayed; where there is none, its case is reduced; and where that
    is gone, too, all is drawn again."""
    reference = _reference(run, group)
    if group.reproducer is not None:
        by_name = [] if reference == group.backend else ["--backend", reference]
        return _line("replay", from_here(group.reproducer), *by_name, *_timeout(run))
    case = _case_file(run, group)
    if case is not None:
        return _line("reduce", case, "--backend", reference, *_device(run), *_timeout(run))
    return _line(*_drawn_again(run, reference))


def reduce_command(run: Run, group: FailureGroup) -> str:
    """Smaller still; empty where no failure is kept, and reducing its case is what replays it."""
    if group.reproducer is None:
        return ""
    return replay_command(run, group).replace(" replay ", " reduce ", 1)


def trace_command(run: Run, group: FailureGroup) -> str:
    """Its row through the stages; empty where there is no file of its case."""
    kept = group.reproducer
    file = _case_file(run, group) if kept is None else from_here(kept)
    if file is None:
        return ""
    failure = group.failure
    row = ["--request", str(failure.request or 0), "--row", str(failure.row or 0)]
    device = _device(run) if kept is None else []
    return _line("trace", file, *row, "--backend", _reference(run, group), *device)


def from_here(path: Path) -> Path:
    """Relative to the current folder where it lies in it, as one would type it."""
    absolute, here = Path(os.path.abspath(path)), Path.cwd()
    return absolute.relative_to(here) if absolute.is_relative_to(here) else absolute


def _line(*words: str | Path) -> str:
    return shlex.join(["treeproof", *map(str, words)])


def _reference(run: Run, group: FailureGroup) -> str:
    return next(m.reference for m in run.meta.backends if m.name == group.backend)


def _case_file(run: Run, group: FailureGroup) -> Path | None:
    path = run.folder.case_path(group.case)
    return from_here(path) if path.exists() else None


def _device(run: Run) -> list[str]:
    """Of a case; a failure that is kept names its own."""
    device = anywhere(run.meta.device)
    return [] if device == "cpu" else ["--device", device]


def _timeout(run: Run) -> list[str]:
    """What counts as a hang, where that is another time than ever."""
    return _given(run, "launch_timeout", "--launch-timeout")


def _drawn_again(run: Run, reference: str) -> list[str]:
    soak = run.meta.settings.get("endless")
    words = ["fuzz" if soak else "check", reference, "--seed", str(run.meta.seed)]
    if "profile" in run.meta.settings:
        words += ["--profile", run.meta.settings["profile"]]
    for field, option in DRAWS.items():
        # The lengths that shapes are tried at are refused where none are given.
        if field != "prefixes" or run.meta.settings.get("trees"):
            words += _given(run, field, option)
    if run.shard:
        words += ["--shard", run.shard]
    return [*words, *(_given(run, "time_limit", "--time") if soak else [])]


def _given(run: Run, field: str, option: str) -> list[str]:
    """The option with the run's own value, where that is not what stands for it otherwise."""
    default: Any = RunSettings.__dataclass_fields__[field].default
    value = run.meta.settings.get(field, default)
    values = value if isinstance(value, list | tuple) else [value]
    if value is None or list(values) == (
        list(default) if isinstance(default, tuple) else [default]
    ):
        return []
    return [word for one in values for word in (option, _text(one))]


def _text(value: object) -> str:
    """As the command line takes it; of floats, which are seconds, without an exponent."""
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
