"""How Hypothesis draws here: uniformly, and from nothing but its seed.

Hypothesis mixes in integer constants found in "local" modules, among which are an editable install
of treeproof and a user's backend file: the same seed would draw other cases with other modules
loaded. Its integers moreover follow a distribution computed in floating point. The provider below
draws every bounded integer from whole random bits and takes no constant from anywhere.

Hypothesis calls this interface experimental, so CI pins its version and a test compares what is
drawn in processes that have different modules loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

BACKEND = "treeproof"
"""Value of the Hypothesis setting `backend` that makes it draw this way."""


class UniformProvider(HypothesisProvider):
    """Bounded integers uniformly; no constants; all else as Hypothesis does."""

    def _maybe_draw_constant(self, *args: object, **kwargs: object) -> None:
        return None

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: dict[int, float] | None = None,
        shrink_towards: int = 0,
    ) -> int:
        if min_value is None or max_value is None or weights is not None:
            return super().draw_integer(
                min_value, max_value, weights=weights, shrink_towards=shrink_towards
            )
        assert self._random is not None
        # 64 more bits than the span has: the bias is below 2**-64.
        bits = (max_value - min_value).bit_length() + 64
        span = max_value - min_value + 1
        return min_value + (self._random.getrandbits(bits) * span >> bits)


AVAILABLE_PROVIDERS[BACKEND] = f"{__name__}.UniformProvider"


@contextmanager
def no_constants() -> Iterator[None]:
    """Hypothesis's own provider takes no constants either while this lasts.

    It is the one that shrinks a failing example, whatever the setting `backend`. Where it looks for
    constants, it moreover caches them in a `.hypothesis` folder, database or not.
    """
    own = HypothesisProvider._maybe_draw_constant
    HypothesisProvider._maybe_draw_constant = UniformProvider._maybe_draw_constant  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        HypothesisProvider._maybe_draw_constant = own  # type: ignore[method-assign]
