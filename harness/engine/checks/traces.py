"""From pool to rows through a backend's own select and its own build: one index space handed to the other.

Each is right by itself where the other checks pass. What is left is what passes between them: a list
that is a view, indices of another type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from treeproof.contract.case import MaskMode, Request, VerifyCase, pages_needed
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import Candidates, Selected
from treeproof.contract.tree import CandidateTree
from treeproof.engine.checks.selects import selected, tried
from treeproof.engine.checks.stages import close
from treeproof.engine.checks.trial import Trial
from treeproof.generate.pool import candidates
from treeproof.oracles.select import selection
from treeproof.properties import candidate, contract, position, traversal
from treeproof.properties.scene import Scene
from treeproof.properties.selecting import Pool, judge_selected
from treeproof.properties.violation import Violation

_ONE_IN = 4
_LINKS = ("retrieve_next_token", "retrieve_next_sibling")


def judge_traces(trial: Trial) -> None:
    """The rows of one drawn pool, selected and built: tokens, positions and links."""
    own = trial.has("select") and trial.has("build")
    if not own or trial.broken or trial.borrows("select") or trial.borrows("build"):
        return
    if not (trial.runs("declared") and trial.options.due(trial.case.seed, 1, _ONE_IN)):
        return
    with trial.probing("declared"):
        try:
            _judge(trial, next(given for given in tried(trial) if "saturated" in given.what))
        except Violation as violation:
            trial.broke(violation)


def _judge(trial: Trial, given: Pool) -> None:
    got = selected(trial, given)
    if judge_selected(given, got):
        return  # told by itself
    case = _case(trial.case, [_tree(given, got, line) for line in range(len(given.requests))])
    if case is None or trial.backend.capabilities.refusal(case, trial.options.device) is not None:
        return
    scene = Scene.of(case, trial.options.device)
    made = _handed(candidates(case, scene.ledger, trial.options.device), given, got)
    # Of its own: what a build keeps for attend must not be spoilt.
    instance = trial.call("plan", trial.backend.make)
    try:
        built = contract.valid_built(trial.call("build", instance.build, made), scene)
    finally:
        close(trial, instance)
    found = [
        msgspec.structs.replace(f, message=f"out of its own selection: {f.message}")
        for f in _failures(scene, built)
    ]
    for identity in ("candidate", "position", "traversal"):
        wrong = [failure for failure in found if failure.identity == identity]
        if wrong and trial.wants(identity, "declared"):
            trial.judged(identity, "declared", "build", wrong)


def _case(like: VerifyCase, trees: list[CandidateTree]) -> VerifyCase | None:
    """These trees in a layer and a cache of the same kind; None where these have no room for them."""
    requests = tuple(
        Request(tree=tree, row_of_node=tuple(range(len(tree))), prefix_len=1 + b)
        for b, tree in enumerate(trees)
    )
    layout = msgspec.structs.replace(like.layout, shared_prefix=0, evicted=False, page_table_pad=0)
    slots = pages_needed(requests, layout) * layout.page_size
    packed = like.mask.mode is MaskMode.QLEN_ONLY_BITPACKING
    if slots > 1 << min(like.shape.head_dim, like.shape.v_head_dim):
        return None
    if packed and any(len(tree) > 32 for tree in trees):
        return None
    layout = msgspec.structs.replace(layout, num_slots=slots)
    return VerifyCase(requests=requests, shape=like.shape, layout=layout, mask=like.mask)


def _handed(made: Candidates, given: Pool, got: Selected) -> Candidates:
    """Candidates that hold the selection itself, as it was returned."""
    return replace(
        made,
        parent_list=got.parent_list,
        selected_index=got.selected_index,
        draft_token=got.draft_token,
        topk=given.pool.topk,
        spec_steps=given.pool.spec_steps,
    )


def _tree(given: Pool, got: Selected, line: int) -> CandidateTree:
    rows = selection(
        got.selected_index[line].tolist(),
        given.tokens[line].tolist(),
        given.pool.parents[line].tolist(),
        given.pool.topk,
    )
    return rows.tree(root_token=line)


def _failures(scene: Scene, built: Mapping[str, Any]) -> Iterator[Failure]:
    case = scene.case
    if "draft_token" in built:
        tokens = candidate.recover_tokens(built["draft_token"].tolist(), case.qo_indptr)
        yield from candidate.judge(case, tokens, "declared", "build")
    if "positions" in built:
        prefixes = [request.prefix_len for request in case.requests]
        depths = position.recover_depths(built["positions"].tolist(), case.qo_indptr, prefixes)
        yield from position.judge_declared(case, depths)
    if set(_LINKS) <= set(built):
        rows = [request.num_nodes for request in case.requests]
        down, right = (built[name].tolist() for name in _LINKS)
        parents = traversal.recover_links(down, right, rows)
        yield from traversal.judge_parents(case, parents, "build")
