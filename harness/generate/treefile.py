"""Tree files: the shapes somebody serves, read from a file, and the cases made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from treeproof.contract.case import KVLayout, MaskLayout, MaskMode, Order, Request, VerifyCase
from treeproof.contract.counter import address_hash
from treeproof.contract.tree import CandidateTree
from treeproof.contract.wire import FileError, parse_json, read_bytes
from treeproof.generate.cases import pages_of, shape_of
from treeproof.generate.lengths import WINDOW_CLASSES
from treeproof.generate.orders import ROW_ORDERS, row_of_node
from treeproof.generate.shapes import GROUPS, ShapeGroup
from treeproof.generate.topologies import TOKEN_LAWS, tokens_of
from treeproof.generate.tree_formats import Parents, literal, parents_of

MAX_TREES = 10_000
MAX_NAME = 200
_FIELDS = {"parents", "source"}

# Trees of 512 rows behind 1,000 keys come here: larger heads are left to generated cases.
_MODERATE = tuple(group for group in GROUPS if group.head_dim <= 64)
_PAIRED_ROWS = 65
"""Trees up to this size also come as a batch of two."""
_ORDERS: tuple[Order, ...] = ("contiguous", "reversed", "interleaved", "shuffled")

T = TypeVar("T")


@dataclass(frozen=True)
class NamedTree:
    """A tree shape of a file. `parents` is numbered parents first, `parents[0] == -1`."""

    name: str
    parents: Parents


def read_trees(path: Path) -> list[NamedTree]:
    """The trees of a file, in its order.

    JSON: one tree; a list of trees; an object {name: tree}, where a tree may also be
    {"parents": ..., "source": ...}. Text: one tree, or one a line; lines that begin with # are
    skipped. A tree is a list of parents, a list of paths or vLLM's tuple string: see `tree_formats`.
    Raises FileError naming the file, the tree, the field and the row.
    """
    data = read_bytes(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: not UTF-8 at byte {error.start}") from error
    if not text.strip():
        raise FileError(f"{path}: the file is empty")
    if text.lstrip()[0] in '{"':
        return _from_json(parse_json(text.encode(), str(path)), path)
    try:
        value = parse_json(text.encode(), str(path))
    except FileError as not_json:
        return _from_text(text, path, not_json)
    return _from_json(value, path)


def _from_json(value: Any, path: Path) -> list[NamedTree]:
    if isinstance(value, dict) and isinstance(value.get("parents"), list) and set(value) <= _FIELDS:
        value = {path.stem: value}
    if isinstance(value, dict):
        named = list(value.items())
    elif isinstance(value, list) and _holds_trees(value):
        named = [(f"{path.stem}[{i}]", tree) for i, tree in enumerate(value)]
    else:
        named = [(path.stem, value)]
    if not named:
        raise FileError(f"{path}: holds no tree")
    if len(named) > MAX_TREES:
        raise FileError(f"{path}: {len(named)} trees, at most {MAX_TREES} are accepted")
    return [NamedTree(name, _tree(name, tree, path)) for name, tree in named]


def _holds_trees(value: list[Any]) -> bool:
    """Whether a list is one of trees and not itself a tree.

    A list of lists of numbers is a list of paths, unless a -1 shows that its rows are parents.
    """
    return any(
        isinstance(row, str | dict)
        or (isinstance(row, list) and any(isinstance(e, list) or e == -1 for e in row))
        for row in value
    )


def _tree(name: str, value: Any, path: Path) -> Parents:
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise FileError(
            f"{path}: tree name {name[:40]!r}: accepted are 1 to {MAX_NAME} printable characters"
        )
    where = f"{path}: tree {name!r}"
    if not isinstance(value, dict):
        return parents_of(value, where)
    unknown = sorted(set(value) - _FIELDS)
    if unknown:
        raise FileError(
            f"{where}: unknown field {unknown[0]!r}; accepted are {', '.join(sorted(_FIELDS))}"
        )
    if "parents" not in value:
        raise FileError(f"{where}: the field parents is missing")
    if not isinstance(value.get("source", ""), str):
        raise FileError(f"{where}: source is no text")
    return parents_of(value["parents"], where)


def _from_text(text: str, path: Path, not_json: FileError) -> list[NamedTree]:
    lines = [
        (number, line.strip())
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines:
        raise FileError(f"{path}: holds no tree")
    whole = " ".join(line for _, line in lines)
    if len(lines) == 1 or _is_one_list(whole):
        try:
            return _from_json(_listed(literal(whole, str(path))), path)
        except FileError as error:
            # Brackets alone are JSON as well: of such a file, what is wrong with the JSON helps more.
            raise (error if "(" in whole or not whole.startswith("[") else not_json) from error
    return [
        NamedTree(name, parents_of(line, f"{path}: tree {name!r}"))
        for name, line in ((f"{path.stem}:{number}", line) for number, line in lines)
    ]


def _is_one_list(text: str) -> bool:
    """Whether the first bracket closes with the last one: one list over several lines."""
    depth = 0
    for place, character in enumerate(text, start=1):
        depth += (character in "([") - (character in ")]")
        if depth == 0:
            return place == len(text)
    return False


def _listed(value: Any) -> Any:
    """Tuples as lists, as JSON has them."""
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value


def cases_of(
    trees: Iterable[NamedTree], prefixes: Sequence[int], seed: int = 0
) -> list[VerifyCase]:
    """One case for each tree and prefix length, all prefixes of a tree in a row.

    Dtype, heads, page size, mask mode, row order, layout and tokens change from case to case, in
    turns that start elsewhere for each tree. A tree is seen with a window and without in turn.
    """
    return [
        _case(_Turn(seed, i, j), tree, prefix)
        for i, tree in enumerate(trees)
        for j, prefix in enumerate(prefixes)
    ]


@dataclass(frozen=True)
class _Turn:
    """Takes options in turn over the prefixes of a tree, from a start drawn for the tree."""

    seed: int
    tree: int
    prefix: int

    def pick(self, what: str, options: Sequence[T]) -> T:
        start = address_hash(self.seed, self.tree, *what.encode())
        return options[(start + self.prefix) % len(options)]


def _case(turn: _Turn, named: NamedTree, prefix: int) -> VerifyCase:
    salt = address_hash(turn.seed, turn.tree, turn.prefix) >> 1
    tokens = tokens_of(named.parents, turn.pick("tokens", TOKEN_LAWS), salt)
    tree = CandidateTree(tokens, named.parents)
    windowed = turn.pick("window", (False, True))
    group = turn.pick("group", _able(len(tree), prefix, windowed))
    window = None
    if windowed:
        window = _width(turn.pick("width", WINDOW_CLASSES), prefix, max(tree.depth))
    order = turn.pick("rows", ROW_ORDERS)
    requests = [_request(tree, order, prefix, salt)]
    if len(tree) <= _PAIRED_ROWS and turn.pick("batch", (1, 1, 1, 2)) == 2:
        requests.append(_request(tree, "any", prefix // 2, salt))
    return VerifyCase(
        requests=tuple(requests),
        shape=shape_of(group, window),
        layout=_layout(turn, group, requests),
        mask=MaskLayout(
            mode=group.mask_mode,
            slack=turn.pick("slack", (0, 37)),
            fill_prefix=group.mask_mode is not MaskMode.FULL_MASK
            or turn.pick("fill", (True, False)),
        ),
        seed=salt,
        score_spread=turn.pick("spread", (1.0, 8.0)),
    )


def _able(rows: int, prefix: int, windowed: bool) -> list[ShapeGroup]:
    # A cache of two requests and some pages more; small heads tell only so many slots apart.
    slots = 2 * (rows + prefix) + 1024
    return [
        group
        for group in _MODERATE
        if group.windowed == windowed
        and (group.most_rows is None or rows <= group.most_rows)
        and slots <= 1 << min(group.head_dim, group.v_head_dim)
    ]


def _width(kind: str, prefix: int, depth: int) -> int:
    """Window widths; the deepest row would see prefix + depth + 1 keys."""
    if kind == "one":
        return 1
    if kind == "cuts-tree":
        return max(1, depth)
    if kind == "cuts-prefix":
        return depth + 1 + prefix // 2
    if kind == "edge":
        return max(1, prefix + depth)
    return prefix + depth + 2


def _request(tree: CandidateTree, order: str, prefix: int, salt: int) -> Request:
    return Request(tree=tree, row_of_node=row_of_node(tree, order, salt), prefix_len=prefix)


def _layout(turn: _Turn, group: ShapeGroup, requests: Sequence[Request]) -> KVLayout:
    pad_slot = turn.pick("pad slot", (0, -1))
    columns = [request.prefix_len + len(request.tree) for request in requests]
    pages = pages_of(columns, group.page_size, 0, pad_slot) + turn.pick("spare", (0, 1, 3))
    return KVLayout(
        page_size=group.page_size,
        num_slots=pages * group.page_size,
        order=turn.pick("pages", _ORDERS),
        pad_slot=pad_slot,
        page_table_pad=turn.pick("table", (0, -1, pages * group.page_size - 1)),
        evicted=group.windowed and turn.pick("evicted", (True, False, True, True)),
    )
