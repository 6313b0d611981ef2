"""A failing check bears the cause of a ledger's entry where that reproduces what was seen, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from backend_scene import FORK, Situation, case_of
from ledger_scene import TODAY, entry, write_ledger

from treeproof.contract.backend import Backend
from treeproof.contract.event import Checked, Diagnosed, Reduced
from treeproof.contract.failure import Identity
from treeproof.contract.known_failure import KnownFailure
from treeproof.contract.registry import load
from treeproof.engine import known_cause
from treeproof.engine.check import check_case
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.known_cause import traced
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings
from treeproof.engine.summary import Run
from treeproof.faults.catalog import exactly

CASE = case_of(Situation(trees=(FORK,), prefixes=(5,), pads=(0,), window=3))
OPTIONS = CheckOptions()


def planted(*faults: str) -> Backend:
    made = load("direct-mask")
    for fault in map(exactly, faults):
        assert fault.applies(made)
        made = fault.into(made)
    return made


def by_row(identity: Identity) -> KnownFailure:
    return KnownFailure(
        number=1,
        backend="direct-mask",
        identity=identity,
        kind="*",
        reason="not reported",
        expires=TODAY + timedelta(days=1),
        cause="window-by-row",
    )


WINDOW = (by_row("visibility"), by_row("output"))


def causes(backend: Backend, entries: Sequence[KnownFailure] = WINDOW) -> dict[str, set[str]]:
    """By identity that fails, the causes that its failures bear."""
    checked = check_case(CASE, backend, OPTIONS)
    found: dict[str, set[str]] = {}
    for failure in traced(CASE, backend, checked, OPTIONS, entries).failures:
        found.setdefault(failure.identity, set()).add(failure.cause)
    return found


def test_what_an_entry_asks_about_bears_the_cause_that_reproduces_it() -> None:
    backend = planted("window-by-row")
    assert causes(backend) == {"visibility": {"window-by-row"}, "output": {"window-by-row"}}
    assert causes(backend, WINDOW[:1]) == {"visibility": {"window-by-row"}, "output": {""}}


@pytest.mark.parametrize(
    "faults",
    [("window-off-by-one.up",), ("window-by-row", "read-before-written")],
    ids=["another fault", "another one beside it"],
)
def test_no_cause_is_named_where_it_does_not_reproduce_all_of_its_stage(
    faults: tuple[str, ...],
) -> None:
    found = causes(planted(*faults))
    assert {"visibility", "output"} <= set(found)
    assert set().union(*found.values()) == {""}


def test_a_fault_of_another_stage_keeps_its_failures_without_a_cause() -> None:
    assert causes(planted("window-by-row", "moved-in-place.forwards")) == {
        "visibility": {"window-by-row"},
        "output": {"window-by-row"},
        "kv": {""},
    }


def test_the_backend_is_run_once_more_only_where_an_entry_asks_for_a_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_cause, "observe", lambda *_, **__: pytest.fail("it was run"))
    assert causes(planted("window-by-row"), (by_row("kv"),)) == {"visibility": {""}, "output": {""}}
    checked = Checked(case=CASE.id, backend="direct-mask", cells=())
    assert traced(CASE, load("direct-mask"), checked, OPTIONS, WINDOW) is checked


def test_a_fault_of_the_device_in_that_run_leaves_the_failures_without_a_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fault(*_: object, layers: bool) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(known_cause, "observe", fault)
    assert causes(planted("window-by-row")) == {"visibility": {""}, "output": {""}}


# --- in a run --------------------------------------------------------------------------------------

PLANTED = """
import treeproof
from treeproof.contract.registry import load
from treeproof.faults.catalog import exactly

RIGHT = load("direct-mask")


@treeproof.register(
    "bad", consumes=RIGHT.consumes, capabilities=RIGHT.capabilities, numerics=RIGHT.numerics
)
class Bad:
    def __init__(self):
        made = RIGHT
        for fault in FAULTS:
            made = exactly(fault).into(made)
        stages = made.make()
        self.build, self.attend = stages.build, stages.attend

    def build(self, c): ...

    def attend(self, x, q, k, v, k_cache, v_cache): ...
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_of_known_failures_ends_clean_and_reduces_nothing(
    workers: int, tmp_path: Path
) -> None:
    found = run_of(tmp_path, ("window-by-row",), workers)
    assert found.exit_code == 0
    assert {(state.state, state.checks) for state in found.ledger} == {("tolerated", 1)}
    assert not [event for event in found.events if isinstance(event, Reduced | Diagnosed)]


def test_a_fault_that_fails_alike_beside_the_known_one_fails_the_run(tmp_path: Path) -> None:
    found = run_of(tmp_path, ("window-by-row", "read-before-written"), 0, identities=("output",))
    assert found.exit_code == 1
    assert {state.state for state in found.ledger} == {"not-reached", "unexpected-pass"}
    smallest = [found.folder.read_case(group.case) for group in found.failures]
    assert [case.shape.window for case in smallest] == [None, None]


def run_of(
    tmp_path: Path, faults: tuple[str, ...], workers: int, identities: tuple[str, ...] = ()
) -> Run:
    path = tmp_path / "bad.py"
    path.write_text(PLANTED.replace("FAULTS", repr(faults)))
    entries = [
        entry(identity=f'"{identity}"', kind='"*"', cause='"window-by-row"', when="{window = true}")
        for identity in ("visibility", "output")
    ]
    settings = RunSettings(
        backends=(str(path),),
        ledger=write_ledger(tmp_path, *entries),
        workers=workers,
        identities=identities,
        store=None,
        run_dir=tmp_path / "run",
    )
    return run(settings, cases=[CASE])
