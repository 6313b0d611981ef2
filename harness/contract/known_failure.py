"""A failure that somebody has written down: which one, where, why it may be, and until when."""

from __future__ import annotations

from datetime import date
from typing import Literal, get_args

import msgspec

from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Failure, Identity

Treatment = Literal["tolerated", "quarantined"]
"""Tolerated: it is checked, and fails as expected. Quarantined: it is never launched."""
TREATMENTS: tuple[Treatment, ...] = get_args(Treatment)

ANY_KIND = "*"

Spans = tuple[tuple[int, int], ...]
"""Least and most of each accepted stretch of whole numbers; empty for any."""


class Scope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The cases that an entry speaks of; an empty field speaks of all.

    `rows`, `topk` and `prefix` (keys) are those of the request that has most of them, padded rows
    included. `window`: with a sliding window, or without.
    """

    dtype: tuple[str, ...] = ()
    device: tuple[str, ...] = ()
    mask_mode: tuple[str, ...] = ()
    window: bool | None = None
    page_size: Spans = ()
    head_dim: Spans = ()
    requests: Spans = ()
    rows: Spans = ()
    topk: Spans = ()
    prefix: Spans = ()

    def covers(self, case: VerifyCase, device: str) -> bool:
        """`device` is the run's, `cpu`, `cuda` or `cuda:N`."""
        words = (
            (self.dtype, case.shape.dtype),
            (self.device, device.partition(":")[0]),
            (self.mask_mode, case.mask.mode.name),
        )
        numbers = (
            (self.page_size, case.layout.page_size),
            (self.head_dim, case.shape.head_dim),
            (self.requests, len(case.requests)),
            (self.rows, max(request.num_rows for request in case.requests)),
            (self.topk, max(request.tree.topk for request in case.requests)),
            (self.prefix, max(request.prefix_len for request in case.requests)),
        )
        windowed = case.shape.window is not None
        return (
            (self.window is None or self.window == windowed)
            and all(not accepted or word in accepted for accepted, word in words)
            and all(
                not spans or any(least <= number <= most for least, most in spans)
                for spans, number in numbers
            )
        )


class KnownFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of a ledger. `number` counts from 1 in the order of the file.

    `backend` is a name, or the reference that it is asked for by. `reason` names a tracker, or says
    "not reported". An entry holds up to the day `expires`, that day included. With a `cause`, only a
    failure that it accounts for in the check itself is this one. Its kind may then be `ANY_KIND`, as
    it may in a finding whose cases are named by device and head dim. Entries of one `finding` stand
    and fall together: as long as one of them fails, none of them is over. `versions`: distributions,
    and the releases of each that it speaks of; `elsewhere`: why it does not hold where the run was.
    """

    number: int
    backend: str
    identity: Identity
    kind: str
    reason: str
    expires: date
    treatment: Treatment = "tolerated"
    cause: str = ""
    when: Scope = Scope()
    finding: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    elsewhere: str = ""

    def is_about(self, key: tuple[str, str]) -> bool:
        """Whether a failure of this identity and kind, `Failure.key`, may be this one."""
        return self.identity == key[0] and self.kind in (key[1], ANY_KIND)

    def tolerates(self, failure: Failure) -> bool:
        """Whether this failure is this one; with a cause, one that bears it."""
        return self.is_about(failure.key) and self.cause in ("", failure.cause)

    def days_left(self, today: date) -> int:
        """Days that the entry holds still, today included; 0 and below: it is past."""
        return (self.expires - today).days + 1

    def covers(self, case: VerifyCase, backend: tuple[str, str], device: str) -> bool:
        """Whether a check of this case is in its scope; `backend` is a name and a reference."""
        here = self.backend in backend and not self.elsewhere
        return here and self.when.covers(case, device)
