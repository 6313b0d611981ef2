"""What the representations on FlashAttention share: how each is registered, and the build it calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Set
from typing import Any

from treeproof.backends.adapters import flash_library
from treeproof.backends.adapters.flash_call import Flash
from treeproof.backends.adapters.flash_library import Library
from treeproof.backends.adapters.flash_names import GENERATIONS
from treeproof.contract.backend import BackendUnavailable
from treeproof.contract.capabilities import Capabilities, Numerics

_UNTESTED = "untested on hardware: written against the documented interface"


def described(
    generation: str,
    limits: Callable[[Library], Capabilities | str],
    consumes: Set[str],
    *,
    merges: int = 0,
) -> dict[str, Any]:
    """What `register` is told; `limits` of a build are its capabilities, or why it will not do."""
    found = flash_library.find(generation)
    can = limits(found) if isinstance(found, Library) else found
    known = GENERATIONS[generation]
    checked = bool(found.name.known) if isinstance(found, Library) else known.checked
    note = "" if checked else _UNTESTED
    reason = can if isinstance(can, str) else ""
    return {
        "consumes": consumes,
        "kernels": {known.kernels},
        "capabilities": Capabilities(devices={"cuda"}) if isinstance(can, str) else can,
        # Weights are rounded for the second product, partial results as any output is; a softcap is
        # taken by the hardware's tanh.
        "numerics": Numerics(p="input", tanh="approx", partial="input", merges=merges),
        "unavailable": f"{reason} ({note})" if reason and note else reason,
        "note": note,
    }


@functools.cache
def opened(generation: str) -> Flash:
    """The installed build, loaded once a process. Raises BackendUnavailable where there is none."""
    found = flash_library.find(generation)
    if isinstance(found, str):
        raise BackendUnavailable(found)
    return Flash(found)
