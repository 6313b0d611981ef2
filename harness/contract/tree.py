"""The candidate tree: which draft token continues which."""

from __future__ import annotations

from functools import cached_property

from treeproof.contract.typed import Typed

MAX_NODES = 4096
MAX_TOKEN = 2**31 - 1


class CandidateTree(Typed, frozen=True):
    """A tree of draft tokens, nodes numbered so that a parent comes before its children.

    `tokens[i]` is the token of node i, in [0, 2**31); node 0 is the root, last round's bonus.
    `parents[i]` is the parent node of node i; `parents[0] == -1`. Siblings hold distinct tokens
    (an accept walk could not tell them apart otherwise); cousins may share one.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.parents:
            raise ValueError("parents is empty: a tree has at least its root, parents=[-1]")
        if len(self.parents) > MAX_NODES:
            raise ValueError(
                f"parents has {len(self.parents)} nodes: accepted are 1 to {MAX_NODES}"
            )
        if len(self.tokens) != len(self.parents):
            raise ValueError(
                f"tokens has {len(self.tokens)} entries and parents {len(self.parents)}: one token a node"
            )
        if self.parents[0] != -1:
            raise ValueError(
                f"parents[0] is {self.parents[0]}: node 0 is the root, its parent is -1"
            )
        for node, parent in enumerate(self.parents[1:], start=1):
            if not 0 <= parent < node:
                raise ValueError(
                    f"parents[{node}] is {parent}: accepted are 0 to {node - 1} "
                    "(a parent is numbered before its child)"
                )
        for node, token in enumerate(self.tokens):
            if not 0 <= token <= MAX_TOKEN:
                raise ValueError(f"tokens[{node}] is {token}: accepted are 0 to {MAX_TOKEN}")
        holder: dict[tuple[int, int], int] = {}
        for node in range(1, len(self.parents)):
            key = (self.parents[node], self.tokens[node])
            if key in holder:
                raise ValueError(
                    f"tokens[{node}] is {key[1]}, and so is tokens[{holder[key]}]: "
                    f"children of node {key[0]} need distinct tokens"
                )
            holder[key] = node

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def depth(self) -> tuple[int, ...]:
        """Edges from the root to each node; `depth[0] == 0`."""
        depth = [0]
        for parent in self.parents[1:]:
            depth.append(depth[parent] + 1)
        return tuple(depth)

    @cached_property
    def _children(self) -> tuple[tuple[int, ...], ...]:
        children: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], start=1):
            children[parent].append(node)
        return tuple(map(tuple, children))

    def children(self, node: int) -> tuple[int, ...]:
        """Children of `node`, ascending."""
        return self._children[node]

    @cached_property
    def topk(self) -> int:
        """Smallest topk of a draft that can grow this tree; at least 1.

        A level of an EAGLE draft has topk beam slots and each grows topk children, so topk bounds
        the children of a node, and the nodes of one depth that have any.
        """
        children, growing = [0] * len(self), [0] * len(self)
        for parent in self.parents[1:]:
            if not children[parent]:
                growing[self.depth[parent]] += 1
            children[parent] += 1
        return max(1, *children, *growing)

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        """Nodes without children, ascending."""
        return tuple(node for node, below in enumerate(self._children) if not below)

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the root to `node`, both included."""
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return tuple(reversed(path))

    def ancestors(self, node: int) -> tuple[int, ...]:
        """Nodes from the root to the parent of `node`."""
        return self.path(node)[:-1]
