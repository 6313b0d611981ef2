"""Batches of one size that are copied into the same buffers, and launched there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from treeproof.backends.reference.store import store_kv
from treeproof.contract.case import VerifyCase
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.engine.checks.related import staged
from treeproof.engine.checks.stages import build
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.generate.data import logical_data
from treeproof.properties.contract import valid_attended
from treeproof.properties.probes import random_data
from treeproof.properties.probes.buffers import Buffers
from treeproof.properties.probes.launch import Arguments
from treeproof.properties.scene import Scene

NOTHING: Mapping[str, Tensor] = {}


@dataclass(frozen=True)
class Batch:
    """One batch as it is copied. `x` is what was built, `given.x` what the backend is shown of it."""

    scene: Scene
    x: VerifyInput
    given: Arguments


@dataclass(frozen=True)
class Seen:
    """What a launch gave, and what it left in the caches."""

    attended: Attended
    held: tuple[Tensor, ...]


@dataclass(frozen=True)
class Planned:
    """An object's launch on the buffers, planned on what they held then."""

    trial: Trial
    instance: Any
    buffers: Buffers
    state: Any

    def attend(self) -> Any:
        return self.trial.call("attend", self.instance.attend, self.state, *self.buffers.rows)

    def renew(self) -> None:
        """What is due on the host before each further batch, where the backend has such a thing."""
        replan = getattr(self.instance, "replan", None)
        if replan is not None:
            self.trial.call("plan", replan, self.state, self.buffers.x)


class InBuffers:
    """The batches, built by `instance`, and buffers as large as the largest of them."""

    def __init__(self, trial: Trial, instance: Any, cases: Sequence[VerifyCase]) -> None:
        self._trial = trial
        self.batches = [self._built(instance, case) for case in cases]
        self._buffers = Buffers([batch.given for batch in self.batches])

    def _built(self, instance: Any, case: VerifyCase) -> Batch:
        trial = self._trial
        scene, made = staged(case, trial.options.device)
        x = build(trial, instance, scene, made).x
        # The layer is one and the same, whatever the batch.
        x = replace(x, **vars(trial.scene.layer))
        data = logical_data(case, trial.options.device)
        contents = random_data.contents(scene, x, data, random_data.QUIET)
        seen = garble(x, trial.backend.consumes, trial.case.seed)
        # An object may build the next batch where it built this one.
        x = replace(x, out_cache_loc=x.out_cache_loc.clone())
        return Batch(scene, x, Arguments.of(scene, seen, contents))

    @property
    def x(self) -> VerifyInput:
        """The input as a launch reads it: whatever was copied last."""
        return self._buffers.x

    def clear(self) -> None:
        """As before the first batch."""
        self._buffers.clear()

    def fill(self, batch: Batch, kept: Mapping[str, Tensor] = NOTHING) -> None:
        """Copy a batch; the fields `kept` hold this instead, as large as their buffers."""
        self._buffers.fill(batch.given)
        for name, field in kept.items():
            getattr(self.x, name).copy_(field)
        if not self._trial.backend.capabilities.stores_kv:
            true = replace(batch.x, k_scale=self.x.k_scale, v_scale=self.x.v_scale)
            store_kv(true, *self._buffers.rows[1:])

    def planned(self, instance: Any) -> Planned:
        plan = getattr(instance, "plan", None)
        state = self.x if plan is None else self._trial.call("plan", plan, self.x)
        return Planned(self._trial, instance, self._buffers, state)

    def seen(self, result: Any, batch: Batch) -> Seen:
        """Copies of it: the next launch may be made into the same memory."""
        attended = valid_attended(result, batch.scene)
        lse = None if attended.lse is None else attended.lse.clone()
        held = tuple(t.clone() for t in self._buffers.held)
        return Seen(Attended(attended.out.clone(), lse), held)
