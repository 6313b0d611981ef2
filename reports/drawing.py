"""Trees as text: one line a row, wide and deep trees folded, one relation drawn in the margin.

Everything is drawn with Unicode; `plain` turns it into ASCII of the same width for terminals that
cannot show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from treeproof.contract.case import Request

MAX_DEPTH = 16
"""Levels drawn before folding: 16 indents of 3 leave room for a label in 100 columns."""

_ASCII = str.maketrans(
    {
        **dict(zip("├└│─┌┐┘┬┴┼◄►•·…✓✗═⋮×", "|`|-+++-++<>*..v!=:x", strict=True)),
        "→": "->",
        "≤": "<=",
        "≥": ">=",
        "∪": "U",
        "–": "-",
        "—": "-",
        "−": "-",
    }
)


def plain(text: str) -> str:
    """The same text in ASCII; what has no counterpart becomes `?`."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


@dataclass(frozen=True)
class Line:
    """One line of a drawing; `row` is None where rows are folded into it."""

    text: str
    row: int | None = None


def row_label(request: Request) -> Callable[[int], str]:
    """Labels of rows: the node is named where its number differs from the row's."""

    def label(row: int) -> str:
        node = request.node_of_row[row]
        named = "" if node == row else f" (node {node})"
        return f"row {row}{named} token {request.tree.tokens[node]}"

    return label


def draw_request(request: Request, keep: Iterable[int] = (), max_lines: int = 200) -> list[Line]:
    """The drawn tree of a request, by rows. Rows in `keep` are never folded away."""
    return draw(request.parent_rows, row_label(request), keep, max_lines)


def draw(
    parents: Sequence[int | None],
    label: Callable[[int], str] = str,
    keep: Iterable[int] = (),
    max_lines: int = 200,
) -> list[Line]:
    """A tree given by the parent row of each row; -1 is the root, None is not determined.

    Rows that the root does not reach (undetermined, outside the tree, or on a cycle, as evidence of
    a wrong backend may say) are listed after the tree.
    """
    rows = range(len(parents))
    children: list[list[int]] = [[] for _ in rows]
    for row, parent in enumerate(parents):
        if parent is not None and 0 <= parent < len(parents):
            children[parent].append(row)
    depths = _depths([row for row in rows if parents[row] == -1], children)
    pencil = _Pencil(children, label, frozenset(keep))
    if len(parents) > max_lines or max(depths.values(), default=0) > MAX_DEPTH:
        pencil = replace(pencil, shown=_worth_showing(parents, depths, pencil.keep, max_lines))
    for root in (row for row in rows if parents[row] == -1):
        pencil.node(root, "", "")
    lost = [row for row in rows if row not in depths]
    for row in lost[:4]:
        parent = parents[row]
        said = "parent not determined" if parent is None else f"parent {parent}, not reached"
        pencil.lines.append(Line(f"{label(row)}  ({said})", row))
    if lost[4:]:
        pencil.lines.append(Line(f"… {len(lost) - 4} more rows that the root does not reach"))
    return pencil.lines


def _depths(roots: list[int], children: Sequence[Sequence[int]]) -> dict[int, int]:
    """Depth of every row that a root reaches, breadth first."""
    depths = dict.fromkeys(roots, 0)
    queue = list(roots)
    for row in queue:
        for child in children[row]:
            depths[child] = depths[row] + 1
            queue.append(child)
    return depths


def _worth_showing(
    parents: Sequence[int | None], depths: dict[int, int], keep: frozenset[int], max_lines: int
) -> frozenset[int]:
    """Paths to the rows that matter, then rows from the root down while there is room."""
    shown: set[int] = set()
    for row in keep:
        at: int | None = row
        while at in depths and at not in shown:
            assert at is not None
            shown.add(at)
            at = parents[at]
    # Half the room: a shown row may bring one line that sums up what is folded below it.
    for row, depth in depths.items():
        if len(shown) >= max_lines // 2 or depth > MAX_DEPTH:
            break
        shown.add(row)
    return frozenset(shown)


@dataclass(frozen=True)
class _Pencil:
    children: Sequence[Sequence[int]]
    label: Callable[[int], str]
    keep: frozenset[int]
    shown: frozenset[int] | None = None
    """None: nothing is folded."""
    lines: list[Line] = field(default_factory=list)

    def node(self, row: int, here: str, below: str) -> None:
        self.lines.append(Line(here + self.label(row), row))
        row = self._fold_run(row, below)
        drawn = self._drawn_children(row)
        hidden = set(self.children[row]) - set(drawn)
        for kid in drawn:
            last = kid == drawn[-1] and not hidden
            self.node(kid, below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "))
        if hidden:
            self.lines.append(Line(f"{below}└─ … {self._count(hidden)} more below row {row}"))

    def _drawn_children(self, row: int) -> list[int]:
        return [kid for kid in self.children[row] if self.shown is None or kid in self.shown]

    def _count(self, rows: Iterable[int]) -> int:
        """These rows and all below them."""
        queue = list(rows)
        for row in queue:
            queue.extend(self.children[row])
        return len(queue)

    def _fold_run(self, row: int, below: str) -> int:
        """Draw a long unbranched way down from `row` as one line; the row where it ends."""
        skipped: list[int] = []
        beside = 0
        if self.shown is None:
            return row
        at = row
        while len(only := self._drawn_children(at)) == 1 and only[0] not in self.keep:
            if len(self._drawn_children(only[0])) != 1:
                break
            beside += self._count(set(self.children[at]) - set(only))
            at = only[0]
            skipped.append(at)
        if len(skipped) < 3:
            return row
        aside = f", {beside} more beside them" if beside else ""
        rows = f"rows {skipped[0]} … {skipped[-1]}"
        self.lines.append(Line(f"{below}⋮  {len(skipped)} rows in one line down, {rows}{aside}"))
        return at


def bracket(lines: Sequence[Line], reader: int, read: int, words: tuple[str, str]) -> list[str]:
    """The drawing with one relation in its margin, from row `reader` to the row `read`.

    `words` are written beside the row that is read and beside the reader.
    """
    at = {line.row: i for i, line in enumerate(lines) if line.row is not None}
    texts = [line.text for line in lines]
    if reader == read:
        texts[at[reader]] += f"  ◄── {words[1]}"
        return texts
    first, last = sorted((at[reader], at[read]))
    margin = max(map(len, texts[first : last + 1])) + 3
    for i in range(first, last + 1):
        corner = "┐" if i == first else "┘" if i == last else "│"
        if i == at[read]:
            line, note = f"{texts[i]} ◄".ljust(margin, "─"), words[0]
        elif i == at[reader]:
            line, note = f"{texts[i]} ".ljust(margin, "─"), words[1]
        else:
            line, note = texts[i].ljust(margin), ""
        texts[i] = f"{line}{corner}  {note}".rstrip()
    return texts
