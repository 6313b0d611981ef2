"""Profiles: how much a run draws and how large, and the Hypothesis settings of each."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from treeproof.generate.shapes import GROUPS, SERVED_GROUPS, ShapeGroup
from treeproof.generate.tags import EDGE_ROWS

if TYPE_CHECKING:
    from hypothesis import settings

_PINNED = (1, *EDGE_ROWS)


@dataclass(frozen=True)
class Profile:
    """Sizes of one kind of run. Lengths are in keys, rows in verify rows."""

    name: str
    cases: int
    """Distinct cases of a run, unless it is told otherwise."""
    groups: tuple[ShapeGroup, ...]
    rows: int
    """Rows drawn for a request, at most; `pinned_rows` go beyond."""
    rows_together: int
    """Rows of a batch, at most, unless its first request alone has more."""
    pinned_rows: tuple[int, ...]
    """Row counts that the work units guarantee."""
    prefix: int
    """Ordinary prefixes, at most."""
    long_prefix: tuple[int, int]
    context_limits: tuple[int, ...]
    fixed_seed: int | None
    """Run seed where none is given; None: drawn anew for each run."""


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("quick", 216, GROUPS, 64, 64, _PINNED, 160, (512, 1200), (512, 1024), 0),
        Profile("ci", 864, GROUPS, 64, 160, _PINNED, 256, (512, 4096), (1024, 4096), 0),
        Profile(
            "gpu",
            1080,
            (*GROUPS, *SERVED_GROUPS),
            64,
            512,
            (*_PINNED, 256, 512),
            2048,
            (4096, 32_768),
            (4096, 32_768),
            0,
        ),
        Profile(
            "nightly",
            5400,
            (*GROUPS, *SERVED_GROUPS),
            160,
            512,
            (*_PINNED, 255, 256, 257, 512, 1023, 1024),
            1024,
            (2048, 16_384),
            (4096, 32_768),
            None,
        ),
        Profile("soak", 20_000, GROUPS, 64, 128, _PINNED, 4096, (1024, 4096), (1024, 4096), None),
    )
}


def run_seed(profile: str, requested: int | None) -> int:
    """The seed of a run: the one asked for, or the profile's own; nightly and soak draw a new one."""
    if requested is not None:
        return requested
    fixed = PROFILES[profile].fixed_seed
    return secrets.randbits(32) if fixed is None else fixed


def settings_of(profile: str, examples: int | None = None) -> settings:
    """Hypothesis settings of a profile, for `@given` in pytest; `examples` cases if given.

    Built from Hypothesis's own defaults, every field that matters set here: neither a CI
    environment nor a profile that the user has loaded changes what is drawn. No example database,
    and so no `.hypothesis` folder.
    """
    # Not at the top: who only wants a profile's sizes or seed need not wait for Hypothesis.
    from hypothesis import HealthCheck, Phase, Verbosity, settings

    from treeproof.generate.provider import BACKEND

    own = PROFILES[profile]
    return settings(
        settings.get_profile("default"),
        backend=BACKEND,
        max_examples=examples or own.cases,
        derandomize=own.name == "ci",
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=tuple(HealthCheck),
        report_multiple_bugs=True,
        print_blob=False,
        verbosity=Verbosity.normal,
    )
