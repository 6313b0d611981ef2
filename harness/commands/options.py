"""The options that commands share, made from the one list of settings."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from treeproof.config import SETTINGS, ConfigError, Setting, read_folder, read_value, run_settings
from treeproof.contract.wire import Reproducer
from treeproof.engine.settings import PROFILE_SEED, RunSettings

SOAK_SECONDS = 1800.0
"""How long a soak goes on where nothing else is said."""

PATH = click.Path(path_type=Path)
CASE_FILE = click.argument("case_file", metavar="CASE.json", type=PATH)
BACKEND = click.option("--backend", metavar="NAME|FILE", help="The backend to check the case on.")

F = TypeVar("F", bound=Callable[..., Any])


def run_options(*keys: str, in_process: bool = True) -> Callable[[F], F]:
    """Settings of a run as options of a click command: all of them, or those of these keys.

    Defaults are said where all are: a command that takes a few may have others. `in_process`: it runs
    backends, and may do so in its own process.
    """

    def decorate(command: F) -> F:
        if in_process:
            command = click.option(
                "--in-process", is_flag=True, help="Check in this process, for debuggers; as -n 0."
            )(command)
        for setting in reversed(SETTINGS):
            if not keys or setting.key in keys:
                command = _option(setting, "" if keys else _default(setting))(command)
        return command

    return decorate


def _option(setting: Setting, default: str) -> Callable[[F], F]:
    name = f"--{setting.key}"
    text = f"{setting.help[0].upper()}{setting.help[1:]}.{default}"
    if setting.key == "fail-fast":
        return click.option("-x", name, setting.field, is_flag=True, default=None, help=text)
    if setting.key == "reduce":
        text = "Keep failing cases as they were drawn instead of looking for the smallest."
        return click.option("--no-reduce", setting.field, flag_value=False, default=None, help=text)
    if setting.key == "sanitize":
        return click.option(name, setting.field, is_flag=True, default=None, help=text)
    names = ("-n", name) if setting.key == "workers" else (name,)
    return click.option(
        *names, setting.field, metavar=setting.metavar, multiple=setting.many, help=text
    )


def _default(setting: Setting) -> str:
    """The default in words, where saying it helps."""
    value: Any = RunSettings.__dataclass_fields__[setting.field].default
    if setting.many:
        repeat = " Repeatable."
        return f" Default {' '.join(map(str, value))}.{repeat}" if value else repeat
    if setting.field == "launch_timeout":
        return f" Default {value:g}s."
    if value == PROFILE_SEED:
        return " Default 0; nightly and soak draw one anew."
    return "" if value is None or isinstance(value, bool) else f" Default {value}."


def settings_from(
    options: Mapping[str, Any],
    positional: tuple[str, ...] = (),
    default_backends: tuple[str, ...] = (),
) -> RunSettings:
    """Run settings of one command line, over those of the current folder's configuration file.

    Raises ConfigError naming the option or the file and key.
    """
    given = given_settings(options)
    if options.get("in_process"):
        if given.get("workers"):
            raise ConfigError(f"--in-process and --workers {given['workers']}: give one of them")
        given["workers"] = 0
    if positional:
        given["backends"] = tuple(dict.fromkeys((*positional, *given.get("backends", ()))))
    settings = run_settings(read_folder(Path()), given, default_backends=default_backends)
    if "prefixes" in given and not settings.trees:
        raise ConfigError("--prefix is the length that shapes of --trees are tried at: give these")
    return settings


def given_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """What a command line itself sets, by field. Raises ConfigError naming the option."""
    given: dict[str, Any] = {}
    for setting in SETTINGS:
        value = options.get(setting.field)
        if value is None or value == ():
            continue
        name = "--no-reduce" if setting.key == "reduce" else f"--{setting.key}"
        given |= _one(setting, value, name)
    return given


def settings_of_case(
    options: Mapping[str, Any], reference: str, reproducer: Reproducer | None
) -> RunSettings:
    """Settings for one case on one backend, on the device that it failed on unless one is given.

    Where to write comes from the command line alone: in a configuration file it is the place of a
    gate's run and reports, which stay as they are. So does whether to sanitize, which a CPU cannot.
    """
    settings, given = settings_from(options, (reference,)), given_settings(options)
    return replace(
        settings,
        device=given.get("device", settings.device if reproducer is None else reproducer.device),
        report_dir=given.get("report_dir"),
        junit=given.get("junit"),
        run_dir=given.get("run_dir"),
        sanitize=given.get("sanitize", False),
    )


def soak_settings(
    options: Mapping[str, Any], positional: tuple[str, ...], default_backends: tuple[str, ...]
) -> RunSettings:
    """Settings of a run that draws until its time is over, new cases each time.

    Profile, seed and time come from the command line alone: in a configuration file they are those
    of a gate, which draws the same cases again and ends soon.
    """
    settings = settings_from(options, positional, default_backends)
    given = {name for name in ("profile", "seed", "time_limit") if options.get(name) is not None}
    return replace(
        settings,
        profile=settings.profile if "profile" in given else "soak",
        seed=settings.seed if "seed" in given else secrets.randbits(32),
        time_limit=settings.time_limit if "time_limit" in given else SOAK_SECONDS,
        trees=(),
        examples=None,
        endless=True,
    )


def _one(setting: Setting, value: Any, name: str) -> dict[str, Any]:
    if not setting.many:
        return read_value(setting.key, value, name)
    merged: tuple[Any, ...] = ()
    for item in value:
        merged += read_value(setting.key, item, name)[setting.field]
    return {setting.field: tuple(dict.fromkeys(merged))}
