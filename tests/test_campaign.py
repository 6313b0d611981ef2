"""A soak in parts: lost ones are run again, kept ones are not, and the union is the soak."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest
from ledger_scene import entry, write_ledger
from test_cli_commands import Run as Cli
from test_cli_commands import run as cli  # noqa: F401
from test_engine_runner import CHECKER, _fake_checker, backend  # noqa: F401
from test_engine_shards import LEAKS, RIGHT, verdicts, words

from treeproof.commands.interrupt import interruptible
from treeproof.contract.registry import BackendError
from treeproof.contract.wire import FileError
from treeproof.engine import campaign_folder, runner
from treeproof.engine.campaign import UNITS, PartLost, campaign, run_part
from treeproof.engine.campaign_folder import under_way
from treeproof.engine.own_place import OwnPlace
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings, SettingsError
from treeproof.engine.shards import Shard
from treeproof.engine.summary import Run
from treeproof.engine.worker import InternalError

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
    """A place that runs parts at once, and does to each submission what `does` says of its number; to the
    run of no cases that comes before them what `first` says."""

    does: dict[int, BaseException] = field(default_factory=dict)
    submitted: list[RunSettings] = field(default_factory=list)
    count: int = 1
    first: BaseException | None = None

    def submit(self, settings: RunSettings, checker: str) -> Future[bytes]:
        error = self.first
        if settings.units != (0, 0):
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
    place = OwnPlace(under_way(tmp_path / "c"))
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
    gone = {i: PartLost("its machine is gone") for i in (0, 1, 2)}
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
    assert first.exit_code == 130
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
    with pytest.raises(
        SettingsError, match=r"campaign.json says otherwise .*: seed \(11 and 12\);"
    ):
        campaign(replace(settings, seed=12), tmp_path / "c", Told(), cases=PART, checker=CHECKER)


def test_a_failure_is_reduced_in_the_part_that_found_it_first(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    places = Told()
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


# --- interrupted --------------------------------------------------------------------------------

ONCE = """
import pathlib
told = pathlib.Path(__file__).with_name("told")
if case.shape.head_dim > 32 and not told.exists():
    return [('visibility', 'reads-sibling')]
"""
"""Fails in the first sitting alone."""
TELLS_IT_TO_END = """
import pathlib
told = pathlib.Path(__file__).with_name("told")
with told.open("a") as stream:
    stream.write("x")
if told.stat().st_size == {after}:
    os.kill(os.getppid(), signal.{signal})
    time.sleep(1)
return []
"""


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """A shell has what it starts in the background ignore SIGINT, and Python leaves that as it is."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(("after", "parts"), [(20, ["000000"]), (100, ["000000", "000001"])])
def test_what_the_part_under_way_has_found_is_in_the_union_of_a_campaign_that_is_told_to_end(
    backend: Any,  # noqa: F811
    tmp_path: Path,
    name: str,
    after: int,
    parts: list[str],
) -> None:
    ends = backend("ends", TELLS_IT_TO_END.format(after=after, signal=name))
    settings = soak(backend("bad", LEAKS), ends, workers=1, reduce=False)
    started = time.monotonic()
    with interruptible():
        union = campaign(
            settings, tmp_path / "c", OwnPlace(under_way(tmp_path / "c")), cases=9 * PART, checker=CHECKER
        )  # fmt: skip
    assert union.exit_code == 130
    assert time.monotonic() - started < 60.0
    assert union.finished is not None
    assert union.finished.reason.startswith("interrupted")
    assert [path.name for path in sorted((tmp_path / "c" / "parts").iterdir())] == parts
    assert after - 3 <= union.completed_checks("ends") <= after + 3
    assert {group.backend for group in union.failures} == {"bad"}
    assert Run.read(tmp_path / "c" / "run").exit_code == 130


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_a_part_that_was_interrupted_is_run_again_and_what_failed_in_it_alone_still_counts(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    ends = backend("ends", TELLS_IT_TO_END.format(after=40, signal="SIGINT"))
    settings = soak(backend("once", ONCE.replace("told", "over") + "return []"), ends, reduce=False)

    def sitting() -> Run:
        place = OwnPlace(under_way(tmp_path / "c"))
        return campaign(settings, tmp_path / "c", place, cases=PART, checker=CHECKER)

    assert sitting().exit_code == 130
    (tmp_path / "over").touch()
    union = sitting()
    assert union.exit_code == 1
    assert [group.key for group in union.failures] == [("once", "visibility", "reads-sibling")]
    assert {c.case for c in union.checks} == {
        c.case for c in whole(tmp_path / "whole", settings, 1).checks
    }
    names = [path.name for path in sorted((tmp_path / "c" / "parts").iterdir())]
    assert names == ["000000", "000000.1"]


def test_a_campaign_that_is_interrupted_before_anything_was_found_says_that_alone(
    tmp_path: Path,
) -> None:
    with pytest.raises(KeyboardInterrupt):
        campaign(soak("direct-mask"), tmp_path / "c", Told(first=KeyboardInterrupt()), cases=PART)
    assert not (tmp_path / "c" / "campaign.json").exists()


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_an_interrupted_part_that_shows_nothing_of_its_own_is_left_out_once_it_was_run_again(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    ends = backend("ends", TELLS_IT_TO_END.format(after=40, signal="SIGINT"))
    settings = soak(backend("bad", LEAKS), ends, reduce=False)
    for code in (130, 1):
        place = OwnPlace(under_way(tmp_path / "c"))
        union = campaign(settings, tmp_path / "c", place, cases=PART, checker=CHECKER)
        assert union.exit_code == code
    assert union.meta.parts == ("000000.1",)
    assert union.finished is not None
    assert union.finished.reason == ""


# --- what cannot be united ----------------------------------------------------------------------


def begun(folder: Path, settings: RunSettings) -> bytes:
    """A campaign of one part; what its union says."""
    campaign(settings, folder, Told(), cases=PART, checker=CHECKER)
    return (folder / "run" / "events-merged.ndjson").read_bytes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "float16"}, r"dtype \(none and float16\)"),
        ({"identities": ("kv",)}, r"identities \(none and kv\)"),
        ({"profile": "ci"}, r"profile \(quick and ci\)"),
        ({"ledger": Path("known.toml")}, r"entry 1 of the ledger \(none and good "),
    ],
)
def test_what_has_no_union_with_the_parts_is_refused_before_anything_is_run(
    backend: Any,  # noqa: F811
    tmp_path: Path,
    change: dict[str, Any],
    said: str,
) -> None:
    write_ledger(tmp_path, entry(backend='"good"'))
    settings = soak(backend("good", RIGHT))
    before = begun(tmp_path / "c", settings)
    places = Told()
    with pytest.raises(
        SettingsError, match=rf"{said}.*; go on as it was begun, or name a new folder"
    ):
        campaign(
            replace(settings, **change), tmp_path / "c", places, cases=2 * PART, checker=CHECKER
        )  # fmt: skip
    assert places.submitted == []
    assert (tmp_path / "c" / "run" / "events-merged.ndjson").read_bytes() == before


def test_another_version_of_treeproof_is_refused_before_anything_is_run(
    backend: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = soak(backend("good", RIGHT))
    monkeypatch.setattr("treeproof.__version__", "1.0")
    begun(tmp_path / "c", settings)
    monkeypatch.setattr("treeproof.__version__", "2.0")
    places = Told()
    with pytest.raises(SettingsError, match=r"treeproof \(1.0 and 2.0\)"):
        campaign(settings, tmp_path / "c", places, cases=2 * PART, checker=CHECKER)
    assert places.submitted == []


def test_a_backend_that_was_mended_since_needs_a_new_folder(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    settings = soak(backend("mine", LEAKS))
    begun(tmp_path / "c", settings)
    backend("mine", RIGHT)
    places = Told()
    with pytest.raises(
        SettingsError, match=r"source of mine \(digest .* and digest .*name a new folder"
    ):
        campaign(settings, tmp_path / "c", places, cases=2 * PART, checker=CHECKER)
    assert places.submitted == []
    assert campaign(settings, tmp_path / "new", places, cases=PART, checker=CHECKER).exit_code == 0


def test_a_backend_that_was_compiled_again_since_needs_one_too(
    backend: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    library = tmp_path / f"built{EXTENSION_SUFFIXES[0]}"
    library.write_bytes(b"one")
    settings = soak(backend("mine", "if case is None:\n    import built\nreturn []"))
    begun(tmp_path / "c", settings)
    library.write_bytes(b"two")
    with pytest.raises(SettingsError, match=r"mine, which is compiled otherwise; .*a new folder"):
        campaign(settings, tmp_path / "c", Told(), cases=2 * PART, checker=CHECKER)


def test_other_backends_are_another_campaign(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    settings = soak(backend("good", RIGHT))
    begun(tmp_path / "c", settings)
    more = replace(settings, backends=(*settings.backends, backend("more", RIGHT)))
    with pytest.raises(SettingsError, match=r"backends \(.*good.py and .*good.py .*more.py\)"):
        campaign(more, tmp_path / "c", Told(), cases=PART, checker=CHECKER)


def test_a_shard_of_a_campaign_is_refused(tmp_path: Path) -> None:
    settings = soak("direct-mask", shard=Shard(1, 4))
    with pytest.raises(SettingsError, match="shard 1/4: a campaign is cut into parts of its own"):
        campaign(settings, tmp_path / "c", Told(), cases=PART)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--shard", "1/4"), "--shard 1/4: a campaign is cut into parts of its own"),
        (("--run-dir", "x"), "--run-dir x: the run of a campaign is FOLDER/run"),
        (("--ray", "local", "--in-process"), "--ray local: its parts are run in other processes"),
        (("--ray", "auto", "-n", "4"), "--workers 4: a cluster has as many as it has"),
        (("--ray", "auto", "--device", "cuda:1"), "--device cuda:1: Ray gives each part its GPU"),
    ],
)
def test_the_command_refuses_what_a_campaign_does_not_take(
    cli: Cli,  # noqa: F811
    given: tuple[str, ...],
    said: str,
) -> None:
    code, _, error = cli("fuzz", "direct-mask", "--campaign", "c", *given)
    assert (code, said in error) == (2, True)
    assert not Path("c").exists()


def test_a_device_that_is_not_there_leaves_the_folder_to_a_campaign_on_another(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    settings = soak(backend("good", RIGHT))
    with pytest.raises((BackendError, SettingsError), match="device cuda"):
        campaign(
            replace(settings, device="cuda:99"), tmp_path / "c", Told(), cases=PART, checker=CHECKER
        )
    assert not (tmp_path / "c" / "campaign.json").exists()
    assert campaign(settings, tmp_path / "c", Told(), cases=PART, checker=CHECKER).exit_code == 0


@dataclass
class Mixed(Told):
    """A place of which some machines have another treeproof: those of the submissions in `odd`."""

    odd: tuple[int, ...] = ()

    def submit(self, settings: RunSettings, checker: str) -> Future[bytes]:
        with pytest.MonkeyPatch.context() as patch:
            if settings.units != (0, 0) and len(self.submitted) in self.odd:
                patch.setattr("treeproof.__version__", "another")
            return super().submit(settings, checker)


def test_a_part_of_a_place_unlike_the_others_is_run_again(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    settings = soak(backend("good", RIGHT))
    places = Mixed(odd=(1, 2))
    union = campaign(settings, tmp_path / "c", places, cases=2 * PART, checker=CHECKER)
    assert len(places.submitted) == 4
    assert verdicts(union) == verdicts(whole(tmp_path / "whole", settings, 2))
    assert union.exit_code == 0


def test_where_no_part_is_like_the_others_any_more_the_campaign_ends_and_says_why(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    places = Mixed(odd=tuple(range(1, 99)))
    settings = soak(backend("good", RIGHT))
    union = campaign(settings, tmp_path / "c", places, cases=90 * PART, checker=CHECKER)
    assert len(places.submitted) == 1 + 3 * 3
    assert (union.exit_code, union.meta.parts) == (3, ("000000",))
    said = " ".join(words(union).split())
    assert "part 1 did not come back" in said
    assert "they differ in treeproof" in said


def test_an_older_campaign_is_told_apart_and_its_parts_can_be_united(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "campaign.json").write_text('{"backends": ["direct-mask"], "seed": 11}')
    with pytest.raises(
        FileError, match=r"name a new folder, or unite .* treeproof merge .*parts/\*"
    ):
        campaign(soak("direct-mask"), tmp_path / "c", Told(), cases=PART, checker=CHECKER)


# --- parts that do not read ---------------------------------------------------------------------


def hurt_meta(part: Path) -> None:
    (part / "meta.json").write_text("{")


def hurt_events(part: Path) -> None:
    (part / "events-run.ndjson").unlink()


@pytest.mark.parametrize("hurt", [hurt_meta, hurt_events])
def test_a_part_that_does_not_read_is_run_again_and_nothing_else_is_lost(
    backend: Any,  # noqa: F811
    tmp_path: Path,
    hurt: Callable[[Path], None],
) -> None:
    settings = soak(backend("good", RIGHT))
    campaign(settings, tmp_path / "c", Told(), cases=2 * PART, checker=CHECKER)
    hurt(tmp_path / "c" / "parts" / "000001")
    places = Told()
    union = campaign(settings, tmp_path / "c", places, cases=3 * PART, checker=CHECKER)
    assert [one.units for one in places.submitted] == [(UNITS, UNITS), (2 * UNITS, UNITS)]
    assert verdicts(union) == verdicts(whole(tmp_path / "whole", settings, 3))
    assert union.exit_code == 0
    assert (hurt is hurt_meta) == ("part 1 does not read, and was run again" in words(union))


def test_a_part_that_does_not_read_and_is_not_run_again_is_no_pass(
    backend: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    settings = soak(backend("good", RIGHT))
    campaign(settings, tmp_path / "c", Told(), cases=2 * PART, checker=CHECKER)
    hurt_meta(tmp_path / "c" / "parts" / "000001")
    gone = Told({i: PartLost("its machine is gone") for i in range(9)})
    union = campaign(settings, tmp_path / "c", gone, cases=2 * PART, checker=CHECKER)
    assert (union.exit_code, union.meta.parts) == (3, ("000000",))
    assert "part 1 does not read" in words(union)


def fails_of_itself(self: object, supply: object) -> str:
    raise InternalError("disk full")


def test_a_part_in_which_treeproof_itself_failed_is_run_again_by_the_next_sitting(
    backend: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = soak(backend("good", RIGHT))
    with monkeypatch.context() as patch:
        patch.setattr(runner._Session, "_check_all", fails_of_itself)
        first = campaign(settings, tmp_path / "c", Told(), cases=PART, checker=CHECKER)
    assert first.exit_code == 4
    union = campaign(settings, tmp_path / "c", Told(), cases=PART, checker=CHECKER)
    assert (union.exit_code, union.meta.parts) == (0, ("000000.1",))


# --- nothing is left or lost on the way ---------------------------------------------------------


def test_the_last_union_stands_until_the_next_is_complete(
    backend: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = soak(backend("good", RIGHT))
    before = begun(tmp_path / "c", settings)
    real = campaign_folder.merge

    def cut(*runs: Any, **rest: Any) -> Any:
        real(*runs, **rest)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(campaign_folder, "merge", cut)
        with pytest.raises(KeyboardInterrupt):
            campaign(settings, tmp_path / "c", Told(), cases=2 * PART, checker=CHECKER)
    assert (tmp_path / "c" / "run" / "events-merged.ndjson").read_bytes() == before
    union = campaign(settings, tmp_path / "c", Told(), cases=2 * PART, checker=CHECKER)
    assert union.meta.parts == ("000000", "000001")
    assert union.meta.settings["run_dir"] == str(tmp_path / "c" / "run")
    assert not under_way(tmp_path / "c").exists()


def test_a_campaign_that_is_killed_leaves_nothing_outside_its_folder_and_the_next_start_cleans_that(
    backend: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    slow = backend("slow", "time.sleep(0.2)\nreturn []")
    words = ["fuzz", slow, "--campaign", "c", "--time", "60s", "--seed", "11", "-n", "1"]
    code = f"from treeproof.cli import main; main({words!r})"
    process = subprocess.Popen([sys.executable, "-c", code])
    ends = time.monotonic() + 60
    while not list(Path("c").glob("under-way/treeproof-part-*/run/events-run.ndjson")):
        assert time.monotonic() < ends
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert not list((tmp_path / "temporary").glob("treeproof-part-*"))
    (left,) = under_way(Path("c")).iterdir()
    with campaign_folder.CampaignFolder.opened(Path("c")):
        assert not left.exists()


def test_two_at_one_campaign_are_refused(tmp_path: Path) -> None:
    with (
        campaign_folder.CampaignFolder.opened(tmp_path / "c"),
        pytest.raises(SettingsError, match="another treeproof is at this campaign"),
    ):
        campaign(soak("direct-mask"), tmp_path / "c", Told(), cases=PART, checker=CHECKER)


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


@needs_ray
def test_a_campaign_on_ray_is_told_to_end_as_any_other(ray_places: Any) -> None:
    def told() -> None:
        ray_places(1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    with interruptible(), pytest.raises(KeyboardInterrupt):
        told()
