"""One round as a verify step: the case, the scene and the candidates that its requests make."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from msgspec.structs import replace as changed

from treeproof.backends import reference
from treeproof.contract.case import VerifyCase
from treeproof.contract.counter import address_hash
from treeproof.contract.inputs import Candidates, LayerParameters, VerifyInput
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.shape import AttentionShape
from treeproof.engine.checks.copies import copied
from treeproof.engine.serving.batch import Batch, of_round
from treeproof.engine.serving.memory import Memory
from treeproof.generate.pool import candidates
from treeproof.properties.plans import Plan, by_links
from treeproof.properties.scene import Scene

_WORD = 702  # address word of the seeds of rounds


@dataclass(frozen=True)
class Step:
    scene: Scene
    made: Candidates
    batch: Batch
    first: bool
    """No round of the script came before."""

    @property
    def case(self) -> VerifyCase:
        return self.scene.case

    @property
    def numbers(self) -> tuple[int, ...]:
        """Whose line of the batch each is; -1 where it is nobody's."""
        return self.batch.numbers

    def of(self, shape: AttentionShape) -> Step:
        """The same round as layers of another shape have it."""
        if shape == self.case.shape:
            return self
        scene = replace(self.scene, case=changed(self.case, shape=shape))
        made = replace(self.made, shape=shape, mask_buffer=self.made.mask_buffer.clone())
        return replace(self, scene=scene, made=made)

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        """The trees by the order of their links."""
        return tuple(by_links(request) for request in self.case.requests)

    @cached_property
    def ours(self) -> VerifyInput:
        """What stages of the reference go by: a build of the backend may lack what they need."""
        return reference.build(copied(self.made))


def round_seed(case: VerifyCase, number: int) -> int:
    return address_hash(case.seed, _WORD, number) >> 1


def verify_step(
    batch: Batch,
    layer: LayerParameters,
    memory: Memory,
    seed: int,
    device: str,
    *,
    first: bool,
) -> Step:
    """What `build` is handed: slots as the pool gave them, the table and the mask buffer as the last
    round left them."""
    layout = of_round(batch.case.layout)
    step = changed(batch.case, requests=tuple(batch.requests), layout=layout, seed=seed, script=())
    page, offsets = layout.page_size, np.arange(layout.page_size)
    held = tuple(np.array(own, dtype=np.int64) for own in batch.pages)
    for own, row in zip(held, batch.table_rows, strict=True):
        columns = (own[:, None] * page + offsets).ravel()
        memory.table[row, : len(columns)] = np.where(columns < 0, layout.page_table_pad, columns)
    ledger = SlotLedger(step, held, page, tuple(batch.table_rows), table=memory.table.copy())
    scene = Scene(step, ledger, memory.k.device, layer)
    made = candidates(step, ledger, device, memory.mask_buffer(step))
    return Step(scene, made, batch, first)
