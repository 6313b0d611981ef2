"""Evidence of one run on one case, by group: what was seen, or what a statement predicts.

Observations and predictions have one form, so that comparing them is all there is to explaining.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.case import AttentionShape, VerifyCase
from treeproof.contract.target_model import TargetModel
from treeproof.properties.probes.influence import Influence

Group = Literal[
    "tokens", "positions", "slots", "lengths", "links", "tables", "attend", "layers", "merge", "accept",
    "commit", "forward", "select", "draft", "extend", "sample", "process",
    "again", "contract",
]  # fmt: skip
"""Evidence that stands or falls together: a stage's answer, or one field of a build."""

KEPT, STRANGE, PADDED = -1, -2, -3
"""What a slot holds after a write besides the rows of the launch: what it held before, something
that no row brought, and the K or V of a padded row."""

_PARTLY = -10


def partly(source: int) -> int:
    """What a slot holds whose lanes or heads are in part those of a row, or of another slot, and in
    part what they were before."""
    return _PARTLY - source


Counts = npt.NDArray[np.float64]
Origins = npt.NDArray[np.int64]
"""(num_slots,) slot whose old contents each slot holds."""
Writes = Mapping[int, tuple[int, int]]
"""Slot to the flat rows whose K and V it holds; slots that did not change are left out."""


@dataclass(frozen=True)
class TableReads:
    """What one form of table tells one request's rows to read.

    `counts` (real rows, slots). `window_free`: the window is cut later, by the kernel. `closed`: what
    is not among `slots` is not read at all (a list); else nothing is said about it (a mask).
    """

    form: str
    request: int
    slots: tuple[int, ...]
    counts: Counts
    window_free: bool
    closed: bool


@dataclass(frozen=True)
class KernelReads:
    """How often the rows of one request read each of some slots: least and most over the heads."""

    request: int
    slots: tuple[int, ...]
    low: Counts
    high: Counts


@dataclass(frozen=True)
class Attended:
    """What launches of attend showed of the real rows.

    `unowned`: flat rows that read memory no request holds. `out` (real rows, Hq, Dv) and `lse`
    (real rows, Hq), natural, float64 on the CPU, of the quiet random data. `limit`, `lse_limit`: how far a
    right kernel may be from them, the same shapes; None on an observation.
    """

    reads: tuple[KernelReads, ...]
    unowned: frozenset[int]
    out: Tensor | None
    lse: Tensor | None
    writes: Writes | None
    limit: Tensor | None = None
    lse_limit: Tensor | None = None


@dataclass(frozen=True)
class LayerSeen:
    """One layer's launch in a small model. `plan`: the number of the plan that it ran on.

    What it was handed: `q` (T, Hq, D), and in `cache` the K (num_slots, Hkv, D) and V that each slot of
    its own is to hold then; `stale`, one slot's worth of each, lay in the tree's before. `out` (real
    rows, Hq, Dv). All float64 on the CPU.
    """

    plan: int
    shape: AttentionShape
    q: Tensor
    cache: tuple[Tensor, Tensor]
    stale: tuple[Tensor, Tensor]
    out: Tensor


@dataclass(frozen=True)
class LayersSeen:
    """A small model's layers, in their order. `held`: of each (layer, slot) whose K and V are not what they
    were before all launches, the layers and rows of the launch that both may be of."""

    layers: tuple[LayerSeen, ...]
    held: Mapping[tuple[int, int], frozenset[tuple[int, int]]]


@dataclass(frozen=True)
class Again:
    """What every stage showed on an object that had run another case before: groups as in
    `Observation`."""

    earlier: VerifyCase
    found: Mapping[Group, Any]
    wrong: frozenset[Group] = frozenset()
    """Groups that are wrong here or after another earlier case; others are known to be right."""


@dataclass(frozen=True)
class Merged:
    """What a merge of two partial results gave: `out` (rows, Hq, Dv), natural `lse` (rows, Hq)."""

    out: Tensor
    lse: Tensor


@dataclass(frozen=True)
class Walk:
    """One request's part of an accept: local rows (-1 a hole), accept_len, tokens up to it."""

    rows: tuple[int, ...]
    length: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Commit:
    """One commit: slot whose old K, whose old V each slot holds (`STRANGE`: none's), both
    (num_slots,); new lengths and next roots, one a request. `beside`: the same of the two caches that
    are moved along with them; None: as K and V."""

    k: Origins
    v: Origins
    seq_lens: tuple[int, ...]
    next_root: tuple[int, ...]
    beside: tuple[Origins, Origins] | None = None

    @property
    def companions(self) -> tuple[Origins, Origins]:
        return self.beside or (self.k, self.v)


@dataclass(frozen=True)
class Forward:
    """What a whole engine showed, of its logits alone.

    `moved`: which token moves which row; None where a statement leaves none possible. `logits` (real rows,
    vocabulary) float64 on the CPU, None where the model is not known. `limit` (real rows, 1): how far
    a right engine may be from them; None on an observation.
    """

    moved: Influence | None
    logits: Tensor | None
    limit: Tensor | None = None


@dataclass(frozen=True)
class Observation:
    """Everything a backend did on one case that a statement can be held against.

    `found[group]` is the evidence, absent where the backend gave none: `tokens` (real rows),
    `positions` and `slots` (all rows; -1 for any pad slot on padding) and `lengths` (B,) are tuples
    of int; `links` maps field names to (B, Nmax) tuples; `tables` is a tuple of TableReads; `attend`
    an Attended; `layers` a LayersSeen; `merge` a Merged of what `properties.merging.parts` gives; `accept` a tuple of tuples
    of Walk and `commit` a tuple of Commit, one a round; `forward` a Forward; `draft` a `laid_out.Phase`;
    `extend` a tuple of `renewed.Round`, one a round; `select` a tuple of `chosen.Chosen`, one a pool; `again` a tuple of Again; `contract` a
    frozenset of (kind, stage, detail). Stages after `build` were given what a right build
    would have given them, so each group shows what its own stage does.
    """

    case: VerifyCase
    found: Mapping[Group, Any]
    numerics: Numerics = field(default_factory=Numerics)
    capabilities: Capabilities = field(default_factory=Capabilities)
    leaves: int | None = 12
    """Leaves that were accepted and committed, as `traversal.predictions` takes it."""
    model: TargetModel | None = None
    """What a whole engine says it runs."""

    def with_contract(self, broken: Iterable[tuple[str, str, str]]) -> Observation:
        """The same, with these broken contracts beside those that were seen."""
        seen = frozenset(self.found.get("contract", frozenset())) | frozenset(broken)
        return replace(self, found={**self.found, "contract": seen})
