"""One capture, many batches: what a launch does must depend on what its buffers hold now.

The launch is planned, and on CUDA captured in a graph, on one batch. Two others are copied into the
same buffers and run without planning anew: a larger one, and the case itself, padded to the size. Each
must give what a fresh plan gives on the same buffers, and the case what the oracle says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import torch
from torch import Tensor

from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.in_buffers import NOTHING, Batch, InBuffers, Seen
from treeproof.engine.checks.kept_fields import Where, not_capturable, unexplained, ways_to_keep
from treeproof.engine.checks.stages import close
from treeproof.engine.checks.trial import Trial
from treeproof.generate.captured import Batches, batches
from treeproof.properties import output
from treeproof.properties.contract import same_rows
from treeproof.properties.probes.capture import captured, host_decisions
from treeproof.properties.violation import Violation

_ONE_IN = 4
"""Cases that have time for it: three builds and five launches."""

_IN_LARGER = "in buffers of a larger batch, "


def judge_captured(trial: Trial) -> None:
    """Of a backend that says it is capturable, one case in a few, where its numbers are right."""
    wanted = trial.backend.capabilities.capturable and trial.has("attend")
    due = trial.options.due(trial.case.seed, 2, _ONE_IN)
    wrong = trial.broken or any(
        f.evidence == "measured" and f.identity in ("output", "visibility") for f in trial.failures
    )
    if not wanted or not due or wrong or not trial.runs("captured"):
        return
    found = _taken(trial)
    if found is None:
        return
    with trial.probing("captured"), trial.timed("probe"):
        try:
            once = _Once(trial, found)
            failure = once.judged()
        except Violation as violation:
            told = _IN_LARGER + violation.failure.message
            trial.broke(Violation(msgspec.structs.replace(violation.failure, message=told)))
            return
        close(trial, once.instance)
        if failure is not None and trial.wants(failure.identity, failure.evidence):
            trial.judged(failure.identity, failure.evidence, "attend", [failure])


def _taken(trial: Trial) -> Batches | None:
    refusal, device = trial.backend.capabilities.refusal, trial.options.device
    ways = batches(trial.case)
    return next((w for w in ways if all(refusal(c, device) is None for c in w.all)), None)


class _Once:
    """A launch that is planned once, and fresh plans beside it."""

    def __init__(self, trial: Trial, found: Batches) -> None:
        self._trial = trial
        self.instance = trial.call("plan", trial.backend.make)
        self._buffers = InBuffers(trial, self.instance, found.all)
        self._first, self._before, self._last = self._buffers.batches

    def judged(self) -> Failure | None:
        """What is wrong with the case, or else with the batch before it."""
        fresh = [self._fresh(batch) for batch in (self._before, self._last)]
        failure = self._against_oracle(fresh[1])
        if failure is not None:
            return failure
        self._buffers.clear()  # fresh plans left there what is still to come
        self._buffers.fill(self._first)
        planned = self._buffers.planned(self.instance)
        reasons = self._why_not(planned.attend)
        if reasons:
            return not_capturable(reasons)
        try:
            repeated = captured(planned.attend, self._trial.scene.device)
        except Violation as violation:
            return not_capturable(violation.failure.message)
        earlier: list[VerifyInput] = []
        wrong: list[Callable[[], Failure]] = []
        for batch, right in zip((self._before, self._last), fresh, strict=True):
            earlier.append(copied(self._buffers.x))
            self._buffers.fill(batch)
            planned.renew()
            seen = self._outcome(repeated, batch)
            if not self._same(batch, seen, right):
                wrong.append(partial(self._failure, batch, seen, right, tuple(earlier)))
        return wrong[-1]() if wrong else None

    def _why_not(self, attend: Callable[[], Any]) -> str:
        """Where a graph would repeat what the host has decided once. On CUDA a capture tells."""
        if self._trial.scene.device.type != "cpu":
            return ""
        with host_decisions() as asked:
            attend()
        names = ", ".join(dict.fromkeys(asked))
        return f"it waits for the device in {names}" if names else ""

    def _rerun(self, batch: Batch, kept: Mapping[str, Tensor]) -> Any:
        """By a plan of its own, on another object."""
        self._buffers.fill(batch, kept)
        return self._buffers.planned(self._trial.instance).attend()

    def _fresh(self, batch: Batch) -> Seen:
        return self._buffers.seen(self._rerun(batch, NOTHING), batch)

    def _outcome(self, run: Callable[[], Any], batch: Batch) -> Seen | Violation:
        try:
            return self._buffers.seen(run(), batch)
        except Violation as violation:
            return violation

    def _same(self, batch: Batch, a: Seen | Violation, b: Seen | Violation) -> bool:
        """Bitwise, or within the bound where the backend is not deterministic."""
        if isinstance(a, Violation) or isinstance(b, Violation):
            broken = [x.failure.message for x in (a, b) if isinstance(x, Violation)]
            return len(broken) == 2 and broken[0] == broken[1]
        writes = all(bool(same_rows(x, y).all()) for x, y in zip(a.held, b.held, strict=True))
        if self._trial.backend.capabilities.deterministic:
            return writes and bool(_same_real_rows(batch, a, b).all())
        return writes and (batch is not self._last or self._against_oracle(a) is None)

    def _against_oracle(self, seen: Seen) -> Failure | None:
        """The rows of the case itself, behind which there are padded ones here."""
        trial, starts = self._trial, self._last.scene.case.qo_indptr
        rows = torch.tensor(
            [
                start + row
                for start, request in zip(starts, trial.case.requests, strict=False)
                for row in range(request.num_rows)
            ],
            device=trial.scene.device,
        )
        truth, able = trial.prepared.truth, trial.backend.capabilities
        limit = output.bounds(trial.scene, truth, trial.backend.numerics, able)
        out, lse = seen.attended.out[rows], seen.attended.lse
        lse = None if lse is None else lse[rows]
        wrong, _ = output.judge(trial.scene, truth, limit, out, lse, able)
        if not wrong:
            return None
        return msgspec.structs.replace(wrong[0], message=_IN_LARGER + wrong[0].message)

    def _failure(
        self, batch: Batch, seen: Seen | Violation, right: Seen, earlier: Sequence[VerifyInput]
    ) -> Failure:
        """What differs, and which fields of an earlier batch a fresh plan does the same with."""
        where, read = self._where(batch, seen, right), self._trial.backend.consumes
        how = "captured in a CUDA graph" if batch.scene.device.type == "cuda" else "planned"
        self._buffers.fill(batch)
        now = copied(self._buffers.x)
        for before, which in zip(earlier, ("the first", "the one before"), strict=False):
            for kept in ways_to_keep(before, now, batch.scene.padding, read):
                again = self._outcome(partial(self._rerun, batch, kept.fields), batch)
                if self._same(batch, again, seen):
                    return kept.failure(how, which, where)
        return unexplained(how, where)

    def _where(self, batch: Batch, seen: Seen | Violation, right: Seen) -> Where:
        if isinstance(seen, Violation):
            return Where(None, None, seen.failure.message)
        differs = (~_same_real_rows(batch, seen, right)).nonzero().flatten().tolist()
        if not differs:
            return Where(None, None, "what it writes differs")
        b, row = batch.scene.rows[batch.scene.real[differs[0]]]
        if batch is not self._last or b >= len(self._trial.case.requests):
            return Where(None, None, f"{len(differs)} rows of another batch differ")
        return Where(b, row, f"request {b}, row {row} differs")


def _same_real_rows(batch: Batch, a: Seen, b: Seen) -> Tensor:
    """(real rows,) bool."""
    rows, one, other = batch.scene.real_index, a.attended, b.attended
    same = same_rows(one.out[rows], other.out[rows])
    if one.lse is not None and other.lse is not None:
        same &= same_rows(one.lse[rows], other.lse[rows])
    return same
