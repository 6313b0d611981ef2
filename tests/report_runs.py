"""Runs written by hand, for tests of the reports that are made from them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.event import CaseDrawn, Checked, Event, Finished
from treeproof.contract.failure import COLUMNS, Cell, Failure, Recovered
from treeproof.contract.tree import CandidateTree
from treeproof.engine.run_folder import BackendMeta, RunFolder, RunMeta, append_event
from treeproof.engine.summary import Run

HOSTILE = (
    "<script>alert(1)</script>\x1b[31m\u202e::error ]]>&`|*_ <img src=x onerror=alert(2)>\x00\n"
    "::error title=forged::x\ufffe</textarea>"
)
"""What a backend may say to drive a terminal, a page, an XML reader, a job's log or Markdown."""


def star(prefix: int = 3) -> VerifyCase:
    """One request, two siblings below the root; rows are nodes."""
    return VerifyCase(
        requests=(
            Request(
                tree=CandidateTree(tokens=(5, 6, 7), parents=(-1, 0, 0)),
                row_of_node=(0, 1, 2),
                prefix_len=prefix,
            ),
        ),
        shape=AttentionShape(num_q_heads=2, num_kv_heads=1, head_dim=8, v_head_dim=8),
        layout=KVLayout(page_size=1, num_slots=16),
    )


def leak(message: str = "row 2 reads row 1", kind: str = "reads-sibling") -> Failure:
    return Failure(
        identity="visibility", kind=kind, evidence="measured", stage="attend", request=0, row=2,
        column=4, message=message, expected="not read", actual="read", probe="tomography",
    )  # fmt: skip


def checked(case: VerifyCase, backend: str, *failures: Failure) -> Checked:
    """All columns judged; those of the failures fail, and visibility shows row 2 below row 1."""
    wrong = {failure.identity for failure in failures}
    cells = tuple(
        Cell(
            identity=column,
            evidence="measured",
            status="fail" if column in wrong else "pass",
            stage="attend",
        )
        for column in COLUMNS
    )
    recovered = (
        Recovered(identity="visibility", evidence="measured", what="parents", values=((-1, 0, 1),)),
        Recovered(identity="kv", evidence="measured", what="rows", values=((0, 1, 2),)),
    )
    return Checked(
        case=case.id,
        backend=backend,
        cells=cells,
        failures=failures,
        recovered=recovered if failures else (),
        margin=2.5 if failures else 0.5,
    )


def run_of(
    folder: Path,
    found: Sequence[tuple[VerifyCase, Checked]],
    *,
    backends: Sequence[str] = ("mine",),
    further: Sequence[Event] = (),
    exit_code: int | None = None,
    versions: dict[str, str] | None = None,
) -> Run:
    """A run folder on disk with these verdicts; `exit_code` None: what the verdicts say."""
    meta = RunMeta(
        started="2026-01-01T00:00:00+00:00",
        settings={"profile": "quick"},
        seed=7,
        device="cpu",
        device_name="a processor",
        backends=tuple(BackendMeta(reference=name, name=name, source="its") for name in backends),
        command=("treeproof", "check", *backends),
        versions=versions or {"torch": "2.13.0"},
    )
    events: list[Event] = []
    for case, verdicts in found:
        RunFolder(folder).write_case(case)
        rows = tuple(request.num_nodes for request in case.requests)
        prefixes = tuple(request.prefix_len for request in case.requests)
        events += [
            CaseDrawn(case=case.id, unit="u", tags=(), rows=rows, prefixes=prefixes),
            verdicts,
        ]
    events += further
    if exit_code is None:
        exit_code = 1 if any(verdicts.failures for _, verdicts in found) else 0
    events.append(Finished(exit_code=exit_code, seconds=1.0))
    return written(folder, meta, events)


def written(folder: Path, meta: RunMeta, events: Iterable[Event]) -> Run:
    """The run with this meta.json and these events, of one writer."""
    run = RunFolder(folder)
    run.create(meta)
    for event in events:
        append_event(run.events_path("w0"), event)
    return Run.read(folder)


def again(run: Run, folder: Path, *further: Event, **changes: Any) -> Run:
    """The same run in another folder, with more events and another meta.json."""
    shutil.copytree(run.folder.path / "cases", folder / "cases", dirs_exist_ok=True)
    meta = msgspec.structs.replace(run.meta, **changes)
    return written(folder, meta, [*run.events, *further])
