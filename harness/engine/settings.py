"""What a run is asked to do."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from treeproof.contract.failure import COLUMNS
from treeproof.contract.shape import DTYPES
from treeproof.engine.gpus import pins
from treeproof.engine.shards import WHOLE, Shard
from treeproof.generate.profiles import run_seed

PROFILES = ("quick", "ci", "gpu", "nightly", "soak")
MOST_WORKERS = 16
"""Where the number is not given: each worker imports torch of its own, about 400 MB and 2 s."""


class SettingsError(Exception):
    """A run was asked for that cannot be done. A usage error: exit code 2."""


PROFILE_SEED = -1


@dataclass(frozen=True)
class RunSettings:
    """Settings of one run; checked at construction, SettingsError names the field.

    `backends`: references as `registry.load` takes them, at least one. `identities`: none means all
    columns. `seed`: PROFILE_SEED stands for the profile's own, which nightly draws anew; it is resolved
    at construction. `examples`: distinct cases, None for as many as the profile has. `trees`: shape files to check instead of
    drawn cases, at each of `prefixes` keys. `dtype`: every case in this dtype. `workers`: None is
    one a core, or one a GPU; 0 is this process, for debuggers. `time_limit` (seconds): no
    case is started after it. `launch_timeout` (seconds): the longest that one stage of one check
    may take before its worker counts as hung; longer where a launch has more work than an ordinary one. `run_dir`: None is a new folder in `store/runs`.
    `store`: where failures are kept from run to run; None keeps none. `ledger`: a file of known
    failures; None tolerates nothing. `endless`: cases are drawn until `time_limit` or, with
    `fail_fast`, the first failure; those that pass are not kept on disk. `units`: of what is drawn without an end,
    so many units from this one on and no others. `shard`: the part of what is
    drawn that this run checks; saved failures of `store` are all replayed. `sanitize`: failing cases are run
    again under compute-sanitizer. `report_dir`, `junit`: where reports go besides the run's folder.
    """

    backends: tuple[str, ...] = ()
    identities: tuple[str, ...] = ()
    profile: str = "quick"
    seed: int = PROFILE_SEED
    examples: int | None = None
    trees: tuple[Path, ...] = ()
    prefixes: tuple[int, ...] = (0, 1, 63, 1000)
    device: str = "cpu"
    dtype: str | None = None
    workers: int | None = None
    time_limit: float | None = None
    launch_timeout: float = 60.0
    fail_fast: bool = False
    reduce: bool = True
    sanitize: bool = False
    run_dir: Path | None = None
    store: Path | None = Path(".treeproof")
    ledger: Path | None = None
    endless: bool = False
    units: tuple[int, int] | None = None
    shard: Shard = WHOLE
    report_dir: Path | None = None
    junit: Path | None = None

    def __post_init__(self) -> None:
        if not self.backends:
            raise SettingsError("backends is empty: name at least one")
        _one_of("profile", self.profile, PROFILES)
        for identity in self.identities:
            _one_of("identities", identity, COLUMNS)
        if self.dtype is not None:
            _one_of("dtype", self.dtype, DTYPES)
        _one_of("device", self.device_kind, ("cpu", "cuda"))
        if self.seed == PROFILE_SEED:
            object.__setattr__(self, "seed", run_seed(self.profile, None))
        if not 0 <= self.seed < 2**63:
            raise SettingsError(f"seed is {self.seed}: accepted are 0 to 2**63 - 1")
        if self.workers is not None and self.workers < 0:
            raise SettingsError(f"workers is {self.workers}: accepted are 0 and above")
        if self.examples is not None and self.examples < 1:
            raise SettingsError(f"examples is {self.examples}: accepted are 1 and above")
        bounded = self.fail_fast or self.time_limit is not None or self.units is not None
        if self.endless and not bounded:
            raise SettingsError("endless: a time_limit or fail_fast is expected, to end it")
        if self.units is not None and not self.endless:
            raise SettingsError("units: they are those of a run that is endless")
        if self.endless and (self.trees or self.examples is not None):
            raise SettingsError("endless: neither trees nor examples can be given with it")
        for name in ("time_limit", "launch_timeout"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SettingsError(f"{name} is {value}: accepted are seconds above 0")

    @property
    def device_kind(self) -> str:
        """`cpu` or `cuda`, without the index."""
        return self.device.partition(":")[0]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to judge, in the order they are shown."""
        return tuple(c for c in COLUMNS if not self.identities or c in self.identities)

    @property
    def worker_count(self) -> int:
        """Worker processes to start; 0 for none. Raises GpuError where a GPU is not there."""
        if self.workers is not None:
            return self.workers
        if self.device_kind != "cpu":
            return len(pins(self.device))
        return min(cores(), MOST_WORKERS)

    def as_builtins(self) -> dict[str, Any]:
        """The settings as JSON can hold them."""
        plain: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str)
        return plain


def _one_of(field: str, value: str, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise SettingsError(f"{field} is {value!r}: accepted are {', '.join(accepted)}")


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # what a container or taskset leaves to this process
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
