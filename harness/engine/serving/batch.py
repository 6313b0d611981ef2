"""Those that take part in a round: requests with their trees drafted, and idle ones of one row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from treeproof.contract.case import Request, VerifyCase, pages_needed
from treeproof.contract.counter import address_hash
from treeproof.contract.layout import KVLayout
from treeproof.contract.script import Round, Turn
from treeproof.engine.serving.drafter import drafted_request, idle_request
from treeproof.engine.serving.paging import Paging
from treeproof.engine.serving.request import Served


@dataclass
class Batch:
    """`turns` are those of `served`, in their order; behind them come the idle ones, which are None.

    `pages` and `table_rows` are where each one's keys lie, `codes` those of all real rows, for what
    lies beside them.
    """

    case: VerifyCase
    turns: list[Turn] = field(default_factory=list)
    served: list[Served | None] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    pages: list[list[int]] = field(default_factory=list)
    table_rows: list[int] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)

    @property
    def ready(self) -> list[Served]:
        return [one for one in self.served if one is not None]

    @property
    def numbers(self) -> tuple[int, ...]:
        """Of each line, the request; -1 where it is nobody's."""
        return tuple(-1 if one is None else one.number for one in self.served)

    def stop(self, b: int) -> int | None:
        """Tokens after which a request of the batch is stopped in this round."""
        return self.turns[b].stop if b < len(self.turns) else None

    def join(
        self,
        served: Served,
        turn: Turn,
        seed: int,
        paging: Paging,
        to_draft: Callable[[int], int],
        *,
        sampled: bool,
    ) -> None:
        """Draft a tree and reserve its columns, and those `to_draft` behind what is ready. Where there
        is no room, the request waits."""
        whole, own = self.case.requests[served.number], address_hash(seed, turn.request)
        request = drafted_request(whole, served, turn, own, sampled=sampled)
        if not _fit([*self.requests, request], self.case.layout):
            return
        columns = max(served.ready + request.num_nodes, to_draft(served.ready))
        pages = paging.reserve(served.number, columns)
        if pages is None:
            return
        served.pages = pages
        self.turns.append(turn)
        of_node = _node_codes(served, request)
        self._add(request, served, pages, served.table_row)
        self.codes += [of_node[node] for node in request.node_of_row]

    def fill_up(self, step: Round, rows: list[int], paging: Paging) -> None:
        """Idle requests, numbered from -1 down, with table rows of their own."""
        for i in range(step.idle):
            if not _fit([*self.requests, idle_request()], self.case.layout):
                break
            pages = paging.reserve(-1 - i, 1)
            if pages is None:
                break
            self._add(idle_request(), None, pages, rows[i])
            self.codes.append(0)

    def let_idle_go(self, paging: Paging) -> None:
        for i in range(len(self.served) - len(self.turns)):
            paging.release(-1 - i)

    def _add(self, request: Request, served: Served | None, pages: list[int], row: int) -> None:
        self.requests.append(request)
        self.served.append(served)
        self.pages.append(pages)
        self.table_rows.append(row)


def of_round(layout: KVLayout) -> KVLayout:
    """The layout of one round: what requests share, the pool has decided."""
    return replace(layout, shared_prefix=0)


def _fit(requests: Sequence[Request], layout: KVLayout) -> bool:
    """Whether the cache would hold these requests without a page in common."""
    needed = pages_needed(tuple(requests), of_round(layout))
    return needed * layout.page_size <= layout.num_slots


def _node_codes(served: Served, request: Request) -> list[int]:
    codes: list[int] = []
    for token, parent in zip(request.tree.tokens, request.tree.parents, strict=True):
        before = codes[parent] if parent >= 0 else served.codes[-1]
        codes.append(address_hash(before, token))
    return codes
