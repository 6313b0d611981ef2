"""A build of its own, handed a selection that is no tree: what it refuses, and what it spoils."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import msgspec
import torch

from treeproof.contract.case import Request, VerifyCase, pages_needed
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import Candidates
from treeproof.contract.tree import CandidateTree
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.device_fault import is_device_fault
from treeproof.engine.checks.stages import close
from treeproof.engine.checks.trial import Trial
from treeproof.generate.pool import candidates
from treeproof.properties import contract
from treeproof.properties.malformed import judge_malformed
from treeproof.properties.scene import Scene
from treeproof.properties.violation import Violation, contract_failure

ONE_IN = 4
"""Cases that do this: what is handed in depends on the shape and layout alone."""

_TOPK, _STEPS = 2, 2
_PARENTS, _WHOLE = (-1, 0, 1), (1, 4)
"""Pool indices of two rows, and the cells they are found through: 4 is a child of 1."""

_SELECTIONS = {
    # The parent's pool index is the first one that the other request selected.
    "the parent of row 2 was not selected": ((0, 4), _PARENTS),
    "rows 1 and 2 are each other's parents": ((2, 4), (-1, 4, 2)),
}
"""Of request 0: what is wrong, selected pool indices, and its line of `parent_list`."""


def judge_malformed_builds(trial: Trial) -> None:
    """Two requests of one chain each; then the same with the first one's selection malformed."""
    if not trial.runs("malformed") or not _is_due(trial):
        return
    case, device = trial.case, trial.options.device
    scene, whole = _made(case.shape, case.layout, case.mask, device)
    if trial.backend.capabilities.refusal(scene.case, device) is not None:
        return
    with trial.probing("malformed"):
        try:
            _judge(trial, scene, whole)
        except Violation as violation:
            trial.broke(violation)


def _judge(trial: Trial, scene: Scene, whole: Candidates) -> None:
    # Of its own: what a build keeps for attend must not be spoilt.
    instance = trial.call("plan", trial.backend.make)
    try:
        with _told("both selections are whole"):
            right = contract.valid_built(trial.call("build", instance.build, copied(whole)), scene)
        for what, (selected, parents) in _SELECTIONS.items():
            made = _with_first(whole, selected, parents)
            with _told(what):
                built = _built(trial, instance, scene, made)
                if built is not None:
                    _note(trial, _failures(scene, right, built, what))
    finally:
        close(trial, instance)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """A broken contract is one of these two chains, not of the case that is checked."""
    try:
        yield
    except Violation as violation:
        failure = violation.failure
        told = msgspec.structs.replace(
            failure,
            kind=f"malformed-{failure.kind}",
            message=f"on two chains of three rows, where {what}: {failure.message}",
        )
        raise Violation(told) from violation


def _is_due(trial: Trial) -> bool:
    """Whether there is a build to be judged, sound so far, that can be handed an orphan."""
    own = trial.has("build") and not trial.borrows("build") and not trial.broken
    most = trial.backend.capabilities.max_topk
    due = trial.options.due(trial.case.seed, 0, ONE_IN)
    return own and due and (most is None or most >= _TOPK)


def _built(trial: Trial, instance: Any, scene: Scene, made: Candidates) -> Mapping[str, Any] | None:
    """What was built; None where it was refused."""
    try:
        return contract.valid_built(trial.call("build", instance.build, copied(made)), scene)
    except Violation as violation:
        if is_refusal(violation.__cause__):
            return None
        raise


def is_refusal(error: BaseException | None) -> bool:
    """Said by somebody who looked, unlike a lookup that fails or memory that is not there."""
    if isinstance(error, RuntimeError) and is_device_fault(error):
        return False
    return isinstance(error, ValueError | AssertionError | RuntimeError)


def _failures(
    scene: Scene, right: Mapping[str, Any], built: Mapping[str, Any], what: str
) -> list[Failure]:
    try:
        return judge_malformed(scene, right, built, what)
    except (ValueError, IndexError) as error:
        text = f"tables of build cannot be decoded: {type(error).__name__}: {error}"
        raise Violation(contract_failure("table", "build", text)) from error


def _note(trial: Trial, failures: list[Failure]) -> None:
    for identity in ("candidate", "traversal"):
        own = [failure for failure in failures if failure.identity == identity]
        if own and trial.wants(identity, "declared"):
            trial.judged(identity, "declared", "build", own)


@lru_cache(maxsize=32)
def _made(shape: Any, layout: Any, mask: Any, device: str) -> tuple[Scene, Candidates]:
    requests = tuple(
        Request(
            tree=CandidateTree((10 * b, 10 * b + 1, 10 * b + 2), (-1, 0, 1)),
            row_of_node=(0, 1, 2),
            prefix_len=2 + b,
        )
        for b in range(2)
    )
    layout = msgspec.structs.replace(layout, shared_prefix=0, evicted=False, page_table_pad=0)
    slots = pages_needed(requests, layout) * layout.page_size
    case = VerifyCase(
        requests=requests,
        shape=shape,
        layout=msgspec.structs.replace(layout, num_slots=slots),
        mask=mask,
    )
    scene = Scene.of(case, device)
    made = candidates(case, scene.ledger, device)
    both = torch.tensor([_WHOLE, _WHOLE], device=device)
    parents = torch.tensor([_PARENTS, _PARENTS], device=device)
    return scene, replace(
        made, topk=_TOPK, spec_steps=_STEPS, selected_index=both, parent_list=parents
    )


def _with_first(
    whole: Candidates, selected: tuple[int, ...], parents: tuple[int, ...]
) -> Candidates:
    made = copied(whole)
    made.selected_index[0] = made.selected_index.new_tensor(selected)
    made.parent_list[0] = made.parent_list.new_tensor(parents)
    return made
