"""Which fields of an earlier batch a captured launch goes on with, and how that is said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.contract.failure import Failure, Identity
from treeproof.contract.inputs import VerifyInput
from treeproof.properties.probes.buffers import held_by
from treeproof.properties.violation import contract_failure

_GROUPS: tuple[tuple[str, Identity, frozenset[str]], ...] = (
    ("captured-lengths", "visibility", frozenset({"seq_lens", "cache_seqlens"})),
    ("captured-positions", "position", frozenset({"positions"})),
    ("captured-mask", "visibility", frozenset({"custom_mask", "mask_indptr"})),
    (
        "captured-tables",
        "visibility",
        frozenset({
            "kv_indptr", "kv_indices", "kv_start", "page_table", "req_to_token", "request_slots",
        }),
    ),
    (
        "captured-links",
        "visibility",
        frozenset({
            "retrieve_index", "retrieve_next_token", "retrieve_next_sibling", "retrieve_parent_token",
        }),
    ),
    ("captured-slots", "kv", frozenset({"out_cache_loc"})),
    ("captured-tokens", "candidate", frozenset({"draft_token"})),
)  # fmt: skip
"""A kind, the identity that it breaks, and the fields that it may be about."""
_MIXED: tuple[str, Identity, frozenset[str]] = ("captured-tables", "visibility", frozenset())


@dataclass(frozen=True)
class Where:
    """Where a difference shows, in words and, in a row of the case, in numbers."""

    request: int | None
    row: int | None
    text: str


@dataclass(frozen=True)
class Kept:
    """Fields as an earlier batch had them."""

    fields: Mapping[str, Tensor]
    words: str
    kind: str
    identity: Identity

    def failure(self, how: str, which: str, where: Where) -> Failure:
        """`how`: captured or planned; `which`: the batch that it keeps to."""
        return Failure(
            identity=self.identity,
            kind=self.kind,
            evidence="measured",
            stage="attend",
            request=where.request,
            row=where.row,
            message=f"{_once(how)}, attend goes on with {self.words} of {which}: {where.text}",
            expected="what the buffers hold now",
            actual=self.words,
        )


def unexplained(how: str, where: Where) -> Failure:
    message = f"{_once(how)}, attend gives what a fresh plan does not: {where.text}"
    return contract_failure("changes-when-replayed", "attend", message)


def not_capturable(why: str) -> Failure:
    message = f"attend cannot be captured, and capturable is declared: {why}"
    return contract_failure("not-capturable", "attend", message)


def _once(how: str) -> str:
    return f"{how} for one batch and run on another that was copied into its buffers"


def ways_to_keep(
    earlier: VerifyInput, now: VerifyInput, padding: Tensor, read: Set[str]
) -> Iterator[Kept]:
    """Single fields that a backend reads and in which the batches differ, then those that belong
    together, then all of them. Tensors are as large in both; `padding` (T,) bool of this batch."""
    names = [n for n in held_by([earlier, now]) if n in read and _differ(earlier, now, n)]
    for name in names:
        yield _kept(earlier, (name,), name)
        if name in ("seq_lens", "cache_seqlens"):
            field = getattr(now, name).clamp(max=getattr(earlier, name).max())
            yield Kept({name: field}, f"the longest of {name}", "captured-lengths", "visibility")
        if name == "out_cache_loc":
            field = torch.where(padding, earlier.out_cache_loc, now.out_cache_loc)
            yield Kept({name: field}, f"{name} in padded rows", "captured-slots", "kv")
    for _, _, fields in _GROUPS:
        together = tuple(name for name in names if name in fields)
        if len(together) > 1:
            yield _kept(earlier, together, " and ".join(together))
    if len(names) > 1:
        yield _kept(earlier, tuple(names), "all that it reads")


def _kept(earlier: VerifyInput, names: tuple[str, ...], words: str) -> Kept:
    fits = (group for group in _GROUPS if set(names) <= group[2])
    kind, identity, _ = next(fits, _MIXED)
    fields = {name: getattr(earlier, name) for name in names}
    return Kept(fields, words, kind, identity)


def _differ(earlier: VerifyInput, now: VerifyInput, name: str) -> bool:
    one, other = getattr(earlier, name), getattr(now, name)
    return not torch.equal(one, other)
