"""Drawn cases with their caches in the layouts that a backend takes.

Layouts are no draw of their own: what is drawn stays the same when a backend learns another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from msgspec.structs import replace

from treeproof.contract.case import VerifyCase
from treeproof.contract.layout import CacheLayout

_ONE_IN = 3
"""Of the cases of a backend that takes others besides NHD, so many have one of them."""


def stored(case: VerifyCase, layouts: Collection[CacheLayout]) -> VerifyCase:
    """The case, or the case in one of `layouts`, in turn by its seed. NHD where it is taken comes
    most often, and always where nothing else is."""
    others = sorted(set(layouts) - {"NHD"})
    digest = hashlib.blake2b(case.seed.to_bytes(8, "big"), digest_size=8, person=b"storage")
    turn = int.from_bytes(digest.digest(), "big")
    if not others or ("NHD" in layouts and turn % _ONE_IN):
        return case
    chosen = others[turn // _ONE_IN % len(others)]
    return replace(case, layout=replace(case.layout, storage=chosen))
