"""The run folder under torn, corrupt and short writes."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from treeproof.contract.event import CaseDrawn, Event, Finished, WorkerLost
from treeproof.contract.wire import FileError
from treeproof.engine.in_flight import InFlight, InFlightFile, read_in_flight
from treeproof.engine.run_folder import RunFolder, RunMeta, append_event, read_events
from treeproof.engine.summary import Run

FIRST = WorkerLost(case="a", backend="b", how="crash", detail="line\nbreak — ü")
SECOND = Finished(exit_code=1, seconds=2.5)


def make_meta() -> RunMeta:
    return RunMeta(
        started="2026-01-01T00:00:00+00:00",
        settings={"identities": ["kv"]},
        seed=3,
        device="cpu",
        device_name="a processor",
        backends=(),
    )


def written(path: Path, *events: Event) -> Path:
    for event in events:
        append_event(path, event)
    return path


def test_events_and_meta_read_back_as_they_were_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create(make_meta())
    written(folder.events_path("w0-1"), FIRST)
    written(folder.events_path("run"), SECOND)
    run = Run.read(folder.path)
    assert (set(run.events), run.damage) == ({FIRST, SECOND}, ())
    assert folder.read_meta() == make_meta()
    with pytest.raises(FileError, match="already holds a run"):
        folder.create(make_meta())


@pytest.mark.parametrize("cut", [1, 2, 20])
def test_a_torn_last_line_is_left_out(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path / "events-w0.ndjson", FIRST, SECOND)
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_events(path) == [FIRST]


def test_a_corrupt_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = written(tmp_path / "events-w0.ndjson", FIRST, SECOND, FIRST)
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1][:-4]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(FileError, match=r"events-w0\.ndjson: line 2: "):
        read_events(path)
    with pytest.raises(FileError, match=r"events-w0\.ndjson: line 2: "):
        read_events(path, offset=len(lines[0]) + 1)


def test_what_stands_before_a_damaged_line_is_read_and_the_damage_is_told(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.create(make_meta())
    path = written(folder.events_path("w0"), FIRST, SECOND, FIRST)
    lines = path.read_bytes().split(b"\n")
    lines[1] = b"\xff" * len(lines[1])
    path.write_bytes(b"\n".join(lines))
    clean = Finished(exit_code=0, seconds=1.0)
    written(folder.events_path("w1"), clean)
    run = Run.read(tmp_path)
    (damage,) = run.damage
    assert list(run.events) == [FIRST, clean]
    assert damage.startswith(f"{path}: line 2: ")
    assert run.exit_code == 3
    assert damage in run.missing


@pytest.mark.parametrize("left", [0, 30, -1, None])
def test_a_file_that_was_cut_after_the_run_is_told_and_never_clean(
    tmp_path: Path, left: int | None
) -> None:
    folder = RunFolder(tmp_path)
    folder.create(make_meta())
    path = written(folder.events_path("w0"), FIRST, SECOND)
    size = path.stat().st_size
    written(folder.events_path("w1"), Finished(exit_code=0, seconds=1.0, written=folder.written()))
    assert Run.read(tmp_path).damage == ()
    kept = b"" if left is None else path.read_bytes()[:left]
    path.write_bytes(kept)
    if left is None:
        path.unlink()
    run = Run.read(tmp_path)
    (damage,) = run.damage
    assert damage == f"{path}: its end is missing, {len(kept)} of {size:,} bytes are there"
    assert damage in run.missing
    assert run.exit_code == 3


def test_a_run_of_a_newer_version_is_refused_and_the_version_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.create(msgspec.structs.replace(make_meta(), version=2))
    with pytest.raises(FileError, match=r"meta\.json: version is 2; this treeproof reads up to 1"):
        folder.read_meta()


def test_fields_of_a_newer_version_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events-w0.ndjson"
    path.write_text('{"type":"finished","exit_code":0,"seconds":1,"colour":"green"}\n')
    assert read_events(path) == [Finished(exit_code=0, seconds=1.0)]


def test_a_line_goes_out_in_one_write_and_a_short_one_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    write = os.write

    def counted(descriptor: int, data: bytes) -> int:
        sizes.append(len(data))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", counted)
    path = written(
        tmp_path / "e", CaseDrawn(case="c", unit="u", tags=(), rows=(1,) * 9999, prefixes=())
    )
    assert sizes == [path.stat().st_size]
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
    with pytest.raises(OSError, match=r"5 of \d+ bytes written"):
        append_event(tmp_path / "short", FIRST)


def test_reproducer_names_hold_no_surprises(tmp_path: Path) -> None:
    path = RunFolder(tmp_path).reproducer_path("mine", "kv", "../Über all\\x")
    assert path == tmp_path / "failures" / "mine-kv-..-ber-all-x.json"


def test_the_record_of_a_task_is_rewritten_in_place(tmp_path: Path) -> None:
    record = InFlight(task=4, pid=1, case="c", events="e", offset=9)
    file = InFlightFile(tmp_path, record)
    file.update("a-long-backend-name", "a-long-stage-name")
    assert read_in_flight(tmp_path, 4) == InFlight(
        task=4, pid=1, case="c", events="e", offset=9,
        backend="a-long-backend-name", stage="a-long-stage-name",
    )  # fmt: skip
    file.update("b", "")
    assert read_in_flight(tmp_path, 4) == InFlight(
        task=4, pid=1, case="c", events="e", offset=9, backend="b"
    )
    file.close()
    assert read_in_flight(tmp_path, 4) is None
