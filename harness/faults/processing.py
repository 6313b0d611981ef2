"""Faults of row processing: penalties, grammars and sampling parameters that do not follow the path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from treeproof.contract.constraints import Constraints
from treeproof.contract.inputs import VerifyInput
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import CHAIN, FORK, case, request
from treeproof.faults.wrong import Wrong, faults_of

Process = Callable[[VerifyInput, Tensor, Constraints], Tensor]
"""`process` as it was. The wrong one is `wrong(right, x, logits, given)`."""

_PAIR = case(request((-1, 0)))


@dataclass(frozen=True)
class _Row:
    """A row as `process` sees it: its request and the drafts that it is processed by."""

    request: int
    row: int
    drafts: tuple[int, ...]
    before: tuple[int, ...]
    """Drafts of all rows of the request up to this one, in row order."""
    last: bool
    every: tuple[int, ...] = ()
    """Drafts of all rows of the request."""


def _rows(x: VerifyInput) -> list[_Row]:
    """All real rows, by their batch-global number."""
    tables = (x.retrieve_index, x.retrieve_next_token, x.retrieve_next_sibling)
    lists = [table.tolist() for table in tables if table is not None]
    drafted, found = x.draft_token.tolist(), {}
    for b, (index, down, right) in enumerate(zip(*lists, strict=True)):
        count = sum(at >= 0 for at in index)
        tokens = [drafted[at] for at in index[:count]]
        waiting: list[tuple[int, tuple[int, ...]]] = [(0, ())]
        for row, drafts in waiting:
            before = tuple(tokens[1 : row + 1])
            found[index[row]] = _Row(b, row, drafts, before, row + 1 == count, tuple(tokens[1:]))
            child = down[row]
            while child >= 0:
                waiting.append((child, (*drafts, tokens[child])))
                child = right[child]
    return [found[at] for at in sorted(found)]


def _each(
    change: Callable[[_Row, dict[str, Tensor]], None],
    counted: Callable[[_Row], Sequence[int]] = lambda row: row.drafts,
    advanced: Callable[[_Row], Sequence[int]] = lambda row: row.drafts,
) -> Callable[..., Tensor]:
    """Every row as a request of its own that has no drafts, with counts and a state made here."""

    def wrong(right: Process, x: VerifyInput, logits: Tensor, given: Constraints) -> Tensor:
        assert x.retrieve_index is not None
        rows, made = _rows(x), logits.clone()
        asked = [_asked(row, given, counted(row), advanced(row)) for row in rows]
        for row, one in zip(rows, asked, strict=True):
            change(row, one)
        at = x.retrieve_index[x.retrieve_index >= 0].sort().values
        none = torch.full_like(at[:, None], -1)
        alone = replace(
            x, retrieve_index=torch.arange(len(at), device=at.device)[:, None],
            retrieve_next_token=none, retrieve_next_sibling=none, draft_token=x.draft_token[at],
        )  # fmt: skip
        split = {name: torch.stack([one[name] for one in asked]) for name in asked[0]}
        made[at] = right(alone, logits[at], Constraints(**split))
        return made

    return wrong


def _asked(
    row: _Row, given: Constraints, counted: Sequence[int], advanced: Sequence[int]
) -> dict[str, Tensor]:
    fields = {name: tensor[row.request].clone() for name, tensor in vars(given).items()}
    for token in counted:
        fields["counts"][token] += 1
    state = int(fields["grammar_state"])
    for token in advanced:
        state = int(fields["grammar"][state, token]) if state >= 0 else -1
    fields["grammar_state"].fill_(state)
    return fields


def _nothing(row: _Row, asked: dict[str, Tensor]) -> None:
    pass


def _unmasked(when: Callable[[_Row], bool]) -> Callable[[_Row, dict[str, Tensor]], None]:
    def change(row: _Row, asked: dict[str, Tensor]) -> None:
        if when(row):
            asked["grammar"].clamp_(min=0)

    return change


def _root_counted(row: _Row, asked: dict[str, Tensor]) -> None:
    """The root's token, by far the likeliest to be in the counts, is counted once more below it."""
    if row.row:
        asked["counts"][0] += 1  # token 0 is the root's in all that is drawn


def _left_at(name: str, neutral: float) -> Callable[[_Row, dict[str, Tensor]], None]:
    """On draft rows a parameter is left at what has no effect."""

    def change(row: _Row, asked: dict[str, Tensor]) -> None:
        if row.row:
            asked[name].fill_(neutral)

    return change


def _stateless(row: _Row) -> Sequence[int]:
    return ()


_WRONG = (
    Wrong(
        "grammar-by-rows", "", "the grammar advances over all rows before, not over the path",
        "grammar-by-rows", _each(_nothing, advanced=lambda row: row.before), case(request(FORK), seed=3),
        ("B060",),
    ),
    Wrong(
        "grammar-by-rows", "behind", "a row is masked by the state before its own token",
        "grammar-by-rows", _each(_nothing, advanced=lambda row: row.drafts[:-1]), case(request((-1, 0)), seed=3), ("B060",),
    ),
    Wrong(
        "grammar-by-rows", "root", "every row is masked as the root is",
        "grammar-by-rows", _each(_nothing, advanced=_stateless), case(request((-1, 0)), seed=3), ("B060",),
    ),
    Wrong(
        "rows-unmasked", "all", "no row is masked by the grammar",
        "rows-unmasked", _each(_unmasked(lambda row: True)), case(request()), ("B061",),
    ),
    Wrong(
        "rows-unmasked", "last", "the last row is not masked by the grammar",
        "rows-unmasked", _each(_unmasked(lambda row: row.last)), case(request()), ("B061",),
    ),
    Wrong(
        "rows-unmasked", "drafts", "the root alone is masked by the grammar",
        "rows-unmasked", _each(_unmasked(lambda row: row.row > 0)), _PAIR, ("B061",),
    ),
    Wrong(
        "root-counted-twice", "", "below the root a penalty counts the root once more",
        "root-counted-twice", _each(_root_counted), _PAIR, ("B062",),
    ),
    Wrong(
        "penalty-not-by-path", "own-token", "a penalty counts of the path its last draft alone",
        "penalty-not-by-path", _each(_nothing, lambda row: row.drafts[-1:]), case(request(CHAIN)),
        ("B063",),
    ),
    Wrong(
        "penalty-not-by-path", "every-row", "a penalty counts all drafts, accepted or not",
        "penalty-not-by-path", _each(_nothing, lambda row: row.every), _PAIR, ("B063",),
    ),
    Wrong(
        "penalty-not-by-path", "rows-before", "a penalty counts the drafts of all rows before",
        "penalty-not-by-path", _each(_nothing, lambda row: row.before), case(request(FORK), seed=2),
        ("B063",),
    ),
    Wrong(
        "penalty-not-by-path", "none", "a penalty counts what was emitted before, and no draft",
        "penalty-not-by-path", _each(_nothing, _stateless), _PAIR, ("B063",),
    ),
    Wrong(
        "parameter-skipped", "min-p", "min-p is applied to the root alone",
        "parameter-skipped", _each(_left_at("min_p", 0.0)), case(request((-1, 0)), seed=1),
        ("B064",),
    ),
    Wrong(
        "parameter-skipped", "temperature", "draft rows are processed at a temperature of 1",
        "parameter-skipped", _each(_left_at("temperature", 1.0)), _PAIR,
        ("B064",),
    ),
    Wrong(
        "parameter-skipped", "bias", "draft rows get no bias",
        "parameter-skipped", _each(_left_at("bias", 0.0)), _PAIR, ("B064",),
    ),
    Wrong(
        "parameter-skipped", "penalties", "draft rows get no repetition penalty",
        "parameter-skipped", _each(_left_at("repetition", 1.0)), _PAIR, ("B064",),
    ),
)  # fmt: skip


FAULTS = faults_of(
    _WRONG,
    stage="process",
    identity="output",
    evidence="measured",
    plant=lambda wrong: lambda backend: wrapped(backend, "process", wrong),
    applies=lambda backend: "process" in backend.stages,
)
