"""Candidate: which token a row carries in place of its node's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from treeproof.diagnosis.accepting import right_path, walks_of
from treeproof.diagnosis.evidence import Walk
from treeproof.diagnosis.ground import Row
from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.position import neighbours
from treeproof.diagnosis.walking import Step
from treeproof.diagnosis.world import World


def _carried(right: World, token: Callable[[Row], int]) -> World:
    return replace(right, tokens=tuple(token(row) for row in right.ground.rows))


def _tokens(right: World) -> list[list[int]]:
    """Tokens of each request, by row."""
    ground = right.ground
    return [[r.tree.tokens[node] for node in r.node_of_row] for r in ground.requests]


@hypothesis(
    "tokens-shifted",
    "rows carry, or a path emits, the tokens of other rows of the request",
    "tokens",
    "accept",
    narrow="requests",
)
def tokens_shifted(right: World) -> Iterator[tuple[str, World]]:
    true = _tokens(right)
    for by in (1, -1):

        def around(row: Row, by: int = by) -> int:
            own = true[row.b]
            return own[(row.row + by) % len(own)]

        def clipped(row: Row, by: int = by) -> int:
            own = true[row.b]
            return own[min(max(0, row.row + by), len(own) - 1)]

        def zero(row: Row, by: int = by) -> int:
            own = true[row.b]
            return own[row.row + by] if 0 <= row.row + by < len(own) else 0

        def drafts_around(row: Row, by: int = by) -> int:
            own = true[row.b]
            return own[1 + (row.row - 1 + by) % (len(own) - 1)] if row.row else own[0]

        def drafts_clipped(row: Row, by: int = by) -> int:
            own = true[row.b]
            return own[min(max(1, row.row + by), len(own) - 1)] if row.row else own[0]

        def drafts_open(row: Row, by: int = by) -> int:
            """What comes in past the last draft is 0; before the first it is the root."""
            own = true[row.b]
            if not row.row:
                return own[0]
            return own[row.row + by] if row.row + by < len(own) else 0

        yield f"{by:+d}", _carried(right, around)
        yield f"{by:+d}, the end keeps its own", _carried(right, clipped)
        yield f"{by:+d}, the end is 0", _carried(right, zero)
        yield f"{by:+d} among the drafts", _carried(right, drafts_around)
        yield f"{by:+d} among the drafts, the end keeps its own", _carried(right, drafts_clipped)
        yield f"{by:+d} among the drafts, the end is 0", _carried(right, drafts_open)
    flat = [token for own in true for token in own]
    starts = [sum(map(len, true[:b])) for b in range(len(true))]
    for by in (1, -1):
        yield (
            f"{by:+d} across requests",
            _carried(
                right,
                lambda row, by=by: flat[(starts[row.b] + row.row + by) % len(flat)],  # type: ignore[misc]
            ),
        )
    yield "in reverse order", _carried(right, lambda row: true[row.b][-1 - row.row])

    def first_rows(step: Step) -> Walk:
        """An accept emits the drafts of the request's first rows for those of the path."""
        rows = right_path(right, step)
        drafts = tuple(step.draft(j + 1) for j in range(len(rows) - 1))
        return Walk(tuple(rows), len(rows), (*drafts, step.want(rows[-1])))

    yield "of the first rows, where a path is emitted", walks_of(right, first_rows)
    yield (
        "drafts in reverse order",
        _carried(right, lambda row: true[row.b][-row.row] if row.row else true[row.b][0]),
    )


@hypothesis(
    "tokens-of-neighbour",
    "rows carry the tokens of another request's rows",
    "tokens",
    narrow="requests",
)
def tokens_of_neighbour(right: World) -> Iterator[tuple[str, World]]:
    true = _tokens(right)
    for name, other in neighbours(right.ground):

        def theirs(row: Row, other: Callable[[int], int] = other) -> int:
            tokens = true[other(row.b)]
            return tokens[row.row] if row.row < len(tokens) else true[row.b][row.row]

        def wrapped(row: Row, other: Callable[[int], int] = other) -> int:
            tokens = true[other(row.b)]
            return tokens[row.row % len(tokens)]

        def zero(row: Row, other: Callable[[int], int] = other) -> int:
            tokens = true[other(row.b)]
            return tokens[row.row] if row.row < len(tokens) else 0

        for way, token in (
            (", as far as they go", theirs), (", again from the first", wrapped), (", then 0", zero)
        ):  # fmt: skip
            yield f"{name}{way}", _carried(right, token)
            yield (
                f"{name}{way}, drafts alone",
                _carried(
                    right,
                    lambda row, token=token: token(row) if row.row else true[row.b][0],  # type: ignore[misc]
                ),
            )
            yield (
                f"{name}{way}, roots alone",
                _carried(
                    right,
                    lambda row, token=token: true[row.b][row.row] if row.row else token(row),  # type: ignore[misc]
                ),
            )
    if len(true) == 1:
        return
    partner = _partners([len(own) for own in true])
    yield (
        "the next one's with as many rows",
        _carried(right, lambda row: true[partner[row.b]][row.row]),
    )
    # Drafts of all requests lie one after another; these look for them in the wrong place.
    drafts = [token for own in true for token in own[1:]] or [0]
    widest = max(map(len, true)) - 1
    places: dict[str, Callable[[int], int]] = {
        "drafts from the request's number on": lambda b: b,
        "drafts at the stride of the widest request": lambda b: b * widest,
        "drafts at the stride of the widest request, the root counted": lambda b: b * (widest + 1),
    }
    for name, start in places.items():
        yield (
            name,
            _carried(
                right,
                lambda row, start=start: (  # type: ignore[misc]
                    drafts[min(start(row.b) + row.row - 1, len(drafts) - 1)]
                    if row.row
                    else true[row.b][0]
                ),
            ),
        )


def _partners(counts: list[int]) -> list[int]:
    """For each request the next one, in a circle, with as many rows; itself where there is none."""
    turned = [[*range(b + 1, len(counts)), *range(b)] for b in range(len(counts))]
    return [
        next((other for other in turned[b] if counts[other] == counts[b]), b)
        for b in range(len(counts))
    ]


@hypothesis(
    "draft-vocabulary",
    "drafts carry ids of the draft model's vocabulary, or are mapped into it wrongly",
    "tokens",
    narrow="requests",
)
def draft_vocabulary(right: World) -> Iterator[tuple[str, World]]:
    true = _tokens(right)
    every = sorted({token for own in true for token in own})
    place = {token: i for i, token in enumerate(every)}
    drafted = sorted({token for own in true for token in own[1:]})
    kept = {token: i for i, token in enumerate(drafted)}
    maps: dict[str, Callable[[int], int]] = {
        **{f"modulo {v}": lambda t, v=v: t % v for v in (256, 1000, 1024, 4096)},  # type: ignore[misc]
        **{f"modulo {v}": lambda t, v=v: t % v for v in (32000, 32768, 65536)},  # type: ignore[misc]
        "places in the list of kept ids": lambda t: place[t],
        "places among the ids that are drafted": lambda t: kept.get(t, t),
        "places among the ids that are drafted, added twice": lambda t: 2 * kept.get(t, t),
        "the id and its place among the ids that are drafted": lambda t: t + kept.get(t, 0),
        "twice the id": lambda t: 2 * t,
        "half the id": lambda t: t // 2,
        "the id and one": lambda t: t + 1,
        "one less than the id": lambda t: t - 1,
        "the id and its place in the list of kept ids": lambda t: t + place[t],
        "16 bits with a sign": lambda t: (t + 32768) % 65536 - 32768,
    }
    for detail, of in maps.items():
        yield (
            detail,
            _carried(
                right,
                lambda row, of=of: of(true[row.b][row.row]) if row.row else true[row.b][0],  # type: ignore[misc]
            ),
        )
        yield (
            f"{detail}, the root too",
            _carried(right, lambda row, of=of: of(true[row.b][row.row])),  # type: ignore[misc]
        )


@hypothesis(
    "block-period", "tokens repeat with the period of a block of rows", "tokens", narrow="requests"
)
def block_period(right: World) -> Iterator[tuple[str, World]]:
    true = _tokens(right)
    flat = [token for own in true for token in own]
    starts = [sum(map(len, true[:b])) for b in range(len(true))]
    for block in (2, 4, 8, 16, 32, 64):
        yield (
            f"{block} rows",
            _carried(right, lambda row, block=block: true[row.b][row.row % block]),  # type: ignore[misc]
        )
        yield (
            f"{block} drafts",
            _carried(
                right,
                lambda row, block=block: true[row.b][  # type: ignore[misc]
                    1 + (row.row - 1) % block if row.row else 0
                ],
            ),
        )
        yield (
            f"{block} rows of the launch",
            _carried(right, lambda row, block=block: flat[(starts[row.b] + row.row) % block]),  # type: ignore[misc]
        )


@hypothesis(
    "root-not-bonus",
    "the root does not carry last round's bonus token",
    "tokens",
    narrow="requests",
)
def root_not_bonus(right: World) -> Iterator[tuple[str, World]]:
    true = _tokens(right)
    roots: dict[str, Callable[[list[int]], int]] = {
        "the first draft": lambda own: own[min(1, len(own) - 1)],
        "the last draft": lambda own: own[-1],
        "0": lambda own: 0,
        "-1": lambda own: -1,
        "one more": lambda own: own[0] + 1,
        "one less": lambda own: own[0] - 1,
    }
    for detail, root in roots.items():
        yield (
            detail,
            _carried(
                right,
                lambda row, root=root: true[row.b][row.row] if row.row else root(true[row.b]),  # type: ignore[misc]
            ),
        )


CANDIDATE: tuple[Hypothesis, ...] = (
    tokens_shifted,
    tokens_of_neighbour,
    draft_vocabulary,
    block_period,
    root_not_bonus,
)
