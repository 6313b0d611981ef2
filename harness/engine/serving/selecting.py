"""Rows of a round out of a draft pool: the backend selects them, and they are what is built."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from treeproof.contract.case import Request
from treeproof.contract.counter import permutation
from treeproof.contract.inputs import Candidates, DraftPool, Selected
from treeproof.diagnosis.earlier_rounds import Named
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.stage import ask, judged, tell
from treeproof.engine.serving.step import Step
from treeproof.generate.draft_pool import draft_pool, pool_index
from treeproof.properties.contract import valid_selected
from treeproof.properties.selecting import Pool, judge_selected

_IDS = 705  # address word of the drafter's ids


def select(trial: Trial, step: Step) -> Candidates:
    """The candidates of the round, by what the backend selects; a call for each number of rows.

    A selection has ascending pool indices; rows lie as the case has them.
    """
    made, requests = step.made, step.case.requests
    pool, device = draft_pool(step.case), made.draft_token.device
    if trial.backend.capabilities.draft_vocabulary:
        pool = _in_its_own_ids(pool)
    parents, index = made.parent_list.clone(), made.selected_index.clone()
    tokens = made.draft_token.clone()
    by_rows: dict[int, list[int]] = {}
    for b, request in enumerate(requests):
        by_rows.setdefault(request.num_nodes, []).append(b)
    for num_rows, lines in by_rows.items():
        given = Pool(tuple(lines), "what was drafted", _lines(pool, lines, device), num_rows)
        result = ask(trial, "select", given.pool, first=step.first, rest=(num_rows,))
        selected = valid_selected(result, len(lines), num_rows)
        numbers = tuple(step.numbers[b] for b in lines)
        wrong = partial(_wrong, given, selected)
        tell(trial, "select", numbers, {}, _gave(selected), wrong, num_rows)
        judged(trial, "candidate", "declared", "select", judge_selected(given, selected))
        for line, b in enumerate(lines):
            listed = selected.parent_list[line, : parents.shape[1]]
            parents[b, : len(listed)] = listed
            for row, at in enumerate(_order(requests[b], pool.topk, selected, line)):
                index[b, row] = selected.selected_index[line, at]
                tokens[b, row] = selected.draft_token[line, at]
    return replace(made, parent_list=parents, selected_index=index, draft_token=tokens)


def _gave(selected: Selected) -> Named:
    tables = {
        "indices": selected.selected_index,
        "tokens": selected.draft_token,
        "parents": selected.parent_list,
    }
    return {name: tuple(map(tuple, table.tolist())) for name, table in tables.items()}


def _wrong(pool: Pool, selected: Selected, given: Named) -> frozenset[str]:
    """A pool is what it is."""
    names = {"wrong-token": "tokens", "wrong-parent": "parents"}
    return frozenset(names.get(f.kind, "indices") for f in judge_selected(pool, selected))


def _in_its_own_ids(pool: DraftPool) -> DraftPool:
    """The same candidates in a vocabulary of the drafter's own, which stays what it is."""
    size = int(pool.tokens.max()) + 1
    hot = torch.tensor(permutation(size, size, _IDS))
    return replace(pool, tokens=hot.argsort()[pool.tokens], hot_token_id=hot)


def _lines(pool: DraftPool, lines: list[int], device: torch.device) -> DraftPool:
    scores, tokens, parents = (
        table[lines].to(device) for table in (pool.scores, pool.tokens, pool.parents)
    )
    hot = None if pool.hot_token_id is None else pool.hot_token_id.to(device)
    return replace(pool, scores=scores, tokens=tokens, parents=parents, hot_token_id=hot)


def _order(request: Request, topk: int, selected: Selected, line: int) -> list[int]:
    """Of each row behind the root, the place that its candidate has in the selection."""
    place = {s: at for at, s in enumerate(selected.selected_index[line].tolist())}
    of_node = pool_index(request.tree, topk)
    return [place[of_node[node]] for node in request.node_of_row[1:]]
