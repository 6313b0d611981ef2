"""One set of run settings for the command line, the configuration file and the pytest plug-in.

The names, what they accept and their defaults stand here once. Precedence: the defaults of
`RunSettings`, then `[tool.treeproof]` in pyproject.toml (or treeproof.toml) of the current folder,
then options.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treeproof.contract.case import DTYPES, MAX_PREFIX
from treeproof.contract.failure import COLUMNS
from treeproof.engine.gpus import DEVICE
from treeproof.engine.settings import PROFILES, RunSettings
from treeproof.engine.shards import Shard

FILES = ("pyproject.toml", "treeproof.toml")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


class ConfigError(Exception):
    """A setting that cannot be used; the message names where it stands and what is accepted."""


@dataclass(frozen=True)
class Setting:
    """One setting: `key` is its name in a file and, after two dashes, its option."""

    key: str
    field: str
    """The `RunSettings` field it fills."""
    read: Callable[[object], Any]
    """From TOML or from text to the field's value; raises ValueError saying what is accepted."""
    metavar: str
    help: str
    many: bool = False
    """A list in a file; the option may be given again and again."""


def _choice(*accepted: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in accepted:
            raise ValueError(f"accepted are {', '.join(accepted)}{did_you_mean(value, accepted)}")
        return str(value)

    return read


def _whole(least: int, most: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        text = str(value)
        if isinstance(value, bool) or not re.fullmatch(r"-?\d{1,20}", text, re.ASCII):
            raise ValueError(f"accepted are whole numbers from {least} to {most}")
        if not least <= int(text) <= most:
            raise ValueError(f"accepted are {least} to {most}")
        return int(text)

    return read


def _duration(value: object) -> float:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smh]?)", str(value), re.ASCII)
    if isinstance(value, bool) or match is None or float(match[1]) == 0:
        raise ValueError("accepted are times above 0 such as 90, 90s, 30m and 1.5h")
    return float(match[1]) * _UNITS[match[2]]


def _device(value: object) -> str:
    found = value if isinstance(value, str) else ""
    if found not in ("cpu", "cuda") and not all(map(DEVICE.fullmatch, found.split(","))):
        raise ValueError(
            "accepted are cpu, cuda, cuda:0, cuda:1 and so on, cuda:UUID of a GPU or MIG instance, and "
            "several of these such as cuda:0,cuda:2"
        )
    return found


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("accepted is a name or path, not empty")
    return value


def _path(value: object) -> Path:
    return Path(_text(value))


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("accepted are true and false")
    return value


def _list(read: Callable[[object], Any]) -> Callable[[object], tuple[Any, ...]]:
    def read_list(value: object) -> tuple[Any, ...]:
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(dict.fromkeys(read(item) for item in items))

    return read_list


SETTINGS: tuple[Setting, ...] = (
    Setting("backend", "backends", _list(_text), "NAME|FILE", "a backend to check", many=True),
    Setting(
        "identity", "identities", _list(_choice(*COLUMNS)), "NAME",
        f"judge only this column: {', '.join(COLUMNS)}", many=True,
    ),
    Setting("trees", "trees", _list(_path), "FILE", "check the tree shapes of this file", many=True),
    Setting(
        "prefix", "prefixes", _list(_whole(0, MAX_PREFIX)), "LENGTH",
        "prefix length to try the shapes of --trees at", many=True,
    ),
    Setting("examples", "examples", _whole(1, 10**9), "N", "cases to draw for each backend"),
    Setting("seed", "seed", _whole(0, 2**63 - 1), "N", "seed of all that is drawn"),
    Setting(
        "profile", "profile", _choice(*PROFILES), "NAME",
        f"how much is tried: {', '.join(PROFILES)}",
    ),
    Setting("device", "device", _device, "DEVICE", "where backends run: cpu, cuda (all GPUs), or cuda:0,cuda:2"),
    Setting("dtype", "dtype", _choice(*DTYPES), "DTYPE", f"only this: {', '.join(DTYPES)}"),
    Setting("time", "time_limit", _duration, "TIME", "stop drawing after this time: 90s, 30m, 1.5h"),
    Setting("shard", "shard", Shard.read, "I/N", "check part I of N; treeproof merge unites them"),
    Setting("ledger", "ledger", _path, "FILE", "known failures, tolerated until a date"),
    Setting(
        "report", "report_dir", _path, "FOLDER",
        "write report.html, junit.xml, summary.md and badge.json there",
    ),
    Setting("junit", "junit", _path, "FILE", "write JUnit XML there"),
    Setting("run-dir", "run_dir", _path, "FOLDER", "where to write the run's folder"),
    Setting(
        "workers", "workers", _whole(0, 512), "N",
        "worker processes (one a core or a GPU where not given; 0: this process)",
    ),
    Setting(
        "launch-timeout", "launch_timeout", _duration, "TIME",
        "a check that runs longer counts as a hang",
    ),
    Setting("fail-fast", "fail_fast", _flag, "", "stop at the first failure"),
    Setting("reduce", "reduce", _flag, "", "look for the smallest failing case"),
    Setting(
        "sanitize", "sanitize", _flag, "",
        "run failing cases again under NVIDIA's compute-sanitizer, which names kernel and address",
    ),
)  # fmt: skip
_BY_KEY = {setting.key: setting for setting in SETTINGS}


def did_you_mean(value: object, accepted: Iterable[str]) -> str:
    """`; did you mean X?` where something accepted looks like the value, else nothing."""
    close = difflib.get_close_matches(str(value), list(accepted), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def read_value(key: str, value: object, where: str) -> dict[str, Any]:
    """One setting as {field: value}. `where` is what the user wrote it as, for the message."""
    setting = _BY_KEY[key]
    try:
        return {setting.field: setting.read(value)}
    except ValueError as error:
        raise ConfigError(f"{where} is {value!r}: {error}") from None


def read_folder(folder: Path) -> dict[str, Any]:
    """The fields that the folder's configuration file sets; nothing where there is no such file.

    Raises ConfigError naming the file and the key.
    """
    found = [(folder / name, _table(folder / name)) for name in FILES]
    given = [(path, table) for path, table in found if table is not None]
    if len(given) > 1:
        raise ConfigError(
            f"{folder / FILES[0]} has a [tool.treeproof] table and {FILES[1]} is there too: keep one"
        )
    fields: dict[str, Any] = {}
    for path, table in given:
        for key, value in table.items():
            if key not in _BY_KEY:
                raise ConfigError(
                    f"{path}: unknown key {key!r}; accepted are {', '.join(_BY_KEY)}"
                    f"{did_you_mean(key, _BY_KEY)}"
                )
            fields |= read_value(key, value, f"{path}: {key}")
        if "ledger" in fields:
            fields["ledger"] = folder / fields["ledger"]  # it lies beside the file that names it
    return fields


def _table(path: Path) -> Mapping[str, Any] | None:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if path.name == FILES[1]:
        return document
    tool = document.get("tool")
    table = tool.get("treeproof") if isinstance(tool, dict) else None
    if table is None or isinstance(table, dict):
        return table
    raise ConfigError(f"{path}: tool.treeproof is {table!r}: a table is expected")


def run_settings(*layers: Mapping[str, Any], default_backends: tuple[str, ...] = ()) -> RunSettings:
    """Settings from layers of fields, later ones win; `default_backends` where no layer names any."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged |= layer
    merged.setdefault("backends", default_backends)
    return RunSettings(**merged)
