"""How messages name rows and keys."""

from __future__ import annotations

from treeproof.contract.case import Request


def row_name(request: Request, row: int) -> str:
    """A real row with its node and the nodes of its path."""
    node = request.node_of_row[row]
    path = "→".join(str(n) for n in request.tree.path(node))
    return f"row {row} (node {node}, path {path})"


def column_name(request: Request, column: int) -> str:
    """A logical column: a prefix key, or the key of a row."""
    if column < request.prefix_len:
        return f"prefix key {column}"
    row = column - request.prefix_len
    return f"row {row} (node {request.node_of_row[row]})"
