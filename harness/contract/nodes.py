"""The nodes of all requests of a batch as arrays, for what is worked out for all of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from treeproof.contract.case import Request

    Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Nodes:
    """(nodes,) int64 each, one request after the other.

    `request` is the number of the node's request, `row` its row within it and `parent` its parent
    among all nodes, -1 of roots.
    """

    request: Ints
    row: Ints
    parent: Ints
    depth: Ints
    token: Ints

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Nodes:
        import numpy as np  # to import the contract is to import nothing heavy

        counts = np.array([request.num_nodes for request in requests])

        def flat(numbers: Iterable[Iterable[int]]) -> Ints:
            return np.fromiter(chain.from_iterable(numbers), np.int64, int(counts.sum()))

        parent = flat(request.tree.parents for request in requests)
        first = (counts.cumsum() - counts).repeat(counts)
        return cls(
            request=np.arange(len(counts)).repeat(counts),
            row=flat(request.row_of_node for request in requests),
            parent=np.where(parent < 0, -1, parent + first),
            depth=flat(request.tree.depth for request in requests),
            token=flat(request.tree.tokens for request in requests),
        )
