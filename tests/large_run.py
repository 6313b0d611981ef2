"""Run folders of any size: five backends, one of them wrong, with the evidence of every failure."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
from report_runs import checked, leak, star

from treeproof.contract.event import CaseDrawn, Checked, Event, Finished
from treeproof.contract.failure import COLUMNS, Cell, Recovered
from treeproof.engine.run_folder import BackendMeta, RunFolder, RunMeta
from treeproof.generate.tags import EVENT_CLASSES

RIGHT = ("a", "b", "c", "d")
WRONG = "wrong"


def large_run(folder: Path, size: int, *, failing: float = 0.2) -> int:
    """Events of about `size` bytes; in a share of `failing` of the cases one backend is wrong. Returns
    the number of cases."""
    draw = random.Random(3)
    run = RunFolder(folder)
    run.create(
        RunMeta(
            started="2026-01-01T00:00:00+00:00", settings={"profile": "soak"}, seed=1, device="cpu",
            device_name="a processor",
            backends=tuple(BackendMeta(reference=name, name=name) for name in (*RIGHT, WRONG)),
        )
    )  # fmt: skip
    case = star()
    run.write_case(case)
    passing = checked(case, "a")
    cells = (
        *passing.cells,
        *(
            Cell(identity=c, evidence="declared", status="pass", stage="build")
            for c in COLUMNS
        ),
    )  # fmt: skip
    written = number = 0
    with run.events_path("w0").open("wb") as stream:
        while written < size:
            number += 1
            name = case.id if number == 1 else f"{draw.getrandbits(80):020x}"
            rows = draw.randint(8, 64)
            events: list[Event] = [
                CaseDrawn(
                    case=name, unit=f"soak-{number // 16}", tags=tuple(draw.sample(EVENT_CLASSES, 22)),
                    rows=(rows,), prefixes=(draw.randrange(4096),), trees=(name[:12],), seconds=0.01,
                )
            ]  # fmt: skip
            wrong = draw.random() < failing
            for backend in (*RIGHT, WRONG):
                seconds = {part: draw.random() for part in ("oracle", "build", "backend", "probe")}
                verdict = msgspec.structs.replace(
                    passing, case=name, backend=backend, cells=cells, seconds=seconds,
                    margin=draw.random(), margin_rest=draw.random(),
                )  # fmt: skip
                if wrong and backend == WRONG:
                    verdict = _failing(verdict, rows)
                events.append(verdict)
            written += stream.write(b"".join(msgspec.json.encode(e) + b"\n" for e in events))
        stream.write(msgspec.json.encode(Finished(exit_code=1, seconds=1.0)) + b"\n")
    return number


def _failing(verdict: Checked, rows: int) -> Checked:
    leaks = tuple(
        msgspec.structs.replace(leak(f"row {row} reads row {other}, which is no ancestor"), row=row, column=other)
        for row in range(rows) for other in range(1, 8)
    )  # fmt: skip
    recovered = tuple(
        Recovered(identity="visibility", evidence=evidence, what="parents", values=(tuple(range(rows)),))
        for evidence in ("declared", "measured")
    )  # fmt: skip
    return msgspec.structs.replace(verdict, failures=leaks, recovered=recovered)
