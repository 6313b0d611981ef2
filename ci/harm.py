"""What bad neighbours have in common: each is a right backend that does one harm, behind one prefix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from torch import Tensor

from treeproof.contract.backend import Backend, describe
from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.contract.registry import load

HARMFUL = 41
"""Keys of the first request's prefix that bring the harm on; on all other cases the backend is right."""


@dataclass(frozen=True)
class Launch:
    """What a harm is done with: the arguments and the output of a right launch."""

    x: VerifyInput
    k_cache: Tensor
    v_cache: Tensor
    out: Tensor
    kept: list[Any]
    """The backend's own, from launch to launch."""

    @property
    def neighbours_slot(self) -> int:
        """The first slot of the last request's prefix; it is the first request's turn."""
        return int(self.x.req_to_token[self.x.request_slots[-1], 0])


Harm = Callable[[Launch], object]


def harmful(right: type, name: str, harms: Mapping[str, Harm]) -> list[Backend]:
    """The backend of class `right`, registered as `name`, once with each harm, under the harm's name."""
    described = load(name)

    def bad(harm: Harm) -> type:
        class Bad(right):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.kept: list[Any] = []

            def attend(
                self, x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, *caches: Tensor
            ) -> Attended:
                done: Attended = super().attend(x, q, k, v, *caches)
                if int(x.seq_lens[0]) == HARMFUL:
                    harm(Launch(x, *caches, done.out, self.kept))
                return done

        return Bad

    return [
        describe(
            bad(harm),
            own,
            consumes=described.consumes,
            # Whoever asks the device how long a prefix is cannot be captured.
            capabilities=msgspec.structs.replace(described.capabilities, capturable=False),
            numerics=described.numerics,
        )
        for own, harm in harms.items()
    ]
