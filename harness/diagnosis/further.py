"""Further cases, on which hypotheses that explain one case alike come apart.

What is fixed when a kernel is compiled stays as it was: dtype, head dims, page size, mask mode, and
whether there is a window. Trees, rows, prefixes, batches and windows are other ones; and where a
case is left with one KV head, every other further case has several, for it cannot show by itself
whether all heads are alike.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import ValidationError
from msgspec.structs import replace

from treeproof.contract.case import Request, VerifyCase, pages_needed
from treeproof.contract.layout import MaskMode
from treeproof.contract.shape import Window
from treeproof.contract.tree import CandidateTree

_BUSH = ((-1, 0, 0, 1, 1, 2, 3, 3, 5), (0, 1, 2, 3, 4, 5, 6, 7, 8))
_TURNED = ((-1, 0, 0, 1, 2, 2, 3, 5), (0, 3, 1, 2, 5, 4, 7, 6))
_DEEP = ((-1, 0, 1, 1, 2, 4, 4, 5, 7, 3), (0, 1, 3, 2, 4, 5, 6, 7, 8, 9))
_CHAIN = ((-1, 0, 1, 2, 3), (0, 1, 2, 3, 4))
_WIDE = ((-1, 0, 0, 0, 0, 2, 3), (0, 1, 2, 3, 4, 5, 6))
_FORK = ((-1, 0, 0, 1), (0, 1, 2, 3))
_SPLIT = ((-1, 0, 0, 2, 1), (0, 2, 1, 3, 4))
_LEAN = ((-1, 0, 1, 1, 2, 3, 5), (0, 1, 2, 3, 4, 5, 6))

_BATCHES = (
    (_BUSH,), (_BUSH, _DEEP), (_DEEP, _WIDE, _CHAIN), (_TURNED, _BUSH), (_CHAIN, _FORK),
    (_TURNED,), (_WIDE, _WIDE), (_DEEP,), (_FORK, _BUSH, _FORK),
    # Neighbours of as many rows, in other trees.
    (_CHAIN, _SPLIT), (_LEAN, _WIDE),
)  # fmt: skip
_SLACK = 512
"""Cells of a mask's buffer behind the last one: what is looked for too far on is there."""

_PREFIXES = ((7, 12, 5), (9, 3, 14), (16, 8, 8), (3, 6, 2), (12, 17, 21), (0, 5, 1))


def further_cases(case: VerifyCase) -> Iterator[VerifyCase]:
    """Valid cases near this one, richer ones first; always the same."""
    for turn, batch in enumerate(_BATCHES):
        for shift in range(2):
            prefixes = _PREFIXES[(turn + 3 * shift) % len(_PREFIXES)]
            yield from _made(case, batch, prefixes, turn + shift)
            if turn == shift == 0:  # what shows in many rows need not show in one
                yield from _chain(case, 1)
    yield from _chain(case, 2)
    yield from _chain(case, 3)
    yield from _large(case)


def _chain(case: VerifyCase, count: int) -> Iterator[VerifyCase]:
    parents, rows = _CHAIN
    yield from _made(case, ((parents[:count], rows[:count]),), (4,), count)


def _made(
    case: VerifyCase,
    batch: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...],
    prefixes: tuple[int, ...],
    turn: int,
) -> Iterator[VerifyCase]:
    """One case, or none where it is not valid."""
    padded = any(request.pad_rows for request in case.requests)
    page = case.layout.page_size
    requests = tuple(
        Request(
            tree=CandidateTree(_tokens(parents, b, turn), parents),
            row_of_node=rows,
            # Long enough for a full page and a part of one.
            prefix_len=prefixes[b] + (page + page // 2 if page > 4 and prefixes[b] else 0),
            pad_rows=(2, 0, 3)[(b + turn) % 3] if padded else 0,
        )
        for b, (parents, rows) in enumerate(batch)
    )
    shape = case.shape
    if shape.num_kv_heads == 1 and turn % 2:
        # Groups of two, or of one for those who take no groups.
        shape = replace(shape, num_q_heads=4, num_kv_heads=4 if turn % 4 == 3 else 2)
    if shape.window is not None:
        shape = replace(shape, visibility=Window(width=(4, 3, 6, 2)[turn % 4]))
    layout = replace(
        case.layout,
        order="shuffled" if turn % 3 else "reversed",
        num_slots=page,
        shared_prefix=0,
        page_table_pad=min(case.layout.page_table_pad, 0),
    )
    slots = (pages_needed(requests, layout) + 3) * page
    try:
        yield replace(
            case,
            requests=requests,
            shape=shape,
            layout=replace(layout, num_slots=slots),
            mask=replace(case.mask, slack=_SLACK),
            seed=1 + turn,
        )
    except (ValueError, ValidationError):
        return


def _tokens(parents: tuple[int, ...], b: int, turn: int) -> tuple[int, ...]:
    """All different, or by rank among siblings, so that one token comes again along a path."""
    if turn % 2 == 0:
        return tuple(100 * (b + 1) + 3 * node for node in range(len(parents)))
    return tuple(
        5 + b + parents[:node].count(parent) if node else 5 + b
        for node, parent in enumerate(parents)
    )


def _large(case: VerifyCase) -> Iterator[VerifyCase]:
    """Trees past the sizes of words and tiles; row i hangs on row i - 2 or on the root."""
    for count in (12, 20, 40, 70):
        if case.mask.mode is MaskMode.QLEN_ONLY_BITPACKING and count > 32:
            continue
        parents = (-1, 0, *(max(0, node - 3 + node % 2) for node in range(2, count)))
        yield from _made(case, ((parents, tuple(range(count))),), (5,), 1)
