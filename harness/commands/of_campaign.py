"""What `treeproof fuzz --campaign` asks for beside a soak."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeproof.config import ConfigError, read_value
from treeproof.contract.event import Event
from treeproof.engine.settings import RunSettings
from treeproof.engine.shards import WHOLE

if TYPE_CHECKING:
    from treeproof.engine.campaign import Places
    from treeproof.engine.summary import Run


def require_campaign(options: Mapping[str, Any]) -> None:
    """Raises ConfigError where something was given that only a campaign takes."""
    for name in ("ray", "examples"):
        if options[name] is not None:
            raise ConfigError(f"--{name} {options[name]}: give --campaign FOLDER with it")


def require_no_other(settings: RunSettings, options: Mapping[str, Any]) -> None:
    """Raises ConfigError where something was given that a campaign does not take."""
    if settings.sanitize:
        raise ConfigError(
            "--campaign: replay what it finds with --sanitize, which it cannot itself"
        )
    if options["run_dir"] is not None:
        raise ConfigError(
            f"--run-dir {options['run_dir']}: the run of a campaign is FOLDER/run: give one of them"
        )
    if settings.shard != WHOLE:
        raise ConfigError(
            f"--shard {settings.shard}: a campaign is cut into parts of its own: give one of them"
        )
    if options["ray"] is not None:
        _require_what_ray_can(settings, options["ray"], options["workers"])


def _require_what_ray_can(settings: RunSettings, address: str, workers: str | None) -> None:
    """Places of a cluster are what it has; of one that is made for the campaign, as many as are asked for."""
    if settings.workers == 0:
        raise ConfigError(f"--ray {address}: its parts are run in other processes than this one")
    if workers is not None and address != "local":
        raise ConfigError(
            f"--workers {workers}: a cluster has as many as it has; give it with --ray local"
        )
    if settings.device != settings.device_kind:
        raise ConfigError(
            f"--device {settings.device}: Ray gives each part its GPU; accepted with --ray are cpu and cuda"
        )


def run_campaign(
    settings: RunSettings,
    folder: Path,
    options: Mapping[str, Any],
    on_event: Callable[[Event], None],
) -> Run:
    """`settings` are those of a soak, `options` the command line's."""
    from treeproof.engine.campaign import campaign, units_of

    cases = options["examples"]
    if cases is not None:
        cases = int(read_value("examples", cases, "--examples")["examples"])
        if options["time_limit"] is None:
            settings = replace(settings, time_limit=None, units=units_of(cases))
    places = _places(settings, folder, options["ray"])
    try:
        return campaign(settings, folder, places, on_event, cases=cases)
    finally:
        places.stop()


def seeded(settings: RunSettings, folder: Path, options: Mapping[str, Any]) -> RunSettings:
    """With the seed of the campaign that the folder holds, where none is given."""
    from treeproof.engine.campaign_folder import seed_of

    known = seed_of(folder) if options["seed"] is None else None
    return settings if known is None else replace(settings, seed=known)


def _places(settings: RunSettings, folder: Path, address: str | None) -> Places:
    if address is None:
        from treeproof.engine.campaign_folder import under_way
        from treeproof.engine.own_place import OwnPlace

        return OwnPlace(under_way(folder))
    from treeproof.engine.ray_places import RayPlaces

    return RayPlaces(address, settings.device_kind, settings.workers)
