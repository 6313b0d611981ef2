"""One item of a made test: the cases of one shape group, or scripts, drawn, checked, and reduced on failure."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest

from treeproof.contract.backend import Backend, BackendError, BackendUnavailable
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import COLUMNS, Failure
from treeproof.contract.known_failure import KnownFailure
from treeproof.contract.wire import FailureKey, Reproducer, decode_reproducer
from treeproof.engine.beginning import versions
from treeproof.engine.completed import REDUCED_UNIT
from treeproof.engine.in_flight import Entering
from treeproof.engine.loss import not_checked
from treeproof.engine.run_folder import BackendMeta
from treeproof.engine.settings import RunSettings
from treeproof.engine.supply import CASES_A_SCRIPT, case_drawn
from treeproof.generate.cases import cases
from treeproof.generate.fitting import fitted
from treeproof.generate.profiles import settings_of
from treeproof.generate.script_units import ScriptUnit, draw_scripts, script_units
from treeproof.generate.shapes import ShapeGroup
from treeproof.generate.storage import stored
from treeproof.generate.units import units
from treeproof.plugin.run import PytestRun
from treeproof.testing.smallest import smallest
from treeproof.testing.subject import backend_of, from_here
from treeproof.testing.violated import Key, TreeAttentionError, by_key, violation

REDUCE_SECONDS = 60.0

_SCRIPTS = "rounds"
"""The item of scripts, which comes last: what fails in one step is no news in several."""


@dataclass(frozen=True)
class Subject:
    """The backend that a test is about."""

    given: object
    word: str
    reference: str
    """How the command line finds it; empty where it cannot."""
    options: Mapping[str, Any]
    """Fields of `RunSettings` that `make_tests` was given."""


@dataclass(frozen=True)
class Share:
    """The part of a run that one item checks: so many cases of a shape group, or these scripts."""

    group: ShapeGroup | None
    count: int = 0
    scripts: tuple[ScriptUnit, ...] = ()


def shares(subject: Subject, run: PytestRun) -> dict[str, Share]:
    """The items of a test by name, in a fixed order; together they draw as many cases as asked."""
    settings = run.settings(subject.options)
    found: dict[str, Share] = {}
    for unit in units(settings.profile, settings.seed, settings.examples):
        group = replace(unit.shape, dtype=settings.dtype or unit.shape.dtype)
        before = found.get(group.name, Share(group, 0))
        found[group.name] = replace(before, count=before.count + unit.count)
    scripts = sum(share.count for share in found.values()) // CASES_A_SCRIPT
    if scripts:
        drawn = script_units(settings.profile, settings.seed, scripts, settings.dtype)
        found[_SCRIPTS] = Share(None, scripts=tuple(drawn))
    return found


def hold(subject: Subject, share: Share, run: PytestRun) -> None:
    """Draw and check the cases of a share. Raises TreeAttentionError; skips where none was judged."""
    __tracebackhide__ = True
    settings = run.settings(subject.options)
    item = _Item(subject, _load(subject, settings, run), settings, share, run)
    with _one_thread(settings.device_kind):
        item.draw()
        if item.failing:
            raise item.explained()
    if item.known:
        pytest.xfail(f"{item.backend.name}: {'; '.join(item.known.values())}")
    if not item.judged:
        pytest.skip(f"{item.backend.name}: {'; '.join(sorted(item.reasons)) or 'nothing judged'}")


@contextmanager
def _one_thread(device_kind: str) -> Iterator[None]:
    """Cases are small: on the CPU a second thread only waits, and takes a core from other workers."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1 if device_kind == "cpu" else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _load(subject: Subject, settings: RunSettings, run: PytestRun) -> Backend:
    """The backend, noted in the run; a test that cannot have it or its device is skipped."""
    __tracebackhide__ = True
    from treeproof.engine.worker import described, device_name

    try:
        backend = backend_of(subject.given)
    except BackendUnavailable as error:
        run.note(
            BackendMeta(reference=subject.reference, name=subject.word, unavailable=str(error))
        )
        pytest.skip(f"{subject.word} cannot run here: {error}")
    if backend.name not in run.noted:  # a digest of its source may take a second
        run.note(described(subject.reference, backend))
    if settings.device_kind != "cpu":
        try:
            device_name(settings.device)
        except BackendError as error:
            pytest.skip(str(error))
    return backend


@dataclass
class _Item:
    subject: Subject
    backend: Backend
    settings: RunSettings
    share: Share
    run: PytestRun
    failing: dict[Key, tuple[VerifyCase, Checked]] = field(default_factory=dict)
    """The smallest drawn case of each failure that came first in some case."""
    judged: bool = False
    """Some identity of some case was judged."""
    reasons: set[str] = field(default_factory=set)
    """Why cases were not."""
    known: dict[int, str] = field(default_factory=dict)
    """Entries of the ledger that tolerated something, and what to say of them."""

    def __post_init__(self) -> None:
        reference = self.subject.reference or self.backend.name
        self.meta = BackendMeta(reference=reference, name=self.backend.name)
        self.ledger = replace(self.run.ledger, device=self.settings.device)

    def draw(self) -> None:
        """Check every case. Hypothesis only draws: our reducer keeps to one failure, and is faster."""
        if self.share.group is not None:
            self._draw(self.share.group)
        for unit in self.share.scripts:
            for case in draw_scripts(unit):
                able, settings = self.backend.capabilities, self.settings
                fit = fitted(case, able, settings.device, settings.dtype)
                self._judge(fit or case, unit.name)

    def _draw(self, group: ShapeGroup) -> None:
        name = f"{self.settings.profile}-{self.settings.seed}-{group.name}"
        # The first example of Hypothesis is the simplest there is; it comes on top.
        drawing = settings_of(self.settings.profile, examples=self.share.count + 1)

        @hypothesis.seed(_number(name))
        @hypothesis.settings(drawing, phases=(hypothesis.Phase.generate,))
        @hypothesis.given(cases(group, self.settings.profile))
        def check(case: VerifyCase) -> None:
            self._judge(stored(case, self.backend.capabilities.cache_layouts), name)

        check()

    def _judge(self, case: VerifyCase, unit: str) -> None:
        quarantine = self.ledger.quarantine(case, self.meta)
        if quarantine is not None:
            self._skip(case, unit, quarantine)
            return
        with self.run.at_work(case, self.backend.name) as enter:
            checked = self._check(case, self.settings.columns, enter)
        tolerated = self.ledger.note(case, self.meta, checked)
        self.run.record(case_drawn(case, unit), *tolerated, checked)
        self._note_known({event.entry for event in tolerated})
        for cell in checked.cells:
            if cell.identity != "contract":
                self.judged |= cell.status in ("pass", "fail", "tie")
                outside = cell.status in ("unsupported", "unavailable")
                self.reasons |= {cell.reason} if outside else set()
        failures = self.ledger.untolerated(case, self.meta, checked)
        if failures:
            key = next(iter(by_key(failures)))
            known = self.failing.setdefault(key, (case, checked))
            if case.num_rows < known[0].num_rows:
                self.failing[key] = (case, checked)

    def _skip(self, case: VerifyCase, unit: str, entry: KnownFailure) -> None:
        reason = f"quarantined: {entry.reason}"
        self.ledger.reached[entry.number] += 1
        self.reasons.add(reason)
        columns = tuple(c for c in COLUMNS if c in self.settings.columns)
        cells = not_checked(columns, reason)
        self.run.record(
            case_drawn(case, unit), Checked(case=case.id, backend=self.backend.name, cells=cells)
        )

    def _note_known(self, entries: Collection[int]) -> None:
        for entry in self.ledger.entries:
            if entry.number in entries:
                self.known[entry.number] = f"{entry.identity}: {entry.kind}: {entry.reason}"

    def _check(
        self,
        case: VerifyCase,
        columns: Iterable[str],
        enter: Entering | None = None,
    ) -> Checked:
        from treeproof.engine.check import CheckOptions, check_case

        options = CheckOptions(
            device=self.settings.device,
            profile=self.settings.profile,
            identities=frozenset(columns),
            in_flight=enter,
        )
        checked = check_case(case, self.backend, options)
        known = self.ledger.asking(case, self.meta) if checked.failures else ()
        if not known:
            return checked
        from treeproof.engine.known_cause import traced

        return traced(case, self.backend, checked, options, known)

    def _check_smaller(self, case: VerifyCase, columns: Iterable[str]) -> Checked:
        """What a smaller case shows that is not known; a quarantined one is not launched."""
        if self.ledger.quarantine(case, self.meta) is not None:
            return Checked(case=case.id, backend=self.backend.name, cells=())
        checked = self._check(case, columns)
        new = self.ledger.untolerated(case, self.meta, checked)
        return msgspec.structs.replace(checked, failures=new)

    def explained(self) -> TreeAttentionError:
        """One error that shows each failure in its smallest case, which is kept in the folder."""
        order = sorted(self.failing, key=lambda key: COLUMNS.index(key[0]))
        errors = [self._explained(key, *self.failing[key]) for key in order]
        text = "\n\n".join(map(str, errors))
        failures = [failure for error in errors for failure in error.failures]
        return type(errors[0])(text, failures, errors[0].case)

    def _explained(self, key: Key, case: VerifyCase, checked: Checked) -> TreeAttentionError:
        reduction, event = "not reduced", None
        if self.settings.reduce:
            columns = frozenset(self.settings.columns)
            least = smallest(case, key, self._check_smaller, columns, REDUCE_SECONDS)
            if least is None:
                reduction = "it did not fail so again"
            else:
                case, checked, event = least.case, least.checked, least.event
                reduction = f"reduced in {event.evaluations} tries"
        path, is_smallest = self._keep(case, by_key(checked.failures)[key][0])
        if event is not None and is_smallest:
            self.run.folder.write_case(case)
            self.run.record(case_drawn(case, REDUCED_UNIT), checked, event)
        replay = replay_line(self.subject.reference, self.backend.name, path, self.settings.seed)
        return violation(case, checked, replay=replay, reduction=reduction, key=key)

    def _keep(self, case: VerifyCase, failure: Failure) -> tuple[Path, bool]:
        """The reproducer of this failure, and whether it is this case: others may have found it too."""
        folder = self.run.folder
        path = folder.reproducer_path(self.backend.name, failure.identity, failure.kind)
        if path.exists() and decode_reproducer(path.read_bytes()).case.num_rows <= case.num_rows:
            return path, False
        reproducer = Reproducer(
            case=case,
            backend=self.subject.reference or self.backend.name,
            failure=FailureKey(identity=failure.identity, kind=failure.kind),
            message=failure.message,
            seed=self.settings.seed,
            device=self.settings.device,
            versions=versions(),
        )
        return folder.write_reproducer(self.backend.name, reproducer), True


def replay_line(reference: str, backend: str, path: Path, seed: int) -> str:
    """`treeproof replay …`, or this very item of pytest where no command line finds the backend."""
    if not reference:
        item = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
        return shlex.join(["pytest", item, "--treeproof-seed", str(seed)])
    words = ["treeproof", "replay", str(from_here(path))]
    words += ["--backend", reference] if reference != backend else []
    return shlex.join(words)


def _number(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
