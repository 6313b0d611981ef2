"""One case on one backend: launch its stages, gather evidence, judge each identity."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import msgspec
import torch
from torch import Tensor

from treeproof.backends import reference
from treeproof.backends.reference.store import store_kv, store_used
from treeproof.contract.case import MaskMode, VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import COLUMNS, Cell, Evidence, Failure, Identity, Recovered, Status
from treeproof.contract.inputs import TENSOR_FIELDS, Accepted, Candidates, VerifyInput
from treeproof.contract.registry import Backend
from treeproof.engine.garble import garble, tensors_of
from treeproof.generate.data import LogicalData, logical_data
from treeproof.generate.pool import candidates
from treeproof.oracles.path import PathResult, attend_paths
from treeproof.properties import candidate, contract, kv, output, position, traversal
from treeproof.properties.declared import closures, declarations, tree_block
from treeproof.properties.probes import random_data
from treeproof.properties.probes.clock import read_clock
from treeproof.properties.probes.codes import sign_codes
from treeproof.properties.probes.launch import AttendCall, Contents, Launched, launch
from treeproof.properties.reading import Measured, judge_measured, judge_spike, measure
from treeproof.properties.scene import Scene
from treeproof.properties.violation import Violation, contract_failure, raised
from treeproof.properties.visibility import judge as judge_visibility
from treeproof.properties.visibility import recover_parents

MAX_WALKS = 64
"""Leaves that are accepted and committed in one check."""


@dataclass(frozen=True)
class CheckOptions:
    """What to check and how thoroughly.

    `without` switches single (identity, evidence) checks off. `in_flight` is told the stage about
    to run.
    """

    device: str = "cpu"
    profile: str = "quick"
    identities: frozenset[str] = frozenset(COLUMNS)
    evidence: frozenset[str] = frozenset({"declared", "measured"})
    without: frozenset[tuple[Identity, Evidence]] = frozenset()
    in_flight: Callable[[str], None] | None = None

    @property
    def complete(self) -> bool:
        """Every prefix key and every hidden key by itself."""
        return self.profile == "nightly"

    def wants(self, identity: Identity, evidence: Evidence) -> bool:
        return (
            identity in self.identities
            and evidence in self.evidence
            and (identity, evidence) not in self.without
        )


def check_case(case: VerifyCase, backend: Backend, options: CheckOptions) -> Checked:
    """Verdicts of one backend on one case. Never raises for what the backend does wrong."""
    refusal = backend.capabilities.refusal(case, options.device)
    if refusal is not None:
        cells = tuple(
            Cell(identity=i, evidence="measured", status="unsupported", stage="", reason=refusal)
            for i in COLUMNS
            if i in options.identities
        )
        return Checked(case=case.id, backend=backend.name, cells=cells)
    check = _Check(backend, options, _prepare(case, options.device))
    check.run()
    return check.result()


@dataclass(frozen=True)
class _Prepared:
    """What backends share on one case; the oracle runs once."""

    scene: Scene
    candidates: Candidates
    data: LogicalData
    truth: tuple[PathResult, ...]
    rounds: tuple[traversal.Prediction, ...]
    seconds: float


@lru_cache(maxsize=2)
def _prepare(case: VerifyCase, device: str) -> _Prepared:
    scene = Scene.of(case, device)
    data = logical_data(case)
    made = candidates(case, scene.ledger, device)
    start = time.perf_counter()
    truth = tuple(
        attend_paths(
            r.tree, r.prefix_len, case.shape,
            data.q[b], data.k_prefix[b], data.v_prefix[b], data.k_tree[b], data.v_tree[b],
        )
        for b, r in enumerate(case.requests)
    )  # fmt: skip
    seconds = time.perf_counter() - start
    rounds = tuple(traversal.predictions(case, MAX_WALKS))
    return _Prepared(scene, made, data, truth, rounds, seconds)


@dataclass
class _Check:
    backend: Backend
    options: CheckOptions
    prepared: _Prepared
    cells: list[Cell] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    recovered: list[Recovered] = field(default_factory=list)
    margin: output.Margin | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    broken: str = ""
    produced: dict[str, Any] = field(default_factory=dict)
    stored_by_reference: bool = False
    measured: Measured | None = None

    @property
    def scene(self) -> Scene:
        return self.prepared.scene

    @property
    def case(self) -> VerifyCase:
        return self.prepared.scene.case

    # --- bookkeeping -------------------------------------------------------------------------

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - start

    def _cell(
        self, identity: Identity, evidence: Evidence, stage: str, failures: Sequence[Failure]
    ) -> None:
        """A verdict on evidence that the backend produced."""
        status: Status = "fail" if failures else "pass"
        self.cells.append(Cell(identity=identity, evidence=evidence, status=status, stage=stage))
        self.failures += failures

    def _not_checked(self, identity: Identity, evidence: Evidence, stage: str, reason: str) -> None:
        if self.options.wants(identity, evidence):
            self.cells.append(
                Cell(
                    identity=identity, evidence=evidence, status="not-checked", stage=stage,
                    reason=reason,
                )
            )  # fmt: skip

    def _broke(self, violation: Violation) -> None:
        """Note a broken contract, once a stage and kind: every probe would say it again."""
        failure = violation.failure
        self.broken = f"{failure.stage} broke its contract"
        if not any((f.kind, f.stage) == (failure.kind, failure.stage) for f in self.failures):
            self.failures.append(failure)

    def _recover(self, identity: Identity, evidence: Evidence, what: Any, values: Any) -> None:
        self.recovered.append(
            Recovered(identity=identity, evidence=evidence, what=what, values=values)
        )

    def _call(self, stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a stage of the backend; whatever it raises becomes a Violation."""
        if self.options.in_flight is not None:
            self.options.in_flight(stage)
        with self._timed("build" if stage == "build" else "backend"):
            try:
                return function(*arguments)
            except Violation:
                raise
            except Exception as error:
                raise raised(stage, error) from error

    # --- the order of things -----------------------------------------------------------------

    def run(self) -> None:
        self.instance = None
        try:
            self.instance = self._call("plan", self.backend.make)
            x = self._build()
        except Violation as violation:
            self._broke(violation)
            x = None
        if x is not None:
            with self._timed("check"):
                self._judge_declared(x)
            self._judge_attend(x)
            self._judge_rounds(x)
        self._close()
        self._fill_gaps()
        if "contract" in self.options.identities:
            failed = any(f.identity == "contract" for f in self.failures)
            self.cells.append(
                Cell(
                    identity="contract", evidence="measured", status="fail" if failed else "pass",
                    stage="all",
                )
            )  # fmt: skip

    def _close(self) -> None:
        close = getattr(self.instance, "close", None)
        if callable(close):
            try:
                self._call("close", close)
            except Violation as violation:
                self._broke(violation)

    def _fill_gaps(self) -> None:
        """Say of every wanted verdict that is still missing why it is."""
        have = {(c.identity, c.evidence) for c in self.cells}
        for identity in COLUMNS:
            if identity == "contract":
                continue
            for evidence in ("declared", "measured"):
                if (identity, evidence) in have or (identity, evidence) == ("output", "declared"):
                    continue
                reason = self.broken or self._why_missing(identity, evidence)
                self._not_checked(identity, evidence, "", reason)

    def _why_missing(self, identity: str, evidence: str) -> str:
        stage = {
            "declared": "build",
            "measured": "accept" if identity in ("candidate", "traversal") else "attend",
        }[evidence]
        if stage not in self.backend.stages:
            return f"reference: no {stage} stage of its own"
        return f"reference: its {stage} stage gives no such evidence"

    # --- build and what is declared ----------------------------------------------------------

    def _build(self) -> VerifyInput:
        made = self.prepared.candidates
        fresh = replace(made, mask_buffer=made.mask_buffer.clone())
        if "build" in self.backend.stages:
            result = self._call("build", self.instance.build, fresh)  # type: ignore[attr-defined]
            self.produced = contract.valid_built(result, self.scene)
            if isinstance(result, VerifyInput):
                return result
        plain = reference.build(replace(made, mask_buffer=made.mask_buffer.clone()))
        return replace(plain, **self.produced)

    def _judge_declared(self, x: VerifyInput) -> None:
        indptr = self.case.qo_indptr
        wants = self.options.wants
        if "draft_token" in self.produced and wants("candidate", "declared"):
            tokens = candidate.recover_tokens(x.draft_token.tolist(), indptr)
            self._recover("candidate", "declared", "tokens", tokens)
            self._cell(
                "candidate", "declared", "build",
                candidate.judge(self.case, tokens, "declared", "build"),
            )  # fmt: skip
        if "positions" in self.produced and wants("position", "declared"):
            prefixes = [r.prefix_len for r in self.case.requests]
            depths = position.recover_depths(x.positions.tolist(), indptr, prefixes)
            self._recover("position", "declared", "depths", depths)
            self._cell("position", "declared", "build", position.judge_declared(self.case, depths))
        if "out_cache_loc" in self.produced and wants("kv", "declared"):
            slots = [self.scene.ledger.row_slots(b) for b in range(len(self.case.requests))]
            named = x.out_cache_loc.tolist()
            self._recover("kv", "declared", "rows", self._local(kv.recover_slots(named, slots)))
            self._cell(
                "kv", "declared", "build", kv.judge_out_cache_loc(self.scene, named, "build")
            )
        if {"retrieve_next_token", "retrieve_next_sibling"} <= set(self.produced) and wants(
            "traversal", "declared"
        ):
            self._judge_links(x)
        if wants("visibility", "declared"):
            self._judge_tables(self._own_tables(), x.mask_mode, "build")

    def _local(self, rows: kv.Rows) -> kv.Rows:
        """Flat rows as rows of their own request; a row of another request stays undetermined."""
        local = []
        for b, found in enumerate(rows):
            start, end = self.case.qo_indptr[b], self.case.qo_indptr[b + 1]
            local.append(
                tuple(None if r is None or not start <= r < end else r - start for r in found)
            )
        return tuple(local)

    def _judge_links(self, x: VerifyInput) -> None:
        assert x.retrieve_next_token is not None
        assert x.retrieve_next_sibling is not None
        parents = traversal.recover_links(
            x.retrieve_next_token.tolist(),
            x.retrieve_next_sibling.tolist(),
            [r.num_nodes for r in self.case.requests],
        )
        self._recover("traversal", "declared", "parents", parents)
        failures = traversal.judge_parents(self.case, parents, "build")
        if x.retrieve_index is not None and "retrieve_index" in self.produced:
            failures += traversal.judge_retrieve_index(
                self.case, x.retrieve_index.tolist(), "build"
            )
        self._cell("traversal", "declared", "build", failures)

    def _own_tables(self) -> dict[str, Any]:
        """Tables of the backend's own making that its attend reads."""
        read = (
            self.backend.consumes if "attend" in self.backend.stages else frozenset(self.produced)
        )
        return {name: table for name, table in self.produced.items() if name in read}

    def _judge_tables(self, tables: Mapping[str, Any], mode: MaskMode | None, stage: str) -> None:
        with self._timed("check"):
            try:
                found = declarations(self.scene, tables, mode or self.case.mask.mode)
            except (ValueError, IndexError, KeyError, TypeError) as error:
                self._broke(raised(stage, error))
                return
            if not found:
                return
            failures: list[Failure] = []
            for declaration in found:
                parents = tuple(recover_parents(c) for c in closures(declaration, self.scene))
                self._recover("visibility", "declared", "parents", parents)
                for reading in declaration.readings:
                    failures += judge_visibility(
                        self.case, self.scene.ledger, reading, "declared",
                        window_free=declaration.window_free, stage=stage,
                    )  # fmt: skip
            self._cell("visibility", "declared", stage, failures)

    # --- attend ------------------------------------------------------------------------------

    def _judge_attend(self, x: VerifyInput) -> None:
        if "attend" not in self.backend.stages:
            return
        attend = self._attend_call(x)
        seen = garble(x, self.backend.consumes, self.case.seed)
        with self._timed("probe"):
            for probe in (self._random, self._visibility, self._clock):
                try:
                    probe(attend, x, seen)
                except Violation as violation:
                    self._broke(violation)

    def _attend_call(self, x: VerifyInput) -> AttendCall:
        instance: Any = self.instance
        plan = getattr(instance, "plan", None)

        def attend(x: VerifyInput, *tensors: Tensor) -> Any:
            if not self.backend.capabilities.stores_kv:
                store_kv(x, tensors[1], tensors[2], tensors[3], tensors[4])
            state = x if plan is None else self._call("plan", plan, x)
            token = store_used.set(False)
            try:
                return self._call("attend", instance.attend, state, *tensors)
            finally:
                self.stored_by_reference |= store_used.get()
                store_used.reset(token)

        return attend

    def _random(self, attend: AttendCall, x: VerifyInput, seen: VerifyInput) -> None:
        """Random data: outputs in the bound, writes, inputs left alone, poison without influence."""
        with _unwritten_shows():
            laid = random_data.contents(self.scene, x, self.prepared.data, random_data.QUIET)
            quiet = launch(attend, self.scene, seen, laid, "random")
            self._judge_mutation(seen, x, quiet, laid)
            loud = self._launch_loud(attend, x)
        if self.options.wants("output", "measured"):
            limits = output.bounds(self.scene, self.prepared.truth, self.backend.numerics)
            failures, self.margin = output.judge(
                self.scene, self.prepared.truth, limits, quiet.attended.out, quiet.attended.lse
            )
            self._cell("output", "measured", "attend", failures)
        self._judge_launched(x, quiet.attended.declared)
        if loud is not None:
            self._judge_influence(attend, x, seen, quiet, loud)
        if self.options.wants("kv", "measured"):
            failures = kv.judge_writes(self.scene, quiet)
            if not self.backend.capabilities.stores_kv or self.stored_by_reference:
                own = "build" in self.backend.stages and "out_cache_loc" in self.produced
                if failures and own:
                    self._cell("kv", "measured", "build", failures)
                else:
                    self._not_checked("kv", "measured", "attend", "reference: written by store_kv")
            else:
                self._cell("kv", "measured", "attend", failures)

    def _launch_loud(self, attend: AttendCall, x: VerifyInput) -> Launched | None:
        """The same data over loud poison and other garbage; None where NaN came through."""
        other = garble(x, self.backend.consumes, self.case.seed + 1)
        try:
            return self._launch_random(attend, x, other, random_data.LOUD)
        except Violation as violation:
            if violation.failure.kind != "not-finite":
                raise
            failure = msgspec.structs.replace(
                violation.failure,
                identity="kv",
                kind="unowned-influences",
                message=violation.failure.message + ": NaN lay in pages that no table names",
            )
            if self.options.wants("kv", "measured"):
                self._cell("kv", "measured", "attend", [failure])
            return None

    def _judge_launched(self, x: VerifyInput, declared: Mapping[str, Any]) -> None:
        """Tables handed to the kernel. Fields of ours handed back are no evidence."""
        if not self.options.wants("visibility", "declared"):
            return
        unknown = sorted(set(declared) - set(TENSOR_FIELDS))
        if unknown:
            message = f"attend declared {', '.join(unknown)}: no such field of VerifyInput"
            raise Violation(contract_failure("unknown-field", "attend", message))

        def ours(name: str, table: Any) -> bool:
            """Whether this is a field of ours handed back."""
            handed = getattr(x, name)
            return name not in self.produced and handed is not None and same(table, handed)

        def same(a: Any, b: Any) -> bool:
            return isinstance(a, Tensor) and isinstance(b, Tensor) and contract.same_bits(a, b)

        launched = {name: table for name, table in declared.items() if not ours(name, table)}
        judged = self._own_tables()
        if any(not same(table, judged.get(name)) for name, table in launched.items()):
            self._judge_tables(launched, x.mask_mode, "attend")

    def _launch_random(
        self, attend: AttendCall, x: VerifyInput, seen: VerifyInput, fill: random_data.Fill
    ) -> Launched:
        laid = random_data.contents(self.scene, x, self.prepared.data, fill)
        return launch(attend, self.scene, seen, laid, "random")

    def _judge_mutation(
        self, seen: VerifyInput, x: VerifyInput, done: Launched, laid: Contents
    ) -> None:
        before = tensors_of(garble(x, self.backend.consumes, self.case.seed))
        changed = contract.mutated(before, tensors_of(seen))
        changed += [n for n, a, b in (("q", laid.q, done.q),) if not contract.same_bits(a, b)]
        rows = self.scene.real_index
        slots = self.scene.tree_slots
        for name, now, was in (("k", done.k, laid.k), ("v", done.v, laid.v)):
            if not contract.same_bits(now[rows], was[slots]):
                changed.append(name)
        if changed:
            self.failures.append(
                contract_failure(
                    "mutates-input", "attend", f"attend changed its inputs {', '.join(changed)}"
                )
            )

    def _judge_influence(
        self, attend: AttendCall, x: VerifyInput, seen: VerifyInput, quiet: Launched, loud: Launched
    ) -> None:
        """Outputs must not depend on memory nobody holds, nor on fields not declared as read."""
        if not self.backend.capabilities.deterministic or self._same(quiet, loud):
            return
        with _unwritten_shows():
            # Twice: a kernel that alternates would otherwise look like one that peeks.
            again = [self._launch_random(attend, x, seen, random_data.QUIET) for _ in range(2)]
            memory = self._launch_random(attend, x, seen, random_data.LOUD)
        if not all(self._same(quiet, one) for one in again):
            self.failures.append(
                contract_failure(
                    "nondeterministic", "attend", "the same launch twice gives other bits; "
                    "declare deterministic=False if that is meant",
                )
            )  # fmt: skip
        elif not self._same(quiet, memory):
            b, row = self._first_difference(quiet, memory)
            failure = Failure(
                identity="kv", kind="unowned-influences", evidence="measured", stage="attend",
                request=b, row=row,
                message=f"the output of request {b}, row {row} depends on memory that no row may "
                "read (free slots, page tails, stale contents or padding)",
            )  # fmt: skip
            if self.options.wants("kv", "measured"):
                self._cell("kv", "measured", "attend", [failure])
        else:
            named = [
                name
                for name in tensors_of(x)
                if name not in self.backend.consumes
                and not self._same(quiet, self._garbled_alone(attend, x, seen, name))
            ]
            self.failures.append(
                contract_failure(
                    "reads-undeclared-input", "attend",
                    f"outputs depend on {', '.join(named) or 'fields'} not named in consumes",
                )
            )  # fmt: skip

    def _garbled_alone(
        self, attend: AttendCall, x: VerifyInput, seen: VerifyInput, name: str
    ) -> Launched:
        other = garble(x, self.backend.consumes, self.case.seed + 1)
        mixed = replace(seen, **{name: getattr(other, name)})
        return self._launch_random(attend, x, mixed, random_data.QUIET)

    def _same(self, a: Launched, b: Launched) -> bool:
        rows = self.scene.real_index
        same = contract.same_bits(a.attended.out[rows], b.attended.out[rows])
        if a.attended.lse is not None and b.attended.lse is not None:
            same = same and contract.same_bits(a.attended.lse[rows], b.attended.lse[rows])
        return same

    def _first_difference(self, a: Launched, b: Launched) -> tuple[int, int]:
        for flat in self.scene.real:
            if not contract.same_bits(a.attended.out[flat], b.attended.out[flat]):
                return self.scene.rows[flat]
        return self.scene.rows[self.scene.real[0]]

    def _visibility(self, attend: AttendCall, x: VerifyInput, seen: VerifyInput) -> None:
        if not self.options.wants("visibility", "measured"):
            return
        complete = self.options.complete
        measured = measure(attend, self.scene, seen, complete=complete)
        self.measured = measured
        failures = judge_measured(self.scene, measured)
        parents = tuple(
            recover_parents(tree_block(reading, self.scene)) for reading in measured.readings
        )
        self._recover("visibility", "measured", "parents", parents)
        failures += judge_spike(attend, self.scene, seen, failures, complete=complete)
        self._cell("visibility", "measured", "attend", failures)

    def _clock(self, attend: AttendCall, x: VerifyInput, seen: VerifyInput) -> None:
        if "positions" not in self.produced or not self.options.wants("position", "measured"):
            return
        measured = self.measured or measure(attend, self.scene, seen, complete=False)
        # The harness rotates by what the builder said; attend gets garbage unless it reads it.
        turns = read_clock(attend, self.scene, x.positions, seen, measured.count - 1)
        shared = self.case.layout.shared_prefix if len(self.case.requests) > 1 else 0
        owns = [r.prefix_len > shared for r in self.case.requests]
        depths = position.recover_clock(turns, self.case.qo_indptr, owns)
        if all(d is None for rows in depths for d in rows):
            self._not_checked(
                "position", "measured", "attend", "no row reads both its reference key and another"
            )
            return
        self._recover("position", "measured", "depths", depths)
        self._cell("position", "measured", "attend", position.judge_measured(self.case, depths))

    # --- accept and commit -------------------------------------------------------------------

    def _judge_rounds(self, x: VerifyInput) -> None:
        own = {"accept", "commit"} & self.backend.stages
        if not own:
            return
        rounds = self.prepared.rounds
        seen = garble(x, self.backend.consumes, self.case.seed)
        for stage, judge in (("accept", self._accept), ("commit", self._commit)):
            if stage in own:
                try:
                    judge(x, seen, rounds)
                except Violation as violation:
                    self._broke(violation)

    def _accept(
        self, x: VerifyInput, seen: VerifyInput, rounds: Sequence[traversal.Prediction]
    ) -> None:
        walks: list[tuple[int, list[int], list[int]]] = []
        walk_failures: list[Failure] = []
        instance: Any = self.instance
        for prediction in rounds:
            target = torch.tensor(prediction.tokens, device=self.scene.device)
            done = contract.valid_accepted(
                self._call("accept", instance.accept, seen, target), self.scene, x
            )
            index, lengths = done.accept_index.tolist(), done.accept_len.tolist()
            tokens = done.tokens.tolist()
            walk_failures += traversal.judge_walk(self.case, prediction, index, lengths)
            walk_failures += traversal.judge_bonus(self.case, prediction, tokens)
            for b, accepted in enumerate(index):
                local = [i - self.case.qo_indptr[b] for i in accepted if i != -1]
                # The bonus is no row's token yet.
                walks.append((b, local, tokens[b][: max(0, lengths[b] - 1)]))
        rows = [r.num_nodes for r in self.case.requests]
        if self.options.wants("traversal", "measured"):
            parents = traversal.recover_walked(walks, rows)
            self._recover("traversal", "measured", "parents", parents)
            self._cell("traversal", "measured", "accept", walk_failures)
        if self.options.wants("candidate", "measured"):
            emitted = candidate.recover_emitted(walks, rows)
            if all(t is None for request in emitted for t in request):
                reason = "no draft token was accepted"
                self._not_checked("candidate", "measured", "accept", reason)
            else:
                self._recover("candidate", "measured", "tokens", emitted)
                self._cell(
                    "candidate", "measured", "accept",
                    candidate.judge(self.case, emitted, "measured", "accept"),
                )  # fmt: skip

    def _commit(
        self, x: VerifyInput, seen: VerifyInput, rounds: Sequence[traversal.Prediction]
    ) -> None:
        if not self.options.wants("kv", "measured"):
            return
        shape, slots = self.case.shape, self.case.layout.num_slots
        k = sign_codes(slots, shape.num_kv_heads, shape.head_dim, 3, self.scene.device)
        v = sign_codes(slots, shape.num_kv_heads, shape.v_head_dim, 4, self.scene.device)
        before = (k.to(self.scene.dtype), v.to(self.scene.dtype))
        failures: list[Failure] = []
        instance: Any = self.instance
        for prediction in rounds:
            after = (before[0].clone(), before[1].clone())
            accepted = self._accepted(prediction, x.spec_steps + 1)
            done = contract.valid_committed(
                self._call("commit", instance.commit, seen, accepted, *after), self.scene
            )
            failures += kv.judge_commit(self.scene, prediction, done, before, after)
        self._cell("kv", "measured", "commit", failures)

    def _accepted(self, prediction: traversal.Prediction, width: int) -> Accepted:
        """What a right accept returns, so that a commit is judged by itself."""

        def padded(values: Sequence[int]) -> list[int]:
            return [*values, *[-1] * (width - len(values))]

        index = [
            padded([self.case.qo_indptr[b] + row for row in rows])
            for b, rows in enumerate(prediction.rows)
        ]
        device = self.scene.device
        return Accepted(
            accept_index=torch.tensor(index, device=device),
            accept_len=torch.tensor([len(rows) for rows in prediction.rows], device=device),
            tokens=torch.tensor([padded(t) for t in prediction.emitted], device=device),
        )

    # --- result ------------------------------------------------------------------------------

    def result(self) -> Checked:
        seconds = dict(self.seconds)
        inside = seconds.get("backend", 0.0)
        if "probe" in seconds:
            seconds["probe"] = max(0.0, seconds["probe"] - inside)
        seconds["oracle"] = self.prepared.seconds
        kept = [f for f in self.failures if self.options.wants(f.identity, f.evidence)]
        return Checked(
            case=self.case.id,
            backend=self.backend.name,
            cells=tuple(self.cells),
            failures=tuple(kept),
            recovered=tuple(self.recovered) if kept else (),
            margin=None if self.margin is None else self.margin.total,
            margin_rest=None if self.margin is None else self.margin.rest,
            seconds=seconds,
            compiled=self.options.device != "cpu",
        )


@contextmanager
def _unwritten_shows() -> Iterator[None]:
    """Memory a kernel allocates and does not write holds NaN, so that it shows."""
    was, warn = (
        torch.are_deterministic_algorithms_enabled(),
        (torch.is_deterministic_algorithms_warn_only_enabled()),
    )
    fill = torch.utils.deterministic.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic.*")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[assignment]
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(was, warn_only=warn)
            torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[assignment]
