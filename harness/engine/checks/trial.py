"""One backend on one case: the stages it has, and the verdicts so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from treeproof.backends.reference.used import used
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Acceptance, Checked, Generated, Way
from treeproof.contract.failure import Cell, Evidence, Failure, Identity, Recovered
from treeproof.contract.kernels import Kernel
from treeproof.contract.registry import Backend
from treeproof.diagnosis.earlier_rounds import StageCall
from treeproof.engine.accepted import together
from treeproof.engine.checks.copies import tensors_in
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.checks.prepared import Prepared
from treeproof.engine.checks.unable import OutOfMemory, unable
from treeproof.engine.open_files import OpenFiles, lowest_free
from treeproof.engine.process_state import ProcessState
from treeproof.properties.contract import mutated
from treeproof.properties.output import Margin
from treeproof.properties.probes.launch import Launched
from treeproof.properties.reading import Measured
from treeproof.properties.scene import Scene
from treeproof.properties.violation import Violation, contract_failure, raised


@dataclass
class Trial:
    """Grows while the check runs; `result` is what is written down.

    `subject` is all that belongs to a case; in a round of a script, the step that it has come to.
    `instance` holds the backend's stages. `produced` are the `VerifyInput` fields of its own
    build. `called` are the stages that ran, `returned` the stages and their functions that came to an
    end. `broken` says which stage broke its contract, if one did. `quiet` is the first launch on random
    data. `stage` is the one that ran last, `probe` the probe that is at work. `borrowed` are the
    reference's stages that the backend called inside its own. `lent` are the stages of a script's rounds
    that the reference served, each with the reason. `kernels` are those that it names and
    that were seen. `heard` is told of every call of a stage in a script's rounds,
    where anybody asks. `process` is what belongs to others as well, and is put back after each stage;
    `files` are those that a stage leaves open.
    """

    backend: Backend
    options: CheckOptions
    subject: Prepared | Scene
    instance: Any = None
    produced: dict[str, Any] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    returned: set[tuple[str, str]] = field(default_factory=set)
    borrowed: frozenset[str] = frozenset()
    lent: dict[str, str] = field(default_factory=dict)
    quiet: Launched | None = None
    measured: Measured | None = None
    margin: Margin | None = None
    kernels: tuple[Kernel, ...] = ()
    generated: Generated | None = None
    acceptance: dict[Way, Acceptance] = field(default_factory=dict)
    broken: str = ""
    stage: str = ""
    probe: str = ""
    heard: Callable[[StageCall], None] | None = None
    cells: list[Cell] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    recovered: list[Callable[[], Recovered]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    process: ProcessState = field(default_factory=ProcessState.now)
    files: OpenFiles = field(default_factory=OpenFiles)

    @property
    def prepared(self) -> Prepared:
        assert isinstance(self.subject, Prepared)
        return self.subject

    @property
    def scene(self) -> Scene:
        return self.subject.scene if isinstance(self.subject, Prepared) else self.subject

    @property
    def case(self) -> VerifyCase:
        return self.scene.case

    def has(self, stage: str) -> bool:
        return stage in self.backend.stages

    def wants(self, identity: Identity, evidence: Evidence) -> bool:
        return self.options.wants(identity, evidence)

    def runs(self, *probes: str) -> bool:
        """Whether any of these probes is switched on."""
        return not self.options.probes.isdisjoint(probes)

    @contextmanager
    def probing(self, probe: str) -> Iterator[None]:
        """Failures noted inside were seen by this probe, where they do not say it themselves."""
        outer, self.probe = self.probe, probe
        try:
            yield
        finally:
            self.probe = outer

    def note(self, *failures: Failure) -> None:
        """Write failures down, each with the probe that saw it."""
        self.failures += [
            f if f.probe or not self.probe else msgspec.structs.replace(f, probe=self.probe)
            for f in failures
        ]

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - start

    def call(self, stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a stage of the backend; whatever it raises becomes a Violation.

        But BackendUnavailable where the stage cannot run here and never has on this case.
        """
        self.stage = stage
        if self.options.in_flight is not None:
            self.options.in_flight(stage, self.probe)
        if stage in self.backend.stages:
            self.called.add(stage)
        token, run = used.set(frozenset()), (stage, getattr(function, "__name__", ""))
        free = lowest_free()
        with self.timed("build" if stage == "build" else "backend"):
            try:
                result = function(*arguments)
            except (Violation, KeyboardInterrupt):
                raise
            except BaseException as error:  # SystemExit, too, and what cancels a task
                why = unable(stage, error)
                if why is None or (run in self.returned and not isinstance(why, OutOfMemory)):
                    raise raised(stage, error) from error
                raise why from None
            finally:
                self.borrowed |= used.get()
                used.reset(token)
                self._restored(stage, free)
        self.returned.add(run)
        return result

    def _restored(self, stage: str, free: int) -> None:
        """Others run in this process as well; noted once a stage. `free`: its lowest free descriptor before."""
        changed = "; ".join([*self.process.restore(), *self.files.kept(stage, free)])
        known = ((failure.kind, failure.stage) for failure in self.failures)
        if changed and ("changes-process", stage) not in known:
            said = f"{stage} changes the process that it shares with others: {changed}"
            self.note(contract_failure("changes-process", stage, said))

    def lends(self, stage: str, why: str = "") -> None:
        """The reference serves a stage of a round, which it then is no evidence of."""
        self.lent[stage] = f"reference: {why or f'no {stage} stage of its own'}"

    def borrows(self, stage: str) -> bool:
        """Whether the reference did the work of this stage; its own work is its own."""
        ours = self.backend.source.startswith("treeproof.backends.reference:")
        return stage in self.borrowed and not ours

    def unchanged(self, stage: str, before: Any, after: Any, free: Set[str] = frozenset()) -> None:
        """Note the inputs of a stage that it changed; `free` are its to write."""
        was = {name: t for name, t in tensors_in(before).items() if name not in free}
        changed = mutated(was, tensors_in(after))
        if changed:
            message = f"{stage} changed its inputs {', '.join(changed)}"
            if not any((f.stage, f.message) == (stage, message) for f in self.failures):
                self.note(contract_failure("mutates-input", stage, message))

    def judged(
        self, identity: Identity, evidence: Evidence, stage: str, failures: Sequence[Failure]
    ) -> None:
        """A verdict on evidence that the backend produced."""
        status = "fail" if failures else "pass"
        self.cells.append(
            Cell(identity=identity, evidence=evidence, status=status, stage=stage)  # type: ignore[arg-type]
        )
        self.note(*failures)

    def not_checked(self, identity: Identity, evidence: Evidence, stage: str, reason: str) -> None:
        if self.wants(identity, evidence):
            self.cells.append(
                Cell(
                    identity=identity,
                    evidence=evidence,
                    status="not-checked",
                    stage=stage,
                    reason=reason,
                )
            )

    def accepted(self, stage: str, found: Acceptance) -> None:
        """Note how deep walks of a stage went and were to go, where it is the backend's own."""
        if not self.borrows(stage):
            self.acceptance[found.way] = together(self.acceptance.get(found.way), found)

    def broke(self, violation: Violation) -> None:
        """Note a broken contract, once a stage and kind: every probe would say it again."""
        failure = violation.failure
        self.broken = f"{failure.stage} broke its contract"
        if not any((f.kind, f.stage) == (failure.kind, failure.stage) for f in self.failures):
            self.note(failure)

    def recover(
        self, identity: Identity, evidence: Evidence, what: Any, values: Any, source: str = ""
    ) -> None:
        """Note what evidence determined; `values` may be a function, called where something failed."""

        def made() -> Recovered:
            found = values() if callable(values) else values
            return Recovered(
                identity=identity, evidence=evidence, what=what, values=found, source=source
            )

        self.recovered.append(made)

    def result(self) -> Checked:
        seconds = dict(self.seconds)
        if "probe" in seconds:  # the backend ran inside the probes
            seconds["probe"] = max(0.0, seconds["probe"] - seconds.get("backend", 0.0))
        kept = tuple(f for f in self.failures if self.wants(f.identity, f.evidence))
        return Checked(
            case=self.case.id,
            backend=self.backend.name,
            cells=tuple(self.cells),
            failures=kept,
            recovered=tuple(made() for made in self.recovered) if kept else (),
            margin=None if self.margin is None else self.margin.total,
            margin_rest=None if self.margin is None else self.margin.rest,
            seconds=seconds,
            kernels=self.kernels,
            generated=self.generated,
            acceptance=tuple(self.acceptance.values()),
        )
