"""Bulk: cases of many requests in one launch, for GPUs, whose launches take as long with one request.

Trees of all topologies with 8 to 64 rows (the median is 36) behind prefixes of 512 and of 4,096 keys:
what is left to chance here is which trees; all else is for the ordinary units to vary. Launches of attend
are looked at and nothing else: the rest takes a hundred times as long, and sees no more in many trees.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from treeproof.contract.case import (
    AttentionShape,
    KVLayout,
    MaskLayout,
    MaskMode,
    Request,
    VerifyCase,
)
from treeproof.contract.tree import CandidateTree
from treeproof.generate.cases import pages_of
from treeproof.generate.orders import row_of_node
from treeproof.generate.topologies import TOKEN_LAWS, TOPOLOGIES, grow, tokens_of

PROFILE = "gpu"
"""The profile that has them."""
REQUESTS = 128
ROWS = (8, 64)
PREFIXES = (512, 4096)
"""In turn."""
CASES_A_BULK = 45
"""A run has a case of bulk for so many others: 24 in the profile gpu. Kernels are compiled in the first four; the
others have more than 2,000 distinct trees."""


@dataclass(frozen=True)
class BulkShape:
    """What is compiled for: 8 query heads on 2 of keys and values, 128 lanes each, no window."""

    dtype: str
    page_size: int


SHAPES = (BulkShape("bfloat16", 16), BulkShape("float16", 64))


@dataclass(frozen=True)
class BulkUnit:
    """One case; the same whenever and wherever it is drawn."""

    profile: str
    seed: int
    """Seed of the run."""
    block: int
    dtype: str | None = None

    @property
    def name(self) -> str:
        return f"{self.profile}-{self.seed}-bulk-{self.block}"

    @property
    def shape(self) -> BulkShape:
        shape = SHAPES[self.block % len(SHAPES)]
        return shape if self.dtype is None else BulkShape(self.dtype, shape.page_size)


def bulk_units(profile: str, run_seed: int, cases: int, dtype: str | None = None) -> list[BulkUnit]:
    """The units of a run of so many other cases, in a fixed order."""
    return [BulkUnit(profile, run_seed, i, dtype) for i in range(cases // CASES_A_BULK)]


def draw_bulk(unit: BulkUnit) -> VerifyCase:
    words = hashlib.blake2b(unit.name.encode(), digest_size=8).digest()
    run = int.from_bytes(words, "big") >> 1
    mode = MaskMode.QLEN_ONLY if unit.block // len(SHAPES) % 2 else MaskMode.FULL_MASK
    return bulk_case(run, unit.shape, REQUESTS, mode)


def bulk_case(
    run: int, shape: BulkShape, requests: int, mode: MaskMode, rows: tuple[int, int] = ROWS
) -> VerifyCase:
    """Everything in it follows from `run`, an integer from 1 on."""
    chosen = list(islice(_trees(random.Random(run), rows), requests))
    # Not in step with the topologies.
    lengths = [PREFIXES[(i + i // len(_IN_TURN)) % len(PREFIXES)] for i in range(requests)]
    columns = [length + len(tree) for tree, length in zip(chosen, lengths, strict=True)]
    pages = pages_of(columns, shape.page_size, 0, 0)
    return VerifyCase(
        requests=tuple(
            Request(
                tree=tree, row_of_node=row_of_node(tree, "breadth-first", run), prefix_len=length
            )
            for tree, length in zip(chosen, lengths, strict=True)
        ),
        shape=AttentionShape(
            num_q_heads=8, num_kv_heads=2, head_dim=128, v_head_dim=128, dtype=shape.dtype
        ),
        layout=KVLayout(
            page_size=shape.page_size, num_slots=pages * shape.page_size, order="shuffled"
        ),
        mask=MaskLayout(mode=mode),
        seed=run,
    )


_IN_TURN = tuple(name for topology in TOPOLOGIES for name in (topology, "random"))
"""Of chains, stars and combs there are not many."""


def _trees(rng: random.Random, rows: tuple[int, int]) -> Iterator[CandidateTree]:
    while True:
        for name in _IN_TURN:
            salt = rng.getrandbits(32)
            parents = grow(name, rng.randint(*rows), rng.randint(1, 9), salt)
            yield CandidateTree(tokens_of(parents, TOKEN_LAWS[0], salt), parents)
