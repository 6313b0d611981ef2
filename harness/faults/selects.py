"""Faults of a selection: a child without its parent, rows out of order, tokens of another id or request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.inputs import Candidates, DraftPool, Selected, VerifyInput
from treeproof.faults.fault import Fault
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import FORK, case, request
from treeproof.faults.wrong import Wrong, faults_of

Select = Callable[[DraftPool, int], Selected]
Does = Callable[[Select, DraftPool, int], Selected]


def _taking(pool: DraftPool, chosen: Tensor, right: Selected) -> Selected:
    """These candidates with all that is theirs."""
    tokens = pool.tokens.gather(1, chosen)
    hot = pool.hot_token_id
    drafted = tokens if hot is None else hot[tokens]
    return replace(right, selected_index=chosen, draft_token=drafted)


def _later_of_equals(right: Select, pool: DraftPool, num_rows: int) -> Selected:
    """Of equal scores whichever a parallel sort leaves in front."""
    ranked = torch.sort(pool.scores.flip(1), dim=1, descending=True, stable=True).indices
    chosen = pool.scores.shape[1] - 1 - ranked[:, : num_rows - 1]
    return _taking(pool, chosen.sort(dim=1).values, right(pool, num_rows))


def _by_step(right: Select, pool: DraftPool, num_rows: int) -> Selected:
    """Scores are those of each step alone, and not multiplied along the path."""
    k = pool.topk
    above = pool.scores.gather(1, pool.parents[:, 1:]).repeat_interleave(k, 1)
    above = above[:, : pool.scores.shape[1] - k]
    steps = (pool.scores[:, k:] / above).nan_to_num(nan=0.0)
    return right(replace(pool, scores=torch.cat([pool.scores[:, :k], steps], dim=1)), num_rows)


def _by_score(right: Select, pool: DraftPool, num_rows: int) -> Selected:
    done = right(pool, num_rows)
    scores = pool.scores.gather(1, done.selected_index)
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices
    return _taking(pool, done.selected_index.gather(1, order), done)


def _unmapped(right: Select, pool: DraftPool, num_rows: int) -> Selected:
    return right(replace(pool, hot_token_id=None), num_rows)


def _as_offsets(right: Select, pool: DraftPool, num_rows: int) -> Selected:
    if pool.hot_token_id is None:
        return right(pool, num_rows)
    ids = torch.arange(len(pool.hot_token_id), device=pool.hot_token_id.device)
    return right(replace(pool, hot_token_id=ids + pool.hot_token_id), num_rows)


def _of_first(right: Select, pool: DraftPool, num_rows: int) -> Selected:
    return replace(
        right(replace(pool, tokens=pool.tokens[:1].expand_as(pool.tokens)), num_rows),
    )


def _one_early(right: Select, pool: DraftPool, num_rows: int) -> Selected:
    """The root counts as a candidate in the list of tokens."""
    tokens = torch.cat([pool.tokens[:, :1], pool.tokens[:, :-1]], dim=1)
    return right(replace(pool, tokens=tokens), num_rows)


def _selects(backend: Backend) -> bool:
    return "select" in backend.stages


def _maps(backend: Backend) -> bool:
    return _selects(backend) and backend.capabilities.draft_vocabulary


def _as_if_dense(right: Callable[[Candidates], VerifyInput], c: Candidates) -> VerifyInput:
    """A kernel takes a request's parents to come right after those of the one before."""
    dense = (c.parent_list.shape[1], 1)
    return right(replace(c, parent_list=c.parent_list.as_strided(c.parent_list.shape, dense)))


_WRONG: tuple[Wrong[Does], ...] = (
    Wrong(
        "child-before-parent", "",
        "of equal scores any may be taken, so that a child is selected without its parent",
        "child-before-parent", _later_of_equals, case(request((-1, 0, 1))),
    ),
    Wrong(
        "selected-by-step", "",
        "a candidate's score is that of its own step, which its parents have no part in",
        "selected-by-step", _by_step, case(request((-1, 0, 1))),
    ),
    Wrong(
        "selection-unordered", "", "rows come by score, and not in the order of the pool",
        "selection-unordered", _by_score, case(request((-1, 0, 0, 1))),
    ),
    Wrong(
        "draft-ids", "unmapped", "ids of the drafter's own vocabulary pass for the target's",
        "draft-ids-unmapped", _unmapped, case(request()),
        ("B005", "NVIDIA-NeMo/Automodel#2447"), applies=_maps,
    ),
    Wrong(
        "draft-ids", "as-offsets", "the target's ids are added to the drafter's, as if they were offsets",
        "draft-ids-unmapped", _as_offsets, case(request()),
        ("B005", "verl-project/verl-SpeCo#67"), applies=_maps,
    ),
    Wrong(
        "selected-of-neighbour", "", "tokens of all requests are looked up in the first one's pool",
        "selected-of-neighbour", _of_first, case(request(), request()), ("B003",),
    ),
    Wrong(
        "selected-tokens-shifted", "", "a row carries the token of the candidate before its own",
        "selected-tokens-shifted", _one_early, case(request(FORK)), ("B007", "mlc-ai/mlc-llm#2949"),
    ),
)  # fmt: skip

FAULTS = (
    *faults_of(
        _WRONG,
        stage="select",
        identity="candidate",
        evidence="declared",
        plant=lambda does: lambda backend: wrapped(backend, "select", does),
        applies=_selects,
    ),
    Fault(
        family="parents-as-if-dense",
        says="a list of parents that is a view of a longer one is read as if it were dense",
        sources=(),
        stage="build",
        identity="traversal",
        evidence="declared",
        cause="unknown",
        smallest=case(request((-1, 0, 1, 2)), request()),
        plant=lambda backend: wrapped(backend, "build", _as_if_dense),
        applies=lambda backend: {"select", "build"} <= backend.stages,
    ),
)
