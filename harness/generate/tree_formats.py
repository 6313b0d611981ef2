"""Trees as people write them down: parent arrays, lists of paths, vLLM's tuple string.

The functions take decoded values and raise FileError; `where` names the file and the tree.
"""

from __future__ import annotations

import ast
import heapq
import re
from collections.abc import Sequence
from typing import Any

from treeproof.contract.tree import MAX_NODES, MAX_TOKEN
from treeproof.contract.wire import FileError

_LITERAL_CHARACTERS = re.compile(r"[\s\d,()\[\]-]*")
_LITERAL_BYTES = 1 << 20
_LITERAL_DEPTH = 3

Parents = tuple[int, ...]


def parents_of(value: Any, where: str) -> Parents:
    """Parents of the tree in `value`, numbered so that a parent comes before its children.

    `value` is a parent array (root -1), a list of paths of child ranks (the root implied, as in
    EAGLE's and Medusa's choices), or a string that holds one of the two as a Python literal (vLLM's
    `speculative_token_tree`).
    """
    if isinstance(value, str):
        value = literal(value, where)
    if isinstance(value, list | tuple) and value:
        if all(isinstance(row, list | tuple) for row in value):
            return _from_paths(value, where)
        if not any(isinstance(row, list | tuple) for row in value):
            return _from_parents(value, where)
    raise FileError(
        f"{where}: expected a list of parents like [-1, 0, 0], or of paths like [[0], [1], [0, 0]], "
        f"found {_shown(value)}"
    )


def literal(text: str, where: str) -> Any:
    """The lists and tuples of whole numbers in a Python literal; nothing else is read."""
    if len(text) > _LITERAL_BYTES:
        raise FileError(f"{where}: {len(text)} characters, at most {_LITERAL_BYTES} are accepted")
    clean = _LITERAL_CHARACTERS.match(text)
    assert clean is not None
    if clean.end() < len(text):
        raise FileError(
            f"{where}: column {clean.end() + 1} is {text[clean.end()]!r}: "
            "a list of tuples of whole numbers is expected, like [(0,), (1,), (0, 0)]"
        )
    depth = 0
    for column, character in enumerate(text, start=1):
        depth += (character in "([") - (character in ")]")
        if depth > _LITERAL_DEPTH:
            raise FileError(f"{where}: column {column} is nested too deeply")
    try:
        return ast.literal_eval(text.strip())
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise FileError(f"{where}: no list of tuples: {reason}") from error


def _whole(value: Any, field: str, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FileError(f"{where}: {field} is {_shown(value)}: a whole number is expected")
    return value


def _shown(value: Any) -> str:
    """A value in a message. Lists by their length only: one nested deeply has no `repr`."""
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    return repr(value)[:40]


def _few(count: int, field: str, where: str) -> None:
    if count > MAX_NODES:
        raise FileError(f"{where}: {field} has {count} nodes, at most {MAX_NODES} are accepted")


def _from_parents(values: Sequence[Any], where: str) -> Parents:
    _few(len(values), "parents", where)
    parents = [_whole(value, f"parents[{row}]", where) for row, value in enumerate(values)]
    roots = [row for row, parent in enumerate(parents) if parent == -1]
    if len(roots) != 1:
        named = " and ".join(f"parents[{row}]" for row in roots[:2])
        found = f"{named} are -1" if roots else "no entry of parents is -1"
        raise FileError(f"{where}: {found}: one root is expected, marked by -1")
    for row, parent in enumerate(parents):
        if not -1 <= parent < len(parents) or parent == row:
            raise FileError(
                f"{where}: parents[{row}] is {str(parent)[:40]}: accepted are other rows, "
                f"0 to {len(parents) - 1}, and -1 for the root"
            )
    return _renumbered(parents, roots[0], where)


def _renumbered(parents: list[int], root: int, where: str) -> Parents:
    """Parents before children, otherwise in the given order: the only tree these rows can mean."""
    children: list[list[int]] = [[] for _ in parents]
    for row, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(row)
    number: dict[int, int] = {}
    ready = [root]
    while ready:
        row = heapq.heappop(ready)
        number[row] = len(number)
        for child in children[row]:
            heapq.heappush(ready, child)
    if len(number) < len(parents):
        row = next(row for row in range(len(parents)) if row not in number)
        raise FileError(
            f"{where}: parents[{row}] is part of a cycle or hangs on one: no root above"
        )
    return tuple(-1 if row == root else number[parents[row]] for row in number)


def _from_paths(values: Sequence[Sequence[Any]], where: str) -> Parents:
    _few(len(values) + 1, "paths", where)
    row_of: dict[tuple[int, ...], int] = {}
    for row, value in enumerate(values):
        path = tuple(_whole(rank, f"paths[{row}][{i}]", where) for i, rank in enumerate(value))
        if not path:
            raise FileError(f"{where}: paths[{row}] is empty: the root is implied and not listed")
        for i, rank in enumerate(path):
            if not 0 <= rank <= MAX_TOKEN:
                raise FileError(
                    f"{where}: paths[{row}][{i}] is {str(rank)[:40]}: accepted are 0 to {MAX_TOKEN}"
                )
        if path in row_of:
            raise FileError(
                f"{where}: paths[{row}] and paths[{row_of[path]}] are both {_short(path)}"
            )
        row_of[path] = row
    for path, row in row_of.items():
        if path[:-1] and path[:-1] not in row_of:
            raise FileError(
                f"{where}: paths[{row}] is {_short(path)}, but its parent {_short(path[:-1])} is missing"
            )
    # The order in which EAGLE, Medusa and vLLM number their nodes.
    paths = [(), *sorted(row_of, key=lambda path: (len(path), path))]
    node_of = {path: node for node, path in enumerate(paths)}
    return (-1, *(node_of[path[:-1]] for path in paths[1:]))


def _short(path: tuple[int, ...]) -> str:
    shown = str(list(path))
    return shown if len(shown) <= 60 else f"{shown[:56]}...]"
