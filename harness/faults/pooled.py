"""Further faults of a pool: pages held for nothing, and a prefix cache that finds what it should not."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from treeproof.backends.reference.pool import PagedPool
from treeproof.contract.case import VerifyCase
from treeproof.contract.script import Admit, Evict, Finish, Prefill, Round, Step, Turn
from treeproof.faults.served import serving_fault
from treeproof.faults.smallest import request, script


class _TrimsNothing(PagedPool):
    """A request keeps the pages of rows that were refused, until it leaves."""

    def trim(self, request: int, columns: int) -> None:
        pass


class _ForgetsEqualPage(PagedPool):
    """Of two pages that hold the same tokens the later one is in the cache, and nobody knows of the other."""

    def publish(self, request: int, tokens: Sequence[int], served: int) -> None:
        own = self.held[request]
        for i, end in enumerate(range(self.page, served, self.page)):
            if own[i] >= 0:
                self.cached[self.key(tokens, end)] = own[i]


class _MatchesPastAMiss(PagedPool):
    """Every page of the prompt that is cached is taken, also behind one that is not."""

    def match(self, request: int, tokens: Sequence[int]) -> Sequence[int]:
        keys = [self.key(tokens, end) for end in range(self.page, len(tokens), self.page)]
        found = [self.cached[key] for key in keys if key in self.cached]
        self.held[request] = found
        self.uses.update(found)
        return tuple(found)


class _KeyOfPageAlone(PagedPool):
    """A page is known by the tokens in it and the one after, wherever it stands."""

    def key(self, tokens: Sequence[int], end: int) -> tuple[int, ...]:
        return super().key(tokens, end)[-self.page - 1 :]


_READY: tuple[Step, ...] = (Admit(request=0), Prefill(request=0))
_AGAIN = Finish(request=0)


def _same_tokens(count: int, *steps: Step) -> VerifyCase:
    """A prompt of one token again and again."""
    alike = replace(request(prefix=count), prefix_tokens=(5,) * count)
    return script(alike, steps=steps)


_POOLED = (
    (
        "surplus-held", "pool-holds-surplus", "a request keeps the pages of refused rows as long as it is served",
        _TrimsNothing, script(request((-1, 0), 1), steps=[*_READY, Round(turns=(Turn(request=0),))]),
    ),
    (
        "cached-page-replaced", "cache-forgets-equal-page",
        "a cached page is replaced by one of the same tokens, and is lost", _ForgetsEqualPage,
        script(request(prefix=1), steps=[*_READY, _AGAIN, *_READY]),
    ),
    (
        "matched-past-a-miss", "cache-matches-past-a-miss",
        "a match goes on behind a page that is not in the cache", _MatchesPastAMiss,
        script(
            request(prefix=3), window=3, layout={"evicted": True},
            steps=[Admit(request=0), Prefill(request=0, tokens=2), Prefill(request=0), Evict(), _AGAIN, Admit(request=0)],
        ),
    ),
    (
        "key-of-page-alone", "cache-key-of-page-alone",
        "a cached page is found by its own tokens, whatever comes before it", _KeyOfPageAlone,
        _same_tokens(3, *_READY, _AGAIN, Admit(request=0)),
    ),
)  # fmt: skip

_LARGER = {
    "key-of-page-alone": "what is emitted repeats itself as well, and no reduction makes a prompt of that",
}

FAULTS = tuple(
    serving_fault(
        family, cause, says, smallest, (),
        stage="pool", identity="kv", made=made, larger=_LARGER.get(family, ""),
    )
    for family, cause, says, made, smallest in _POOLED
)  # fmt: skip
