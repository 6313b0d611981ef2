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

_TOPK = 2
_PARENTS = (-1, 0, 1)
"""The cells that parents are found through: candidate 4 is a child of 1."""

_Selections = Mapping[str, tuple[tuple[int, int], tuple[int, int, int]]]
"""Of request 0: what is wrong, selected pool indices, and its line of `parent_list`."""

_OF_CHAINS: _Selections = {
    # The parent's pool index is the first one that the other request selected.
    "the parent of row 2 was not selected": ((0, 4), _PARENTS),
    "rows 1 and 2 are each other's parents": ((2, 4), (-1, 4, 2)),
    "row 2 is its own parent": ((1, 4), (-1, 0, 4)),
    "rows 1 and 2 are one candidate": ((1, 1), _PARENTS),
    "row 2 is a candidate past the end of the pool": ((1, 6), _PARENTS),
    "the parent of row 2 is past the end of the pool": ((1, 4), (-1, 0, 99)),
    "row 2 is no candidate": ((1, -1), _PARENTS),
}
_OF_FORKS: _Selections = {"row 2 is deeper than spec_steps": ((1, 4), _PARENTS)}

_TRIED: tuple[tuple[str, int, tuple[int, int], _Selections], ...] = (
    ("chains", 2, (1, 4), _OF_CHAINS),
    ("forks", 1, (0, 1), _OF_FORKS),
)
"""What two whole requests are, their `spec_steps`, what each selected, and what is tried on one."""


def judge_malformed_builds(trial: Trial) -> None:
    """Two requests of three rows each; then the same with the first one's selection malformed."""
    if not trial.runs("malformed") or not _is_due(trial):
        return
    case, device = trial.case, trial.options.device
    scene, made = two_chains(case.shape, case.layout, case.mask, device)
    if trial.backend.capabilities.refusal(scene.case, device) is not None:
        return
    with trial.probing("malformed"):
        try:
            for what, steps, selected, selections in _TRIED:
                _judge(trial, scene, _whole(made, steps, selected), what, selections)
        except Violation as violation:
            trial.broke(violation)


def _judge(
    trial: Trial, scene: Scene, whole: Candidates, two: str, selections: _Selections
) -> None:
    # Of its own: what a build keeps for attend must not be spoilt.
    instance = trial.call("plan", trial.backend.make)
    try:
        with _told(f"two {two}", "both selections are whole"):
            right = contract.valid_built(trial.call("build", instance.build, copied(whole)), scene)
        for what, (selected, parents) in selections.items():
            made = _with_first(whole, selected, parents)
            with _told(f"two {two}", what):
                built = _built(trial, instance, scene, made)
                if built is not None:
                    _note(trial, _failures(scene, right, built, what))
    finally:
        close(trial, instance)


@contextmanager
def _told(two: str, what: str) -> Iterator[None]:
    """A broken contract is one of these two requests, not of the case that is checked."""
    try:
        yield
    except Violation as violation:
        failure = violation.failure
        told = msgspec.structs.replace(
            failure,
            kind=f"malformed-{failure.kind}",
            message=f"on {two} of three rows, where {what}: {failure.message}",
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
def two_chains(shape: Any, layout: Any, mask: Any, device: str) -> tuple[Scene, Candidates]:
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
    return scene, candidates(case, scene.ledger, device)


def _whole(made: Candidates, steps: int, selected: tuple[int, int]) -> Candidates:
    both = torch.tensor([selected, selected], device=made.seq_lens.device)
    parents = torch.tensor([_PARENTS, _PARENTS], device=made.seq_lens.device)
    return replace(made, topk=_TOPK, spec_steps=steps, selected_index=both, parent_list=parents)


def _with_first(
    whole: Candidates, selected: tuple[int, ...], parents: tuple[int, ...]
) -> Candidates:
    made = copied(whole)
    made.selected_index[0] = made.selected_index.new_tensor(selected)
    made.parent_list[0] = made.parent_list.new_tensor(parents)
    return made
