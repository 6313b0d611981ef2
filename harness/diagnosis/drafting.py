"""Drafting: which slots branches are given, what they read and where they stand, laid out otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.laid_out import Branch, Draft, Grid, Lists, Phase, Ways, as_allotted
from treeproof.diagnosis.world import World

Change = Callable[[Ways, Phase], Phase]
"""Of the right layout."""


def _laid(right: World, change: Change) -> World:
    def draft(ways: Ways) -> Phase:
        return change(ways, as_allotted(ways))

    return replace(right, draft=draft)


def _named(right: World, changes: dict[str, Change]) -> Iterator[tuple[str, World]]:
    for detail, change in changes.items():
        yield detail, _laid(right, change)


def _standing(place: Callable[[Ways, Branch, int, int], int]) -> Change:
    """Positions by branch-row, its number and the step."""

    def change(ways: Ways, phase: Phase) -> Phase:
        rows = ways.rows
        grid = tuple(tuple(place(ways, r, j, s) for j, r in enumerate(rows)) for s in ways.steps)
        return replace(phase, positions=grid)

    return change


@hypothesis(
    "draft-position", "a drafted token does not stand behind the keys of its branch", "draft",
    narrow="no",
)  # fmt: skip
def draft_position(right: World) -> Iterator[tuple[str, World]]:
    def lengths(ways: Ways) -> Sequence[int]:
        return ways.scene.prefix_lens

    yield from _named(right, {
        "one step ahead": _standing(lambda ways, r, j, s: r.prefix + s + 1),
        "one step behind": _standing(lambda ways, r, j, s: r.prefix + s - 1),
        "one step ahead past the first": _standing(lambda ways, r, j, s: r.prefix + s + (s > 0)),
        "two steps on at a time": _standing(lambda ways, r, j, s: r.prefix + 2 * s),
        "where the first step does": _standing(lambda ways, r, j, s: r.prefix),
        "where the last key of the first step does":
            _standing(lambda ways, r, j, s: r.prefix + max(0, s - 1)),
        "by the number of the branch": _standing(lambda ways, r, j, s: r.prefix + r.t),
        "by slot of its branch": _standing(lambda ways, r, j, s: r.first + s),
        "counted from 0": _standing(lambda ways, r, j, s: s),
        "behind another request of the batch":
            _standing(lambda ways, r, j, s: lengths(ways)[j % ways.scene.batch] + s),
        "behind the first request": _standing(lambda ways, r, j, s: lengths(ways)[0] + s),
    })  # fmt: skip


def _viewed(view: Callable[[Ways, Grid], Grid]) -> Change:
    def change(ways: Ways, phase: Phase) -> Phase:
        assert phase.slots is not None
        return replace(phase, slots=view(ways, phase.slots))

    return change


def _cut(flat: Sequence[int], width: int) -> Grid:
    return tuple(tuple(flat[i : i + width]) for i in range(0, len(flat), width))


def _by_row(ways: Ways, slots: Grid) -> Grid:
    """Slots of one branch-row after another, taken for those of one step after another."""
    return _cut([slots[s][j] for j in range(len(slots[0])) for s in ways.steps], len(slots[0]))


def _by_row_in_request(ways: Ways, slots: Grid) -> Grid:
    """The same in each request by itself."""
    k, lines = ways.scene.topk, []
    for s in ways.steps:
        line: list[int] = []
        for b in range(ways.scene.batch):
            own = [slots[step][b * k + t] for t in range(k) for step in ways.steps]
            line += own[s * k : s * k + k]
        lines.append(tuple(line))
    return tuple(lines)


def _by_request(ways: Ways, slots: Grid) -> Grid:
    """Branches of all requests in turn, taken for one request after another."""
    k, batch = ways.scene.topk, ways.scene.batch
    order = [b * k + t for t in range(k) for b in range(batch)]
    return tuple(tuple(line[j] for j in order) for line in slots)


@hypothesis(
    "drafts-transposed", "slots to draft in are laid out in one order and taken in another", "draft",
    narrow="no",
)  # fmt: skip
def drafts_transposed(right: World) -> Iterator[tuple[str, World]]:
    yield from _named(right, {
        "by branch for by step": _viewed(_by_row),
        "by branch for by step in each request": _viewed(_by_row_in_request),
        "by branch for by request": _viewed(_by_request),
    })  # fmt: skip


def _shown(lengths: Callable[[int, int], int], *forms: str) -> Change:
    """Tables cover this many keys, out of those of the step and of the first one."""

    def change(ways: Ways, phase: Phase) -> Phase:
        def shorter(lists: Lists) -> Lists:
            return tuple(
                tuple(
                    own[: lengths(len(own), len(first))]
                    for own, first in zip(line, lists[0], strict=True)
                )
                for line in lists
            )

        cut = {form: shorter(getattr(phase, form)) for form in forms}
        return replace(phase, **cut)  # type: ignore[arg-type]

    return change


@hypothesis(
    "draft-lengths-lag", "later steps do not read the keys of the steps right before", "draft",
    narrow="no",
)  # fmt: skip
def draft_lengths_lag(right: World) -> Iterator[tuple[str, World]]:
    ways: dict[str, Callable[[int, int], int]] = {
        "no longer than in the first step": min,
        "one key less": lambda own, first: own - 1,
        "one key less past the first step": lambda own, first: max(first, own - 1),
        "the prefix alone": lambda own, first: first - 1,
    }
    for detail, lengths in ways.items():
        yield from _named(right, {
            f"tables of both forms: {detail}": _shown(lengths, "lists", "pages"),
            f"lists: {detail}": _shown(lengths, "lists"),
            f"page tables: {detail}": _shown(lengths, "pages"),
        })  # fmt: skip


def _run_on(room: Callable[[Ways], int]) -> Change:
    """Lists of a step in a line of this many cells, the next step's behind them and written later."""

    def change(ways: Ways, phase: Phase) -> Phase:
        assert phase.lists is not None
        cells, width = [0] * _cells(phase.lists, room(ways)), room(ways)
        for s, line in enumerate(phase.lists):
            flat = [slot for own in line for slot in own]
            cells[s * width : s * width + len(flat)] = flat
        last = len(phase.lists) * width
        cells[last:] = [0] * (len(cells) - last)  # memory of somebody else
        found = []
        for s, line in enumerate(phase.lists):
            at, read = s * width, []
            for own in line:
                read.append(tuple(cells[at : at + len(own)]))
                at += len(own)
            found.append(tuple(read))
        return replace(phase, lists=tuple(found))

    return change


def _cells(lists: Lists, width: int) -> int:
    return len(lists) * width + max(sum(map(len, line)) for line in lists)


@hypothesis(
    "draft-lists-run-on", "lists of a drafting step run on into memory that is not theirs", "draft",
    narrow="no",
)  # fmt: skip
def draft_lists_run_on(right: World) -> Iterator[tuple[str, World]]:
    def prefixes(ways: Ways) -> int:
        return sum(ways.scene.prefix_lens)

    yield from _named(right, {
        "room for one branch a request":
            _run_on(lambda ways: prefixes(ways) + ways.scene.batch * ways.scene.num_steps),
        "room for one step": _run_on(lambda ways: ways.scene.topk * (prefixes(ways) + ways.scene.batch)),
        "room for the prefixes": _run_on(lambda ways: ways.scene.topk * prefixes(ways)),
    })  # fmt: skip


def _pages_run_on(ways: Ways, phase: Phase) -> Phase:
    """Pages of all steps go into lines that are as long as the longest of the step at hand."""
    assert phase.pages is not None
    page, found = ways.scene.layout.page_size, []
    every = [[slot // page for slot in own[::page]] for own in phase.pages[-1]]
    for line in phase.pages:
        width = max(-(-len(own) // page) for own in line)
        cells = [0] * (len(line) * width + max(map(len, every)))
        for j, own in enumerate(every):
            cells[j * width : j * width + len(own[:width])] = own[:width]
        for j, own in enumerate(every):
            cells[j * width + width : j * width + len(own)] = own[width:]
        found.append(tuple(
            tuple(cells[j * width + i // page] * page + i % page for i in range(len(own)))
            for j, own in enumerate(line)
        ))  # fmt: skip
    return replace(phase, pages=tuple(found))


@hypothesis(
    "draft-pages-run-on", "pages of later steps run on into the next branch's line of a table",
    "draft", narrow="no",
)  # fmt: skip
def draft_pages_run_on(right: World) -> Iterator[tuple[str, World]]:
    yield "", _laid(right, _pages_run_on)


def _given(first: Callable[[Branch], int]) -> Change:
    """Slots counted on from this column, branch after branch; tables as they are."""

    def change(ways: Ways, phase: Phase) -> Phase:
        table, lines = ways.table, ways.scene.request_slots
        grid = tuple(
            tuple(table[lines[r.b]][first(r) + r.t * ways.scene.num_steps + s] for r in ways.rows)
            for s in ways.steps
        )
        return replace(phase, slots=grid)

    return change


@hypothesis(
    "draft-slot-by-coordinate", "slots to draft in are counted on from where the prefix does not end",
    "draft", narrow="no",
)  # fmt: skip
def draft_slot_by_coordinate(right: World) -> Iterator[tuple[str, World]]:
    yield from _named(right, {
        "half the prefix": _given(lambda r: r.prefix // 2),
        "its first key": _given(lambda r: 0),
        "its last key": _given(lambda r: max(0, r.prefix - 1)),
        "its whole pages": _given(lambda r: r.whole),
        "one key further": _given(lambda r: r.prefix + 1),
    })  # fmt: skip


@hypothesis(
    "draft-line-of-another", "a request's slots are looked up in a line of the token table not its own",
    "draft", narrow="no",
)  # fmt: skip
def draft_line_of_another(right: World) -> Iterator[tuple[str, World]]:
    lines: dict[str, Draft] = {
        "its number in the batch": lambda ways: ways.phase(range(ways.scene.batch)),
        "the first request's": lambda ways: ways.phase(
            [ways.scene.request_slots[0]] * ways.scene.batch
        ),
        "the next request's": lambda ways: ways.phase(
            [*ways.scene.request_slots[1:], ways.scene.request_slots[0]]
        ),
    }
    for detail, draft in lines.items():
        yield detail, replace(right, draft=draft)


def _copied(kept: Callable[[int, int, int], tuple[int, int]]) -> Change:
    """What a copy holds, out of its slot and the slots of its K and V."""

    def change(ways: Ways, phase: Phase) -> Phase:
        held = {(slot, *kept(slot, k, v)) for slot, k, v in phase.held}
        return replace(phase, held=frozenset(one for one in held if set(one) != {one[0]}))

    return change


@hypothesis(
    "draft-tail-not-copied", "a branch's own page lacks the prefix keys of the last, partial page",
    "draft", narrow="no",
)  # fmt: skip
def draft_tail_not_copied(right: World) -> Iterator[tuple[str, World]]:
    yield from _named(right, {
        "": _copied(lambda slot, k, v: (slot, slot)),
        "its values": _copied(lambda slot, k, v: (k, slot)),
        "its keys": _copied(lambda slot, k, v: (slot, v)),
    })  # fmt: skip


DRAFTING: tuple[Hypothesis, ...] = (
    draft_position,
    drafts_transposed,
    draft_lengths_lag,
    draft_lists_run_on,
    draft_pages_run_on,
    draft_slot_by_coordinate,
    draft_line_of_another,
    draft_tail_not_copied,
)
