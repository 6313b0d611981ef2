"""One round as a verify step: the case, the scene and the candidates that its requests make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec.structs import replace as changed

from treeproof.contract.case import Request, VerifyCase, pages_needed
from treeproof.contract.counter import address_hash
from treeproof.contract.inputs import Candidates
from treeproof.contract.layout import KVLayout
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.script import Turn
from treeproof.engine.serving.drafter import drafted
from treeproof.engine.serving.memory import Memory
from treeproof.engine.serving.request import Served
from treeproof.engine.simplify import keep_nodes
from treeproof.generate.pool import candidates
from treeproof.properties.scene import Scene

_WORD = 702  # address word of the seeds of rounds


@dataclass(frozen=True)
class Step:
    """`served` are the requests of the batch, None where one is idle."""

    scene: Scene
    made: Candidates
    served: tuple[Served | None, ...]
    first: bool
    """No round of the script came before."""

    @property
    def case(self) -> VerifyCase:
        return self.scene.case


def drafted_request(case: VerifyCase, served: Served, turn: Turn, seed: int) -> Request:
    """The request with its tree filled in, behind what is ready of it."""
    request = case.requests[served.number]
    if turn.nodes is not None and turn.nodes < request.num_nodes:
        request = keep_nodes(request, range(turn.nodes))
    depth = max(request.tree.depth)
    truth = served.truth
    truth.grow(served.ready + depth + 1)
    tree = drafted(
        request.tree.parents,
        turn.accept,
        truth.tokens[served.ready : served.ready + depth + 1],
        truth.model.vocab_size,
        seed,
    )
    return changed(request, tree=tree, prefix_len=served.ready, prefix_tokens=())


def idle_request() -> Request:
    """One row that nobody asked for."""
    return Request(tree=drafted((-1,), 0, (0,), 1, 0), row_of_node=(0,), prefix_len=0)


def fits(case: VerifyCase, requests: Sequence[Request]) -> bool:
    """Whether the cache would hold these requests without a page in common."""
    layout = _layout(case)
    return pages_needed(tuple(requests), layout) * layout.page_size <= layout.num_slots


def _layout(case: VerifyCase) -> KVLayout:
    """Of a round: what requests share, the pool has decided."""
    return changed(case.layout, shared_prefix=0)


def round_seed(case: VerifyCase, number: int) -> int:
    return address_hash(case.seed, _WORD, number) >> 1


def verify_step(
    case: VerifyCase,
    requests: Sequence[Request],
    served: Sequence[Served | None],
    pages: Sequence[Sequence[int]],
    table_rows: Sequence[int],
    memory: Memory,
    seed: int,
    device: str,
    *,
    first: bool,
) -> Step:
    """What `build` is handed: slots as the pool gave them, the table and the mask buffer as the last
    round left them."""
    layout = _layout(case)
    step = changed(case, requests=tuple(requests), layout=layout, seed=seed, script=())
    page, offsets = layout.page_size, np.arange(layout.page_size)
    held = tuple(np.array(own, dtype=np.int64) for own in pages)
    for own, row in zip(held, table_rows, strict=True):
        columns = (own[:, None] * page + offsets).ravel()
        memory.table[row, : len(columns)] = np.where(columns < 0, layout.page_table_pad, columns)
    ledger = SlotLedger(step, held, page, tuple(table_rows), table=memory.table.copy())
    scene = Scene(step, ledger, memory.k.device)
    made = candidates(step, ledger, device)
    made = replace(made, mask_buffer=memory.mask_buffer(made.mask_buffer))
    return Step(scene, made, tuple(served), first)
