"""A soak in parts: lost ones are run again, kept ones are not, and the union is the soak."""

from __future__ import annotations

import importlib.util
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from test_engine_runner import CHECKER, _fake_checker, backend  # noqa: F401
from test_engine_shards import LEAKS, RIGHT, verdicts, words

from treeproof.contract.registry import BackendError
from treeproof.engine.campaign import UNITS, PartLost, campaign, run_part
from treeproof.engine.own_place import OwnPlace
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings, SettingsError
from treeproof.engine.summary import Run

RAY = importlib.util.find_spec("ray") is not None or "TREEPROOF_REQUIRE_OPTIONAL" in os.environ
needs_ray = pytest.mark.skipif(not RAY, reason="not installed: ray (pip install 'treeproof[ray]')")
PART = UNITS * 9


def soak(*backends: str, **rest: Any) -> RunSettings:
    given = {"profile": "quick", "seed": 11, "endless": True, "workers": 1, "store": None, **rest}
    return RunSettings(backends=backends, units=(0, 0), **given)  # type: ignore[arg-type]


def whole(where: Path, settings: RunSettings, parts: int) -> Run:
    """The same units in a run that is not cut."""
    return run(replace(settings, units=(0, parts * UNITS), run_dir=where), checker=CHECKER)


@dataclass
class Told:
    """A place that runs parts at once, and does to each submission what `does` says of its number."""

    does: dict[int, BaseException] = field(default_factory=dict)
    submitted: list[RunSettings] = field(default_factory=list)
    count: int = 1

    def submit(self, settings: RunSettings, checker: str) -> Future[bytes]:
        error = self.does.get(len(self.submitted))
        self.submitted.append(settings)
        answer: Future[bytes] = Future()
        if isinstance(error, KeyboardInterrupt):
            raise error
        if error is None:
            answer.set_result(run_part(settings, checker))
        else:
            answer.set_exception(error)
        return answer

    def stop(self) -> None: ...


def test_the_union_of_a_campaign_is_the_soak_that_was_not_cut(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    settings = soak(backend("bad", LEAKS), backend("good", RIGHT), reduce=False)
    place = OwnPlace()
    seen: list[Any] = []
    union = campaign(settings, tmp_path / "c", place, seen.append, cases=2 * PART, checker=CHECKER)
    place.stop()
    same = whole(tmp_path / "whole", settings, 2)
    assert len(union.cases) >= PART
    assert verdicts(union) == verdicts(same)
    assert union.exit_code == same.exit_code == 1
    assert len(seen) >= len(union.cases)  # progress is told


def test_a_part_that_is_lost_is_run_again(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    settings = soak(backend("good", RIGHT))
    places = Told({1: PartLost("its machine is gone"), 2: BackendError("no wheel there")})
    union = campaign(settings, tmp_path / "c", places, cases=2 * PART, checker=CHECKER)
    assert len(places.submitted) == 4
    assert verdicts(union) == verdicts(whole(tmp_path / "whole", settings, 2))
    assert union.exit_code == 0


def test_a_part_that_does_not_come_back_is_named_and_is_no_pass(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    gone = {i: PartLost("its machine is gone") for i in (0, 2, 3)}
    union = campaign(
        soak(backend("good", RIGHT)), tmp_path / "c", Told(gone), cases=2 * PART, checker=CHECKER
    )
    assert union.exit_code == 3
    assert "part 0 did not come back: its machine is gone" in words(union)


def test_a_campaign_goes_on_where_it_was_left_off(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    settings = soak(backend("good", RIGHT))
    cut = Told({1: KeyboardInterrupt()})
    first = campaign(settings, tmp_path / "c", cut, cases=3 * PART, checker=CHECKER)
    assert first.exit_code == 3
    assert "interrupted" in words(first)
    rest = Told()
    union = campaign(settings, tmp_path / "c", rest, cases=3 * PART, checker=CHECKER)
    done = {path.name for path in (tmp_path / "c" / "parts").iterdir()}
    assert done == {"000000", "000001", "000002"}
    assert (len(cut.submitted), len(rest.submitted)) == (2, 2)
    assert verdicts(union) == verdicts(whole(tmp_path / "whole", settings, 3))
    assert union.exit_code == 0


def test_a_folder_of_another_campaign_is_refused(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    settings = soak(backend("good", RIGHT))
    campaign(settings, tmp_path / "c", Told(), cases=PART, checker=CHECKER)
    with pytest.raises(SettingsError, match=r"campaign.json is a campaign of seed 11, not 12"):
        campaign(replace(settings, seed=12), tmp_path / "c", Told(), cases=PART, checker=CHECKER)


def test_a_failure_is_reduced_in_the_part_that_found_it_first(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    places = Told()
    places.count = 0.5  # type: ignore[assignment]  # one part ahead
    settings = soak(backend("bad", LEAKS))
    union = campaign(settings, tmp_path / "c", places, cases=3 * PART, checker=CHECKER)
    assert [one.reduce for one in places.submitted] == [True, False, False]
    assert len(union.failures) == 1
    assert union.failures[0].reduced is not None


def test_what_no_part_can_do_ends_the_campaign(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no part"):
        campaign(
            soak("direct-mask"), tmp_path / "c",
            Told({i: PartLost("gone") for i in range(9)}), cases=PART, checker=CHECKER,
        )  # fmt: skip


# --- on Ray -------------------------------------------------------------------------------------


@pytest.fixture
def ray_places(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of this machine, of as many CPUs as are asked for."""
    from treeproof.engine.ray_places import RayPlaces

    monkeypatch.setenv(
        "PYTHONPATH",
        os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
    )
    made: list[RayPlaces] = []

    def places(cpus: int) -> RayPlaces:
        made.append(RayPlaces("local", "cpu", cpus))
        return made[-1]

    yield places
    for one in made:
        one.stop()


def kill_one_worker() -> None:
    """As soon as a part is under way."""
    while True:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                said = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if said.startswith(b"ray::run_part"):
                os.kill(int(process.name), signal.SIGKILL)
                return
        time.sleep(0.05)


@needs_ray
@pytest.mark.parametrize(("parts", "cpus"), [(4, 2), pytest.param(139, 4, marks=pytest.mark.long)])
def test_on_ray_with_a_worker_killed_the_verdicts_are_the_same(
    backend: Any,  # noqa: F811
    ray_places: Any,
    tmp_path: Path,
    parts: int,
    cpus: int,
) -> None:
    settings = soak(backend("bad", LEAKS), backend("good", RIGHT), reduce=False)
    killer = threading.Thread(target=kill_one_worker, daemon=True)
    killer.start()
    union = campaign(
        settings, tmp_path / "c", ray_places(cpus), cases=parts * PART, checker=CHECKER
    )
    killer.join(1)
    assert not killer.is_alive()  # one was killed
    same = whole(tmp_path / "whole", settings, parts)
    assert verdicts(union) == verdicts(same)
    assert union.exit_code == same.exit_code == 1


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "auto"])
def test_an_address_where_no_cluster_is_is_refused_in_words(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from treeproof.engine.ray_places import RayPlaces

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(SettingsError, match=rf"--ray {address}: no cluster answers there"):
        RayPlaces(address, "cpu")


@needs_ray
def test_what_no_part_can_load_ends_a_campaign_on_ray_in_the_same_words(
    ray_places: Any, tmp_path: Path
) -> None:
    with pytest.raises(BackendError, match=r"gone\.py"):
        campaign(soak(str(tmp_path / "gone.py")), tmp_path / "c", ray_places(1), cases=PART)


@needs_ray
def test_a_cluster_without_a_gpu_is_refused_for_a_run_on_one() -> None:
    from treeproof.engine.ray_places import RayPlaces

    with pytest.raises(SettingsError, match="the cluster has no GPU"):
        RayPlaces("local", "cuda", 1)
