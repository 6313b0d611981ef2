"""Outside the limits that it declares a backend says no: it raises.

A backend for chains that is handed a tree must not compute something else instead, and leaves inputs and
caches as they were. Beyond its rows and page sizes it may also be right, for that it can do more than it
says is nobody's harm, and it may have written its rows before a kernel says no.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from treeproof.backends.reference.store import store_kv
from treeproof.contract.backend import Backend, BackendUnavailable
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import OTHER_CASES, PROBES, Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.engine.checks.copies import copied, tensors_in
from treeproof.engine.checks.device_fault import is_device_fault
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.checks.related import staged
from treeproof.engine.checks.stages import build, close
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.generate.beyond import Beyond, beyond
from treeproof.properties.contract import same_bits
from treeproof.properties.probes.codes import sign_codes
from treeproof.properties.probes.storage import Caches
from treeproof.properties.violation import Violation, contract_failure

ONE_IN = 4
"""Cases that have time for it: what is handed over hangs on their shape and layout alone."""

_STRICT = ("max_topk",)
"""Limits beyond which nothing but a refusal will do."""

Check = Callable[[VerifyCase, Backend, CheckOptions], Checked]


class _Refused(Exception):
    """A stage has said no."""


def judge_guard(trial: Trial, check: Check) -> None:
    """`check` judges a whole case, for backends that do not say no."""
    if not trial.runs("guard") or not trial.options.due(trial.case.seed, 1, ONE_IN):
        return
    able, device = trial.backend.capabilities, trial.options.device
    for one in beyond(trial.case, able, device):
        with trial.probing("guard"), trial.timed("probe"):
            try:
                trial.note(*_judge(trial, one, check))
            except Violation as violation:
                trial.broke(violation)


def _judge(trial: Trial, one: Beyond, check: Check) -> list[Failure]:
    asked = _Asked(trial, one)
    try:
        last = asked.all_stages()
    except _Refused:
        return asked.changed if one.limit in _STRICT else []
    finally:
        close(trial, asked.instance)
    says = f"outside its capabilities is {one.says}, and {last} does not refuse it"
    if one.limit in _STRICT:
        return [contract_failure("not-refused", last, says)]
    lifted = replace(trial.backend, capabilities=one.lifted)
    # Whether it is right hangs on nothing that somebody has switched off.
    options = CheckOptions(
        device=trial.options.device,
        profile=trial.options.profile,
        probes=frozenset(PROBES) - OTHER_CASES,
        in_flight=trial.options.in_flight,
    )
    wrong = check(one.case, lifted, options).failures
    return [contract_failure("not-refused", last, f"{says}: {wrong[0].message}")] if wrong else []


class _Asked:
    """The stages of a round, one after another, up to the first that says no or hands something out."""

    def __init__(self, trial: Trial, one: Beyond) -> None:
        self.scene, self.made = staged(one.case, trial.options.device)
        self.changed: list[Failure] = []
        """What a stage that said no has changed all the same."""
        # What is noted there is of a case that nobody has to be right on.
        self.trial = Trial(trial.backend, trial.options, self.scene, probe=trial.probe)
        self.instance = self.trial.call("plan", trial.backend.make)
        self._says = one.says

    def all_stages(self) -> str:
        """The stage that did not say no. Raises _Refused."""
        trial, instance = self.trial, self.instance
        if trial.has("build"):
            given = copied(self.made)
            with self._asking("build", {"candidates": (self.made, given)}):
                trial.call("build", instance.build, given)
        try:
            x = build(trial, instance, self.scene, self.made).x
        except Violation:  # it handed something out, of whatever kind
            return "build"
        seen = garble(x, trial.backend.consumes, trial.case.seed)
        if trial.has("attend"):
            self._attend(x, seen)
            return "attend"
        if trial.has("accept"):
            predicted = torch.zeros_like(self.scene.row_slot)
            pairs = {
                "its input": (seen, copied(seen)),
                "predictions": (predicted, predicted.clone()),
            }
            with self._asking("accept", pairs):
                trial.call("accept", instance.accept, *(given for _, given in pairs.values()))
            return "accept"
        return "build"

    def _attend(self, x: VerifyInput, seen: VerifyInput) -> None:
        trial = self.trial
        caches, rows = self._caches(), self._rows()
        if not trial.backend.capabilities.stores_kv:
            store_kv(x, *rows[1:], caches.k, caches.v)
        pairs: dict[str, tuple[Any, Any]] = {"its input": (seen, copied(seen))}
        names = ("q", "k", "v", "k_cache", "v_cache")
        tensors = (*rows, caches.k, caches.v)
        pairs |= {n: (t.clone(), t) for n, t in zip(names, tensors, strict=True)}
        with self._asking("attend", pairs):
            state, plan = pairs["its input"][1], getattr(self.instance, "plan", None)
            if plan is not None:
                state = trial.call("plan", plan, state)
            trial.call("attend", self.instance.attend, state, *tensors)

    def _rows(self) -> tuple[Tensor, Tensor, Tensor]:
        shape, scene = self.scene.case.shape, self.scene
        sizes = (
            (shape.num_q_heads, shape.head_dim),
            (shape.num_kv_heads, shape.head_dim),
            (shape.num_kv_heads, shape.v_head_dim),
        )
        q, k, v = (
            torch.ones(scene.num_rows, *size, dtype=scene.dtype, device=scene.device)
            for size in sizes
        )
        return q, k, v

    def _caches(self) -> Caches:
        shape, layout = self.scene.case.shape, self.scene.case.layout
        k, v = (
            sign_codes(layout.num_slots, shape.num_kv_heads, width, 13, self.scene.device)
            for width in (shape.head_dim, shape.v_head_dim)
        )
        stored = self.scene.stored_dtype
        return Caches.laid(layout, k.to(stored), v.to(stored), k[0].to(stored), v[0].to(stored))

    @contextmanager
    def _asking(self, stage: str, pairs: Mapping[str, tuple[Any, Any]]) -> Iterator[None]:
        """A call that may raise. `pairs` are what it is handed, as it was and as it is."""
        try:
            yield
        except (Violation, BackendUnavailable) as error:
            if isinstance(error.__cause__, RuntimeError) and is_device_fault(error.__cause__):
                raise error.__cause__ from None  # a device that broke down has not said no
            self.changed = [
                contract_failure(
                    "refused-late", stage, f"{stage} refuses {self._says}, and has changed {name}"
                )
                for name, (before, after) in pairs.items()
                if _differ(before, after)
            ]
            raise _Refused from error


def _differ(before: Any, after: Any) -> bool:
    """A mask buffer is a build's to write, and holds nothing before."""
    was, now = tensors_in(before), tensors_in(after)
    return any(not same_bits(was[name], now[name]) for name in was if name != "mask_buffer")
