"""Faults of what serves many rounds: pages that are lost, shared too early, or found by a wrong key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from treeproof.backends.reference.pool import PagedPool
from treeproof.backends.reference.schedule import Schedule
from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Identity
from treeproof.contract.script import Admit, Evict, Finish, Prefill, Round, Step, Turn
from treeproof.faults.fault import Fault, Plant
from treeproof.faults.smallest import request, script


def _serving(stage: str, made: Callable[..., Any]) -> Plant:
    """A plant: the backend has this stage, and it makes something wrong."""

    def plant(backend: Backend) -> Backend:
        def make() -> Any:
            instance = backend.make()
            setattr(instance, stage, made)
            return instance

        return replace(backend, make=make, stages=backend.stages | {stage})

    return plant


def attends(backend: Backend) -> bool:
    """Whether a script can be served with it."""
    return "attend" in backend.stages


class _KeepsSurplus(PagedPool):
    """What was reserved for drafts is forgotten, and not given back."""

    def trim(self, request: int, columns: int) -> None:
        del self.held[request][-(-columns // self.page) :]


class _KeepsLastPage(PagedPool):
    """Of a request that leaves, the last page stays behind."""

    def release(self, request: int) -> None:
        self.give_back(self.held.pop(request, [])[:-1])


class _TrimsOneTooMany(PagedPool):
    """A page that is not full counts as one that nobody needs."""

    def trim(self, request: int, columns: int) -> None:
        own, kept = self.held[request], columns // self.page
        self.uses.subtract(own[kept:])
        self.free[:0] = own[kept:]  # handed out last, so that another one comes in its place
        del own[kept:]


class _FreesSharedPages(PagedPool):
    """Whoever leaves takes all its pages along, those of others and of the cache too."""

    def release(self, request: int) -> None:
        self.free += self.held.pop(request, [])


class _EvictsWhatIsHeld(PagedPool):
    """Eviction does not ask who holds a page."""

    def evict(self) -> None:
        self.free += self.cached.values()
        self.cached.clear()


class _SharesBeforeWriting(PagedPool):
    """A prompt's pages are in the cache as soon as it is admitted."""

    def match(self, request: int, tokens: Sequence[int]) -> Sequence[int]:
        found = super().match(request, tokens)
        self.reserve(request, len(tokens))
        self.publish(request, tokens, len(tokens))
        return found


class _KeyWithoutSuccessor(PagedPool):
    """A page's key are the tokens that lie in it and before it, and no more."""

    def key(self, tokens: Sequence[int], end: int) -> tuple[int, ...]:
        return super().key(tokens, end)[:-1]


class _CachesPastTheStop(PagedPool):
    """All that was computed is cached, served or not."""

    def publish(self, request: int, tokens: Sequence[int], served: int) -> None:
        super().publish(request, tokens, len(tokens))


class _SlidesByBigrams(PagedPool):
    """The window's edge is counted in keys of two tokens, one farther on than in tokens."""

    def slide(self, request: int, first: int) -> None:
        super().slide(request, first + 1)


class _SampledInsidePrompt(Schedule):
    """The last token of a chunk is followed by what was sampled, also where the prompt goes on."""

    def successors(
        self, prompt: Sequence[int], first: int, count: int, sampled: int
    ) -> Sequence[int]:
        return [*prompt[first + 1 : first + count], sampled]


class _RunsAhead(Schedule):
    """Nobody waits for a result."""

    def runnable(self, running: Sequence[int], in_flight: Collection[int]) -> Sequence[int]:
        return running


_PREFILLED: tuple[Step, ...] = (Admit(request=0), Prefill(request=0))
_ROUND = Round(turns=(Turn(request=0),))


def _shared(*prefixes: int, steps: Sequence[Step], shared: int) -> VerifyCase:
    requests = [request(prefix=p) for p in prefixes]
    return script(*requests, steps=steps, layout={"shared_prefix": shared})


_LATER = (*_PREFILLED, Admit(request=1))

_POOLS: tuple[tuple[str, str, str, type[PagedPool], VerifyCase, tuple[str, ...]], ...] = (
    (
        "surplus-kept", "pool-keeps-surplus", "slots that were reserved for drafts are never given back", _KeepsSurplus,
        script(request((-1, 0), 1), steps=[*_PREFILLED, _ROUND]),
        ("B073", "sgl-project/sglang#13826"),
    ),
    (
        "last-page-kept", "pool-keeps-last-page", "the last page of a request that leaves is never given back",
        _KeepsLastPage, script(request(prefix=1), steps=_PREFILLED), ("B073",),
    ),
    (
        "open-page-given-back", "pool-frees-open-page", "the last page goes back while there are keys in it",
        _TrimsOneTooMany,
        script(request(prefix=2), page_size=2, steps=[*_PREFILLED, _ROUND, _ROUND]),
        (),
    ),
    (
        "shared-pages-freed", "pool-frees-shared-pages", "a request that leaves frees pages that others share",
        _FreesSharedPages, _shared(2, 3, steps=[*_LATER, Finish(request=0), Prefill(request=1)], shared=2),
        ("B088", "sgl-project/sglang#23392"),
    ),
    (
        "held-pages-evicted", "pool-evicts-held-pages", "the cache gives up pages that a request holds", _EvictsWhatIsHeld,
        script(
            request(prefix=2), request(prefix=2),
            steps=[*_PREFILLED, Evict(), Admit(request=1), Prefill(request=1)],
        ),
        (),
    ),
    (
        "shared-before-written", "cache-before-written", "pages of a prompt are shared before they are written",
        _SharesBeforeWriting,
        _shared(2, 2, steps=[Admit(request=0), Admit(request=1)], shared=2),
        ("B076", "vllm-project/vllm#41838"),
    ),
    (
        "key-without-successor", "cache-key-without-successor", "cached keys of the drafter are found without the token after them",
        _KeyWithoutSuccessor, _shared(2, 2, steps=_LATER, shared=1),
        ("B075", "vllm-project/vllm#50438"),
    ),
    (
        "caches-past-the-stop", "cache-past-the-stop", "tokens past a stop are part of what is cached", _CachesPastTheStop,
        script(
            request((-1, 0), 1),
            steps=[*_PREFILLED, Round(turns=(Turn(request=0, accept=1, stop=1),))],
        ),
        ("B077", "sgl-project/sglang#35694"),
    ),
    (
        "window-in-bigrams", "window-edge-one-on", "live pages of a window go back, for its edge is counted in other keys",
        _SlidesByBigrams,
        script(
            request(prefix=2), window=2, steps=[*_PREFILLED, _ROUND], layout={"evicted": True},
        ),
        ("B074", "sgl-project/sglang#34870"),
    ),
)  # fmt: skip


def serving_fault(
    family: str,
    cause: str,
    says: str,
    smallest: VerifyCase,
    sources: tuple[str, ...],
    *,
    stage: str,
    identity: Identity,
    made: Callable[..., Any],
    larger: str = "",
) -> Fault:
    """A fault of what this stage makes; `says` is what is wrong with it."""
    return Fault(
        family=family,
        says=says,
        sources=sources,
        stage=stage,
        identity=identity,
        evidence="measured",
        cause=cause,
        smallest=smallest,
        larger=larger,
        plant=_serving(stage, made),
        applies=attends,
    )


FAULTS = (
    *(
        serving_fault(
            family, cause, says, smallest, sources, stage="pool", identity="kv", made=made
        )
        for family, cause, says, made, smallest, sources in _POOLS
    ),
    serving_fault(
        "sampled-inside-prompt",
        "drafter-reads-sampled",
        "in the middle of a prompt the drafter reads a sampled token, not the next one",
        script(request(prefix=2), steps=[Admit(request=0), Prefill(request=0, tokens=1)]),
        ("B083", "sgl-project/sglang#26800"),
        stage="schedule",
        identity="candidate",
        made=_SampledInsidePrompt,
    ),
    serving_fault(
        "runs-ahead",
        "runs-ahead",
        "a request runs again before its last result is back",
        script(request(prefix=1), steps=[*_PREFILLED, _ROUND]),
        ("B085", "vllm-project/vllm#52071"),
        stage="schedule",
        identity="candidate",
        made=_RunsAhead,
    ),
)
