"""What serves many rounds beside the stages of one: who holds which pages, and what is run when."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol


class PoolFull(Exception):
    """There are not as many free pages as were asked for; nothing was given out. Pages that only the cache
    keeps may count as free, or not before `evict`, which is then called and the question asked again."""


class PagePool(Protocol):
    """What stage `pool(kv: KVLayout)` returns: pages of the KV cache, and the prefix cache over them.

    Requests are numbers; page s holds slots `s * page_size` and on. Page 0 is nobody's where
    `kv.pad_slot` is 0. A cached page may be handed to several requests that share its tokens; keys
    of the drafter lie by the same slots, and those of column c depend on the token at c + 1 as well.

    What is given back is free for whoever asks next, unless others hold it or it has been published, and
    the cache keeps it. When the books are put in order is the pool's own business, so long as nobody can tell.
    """

    def match(self, request: int, tokens: Sequence[int]) -> Sequence[int]:
        """A request comes in with this prompt: pages of its longest cached beginning, in logical
        order, which it holds from now on. At least the last token of the prompt is left to compute."""
        ...

    def reserve(self, request: int, columns: int) -> Sequence[int]:
        """All pages that the request holds, in logical order: what it held, and just as many more as so
        many columns need. Raises PoolFull."""
        ...

    def trim(self, request: int, columns: int) -> None:
        """The request keeps the pages that its first `columns` lie in, the last of which may be partly
        filled, and gives back at once all that lie behind them."""
        ...

    def slide(self, request: int, first: int) -> None:
        """Its window has moved on: no row of the request reads a column before `first` again. It gives
        back whole pages before that; `reserve` has -1 in their place."""
        ...

    def publish(self, request: int, tokens: Sequence[int], served: int) -> None:
        """The request's columns [0, len(tokens) - 1) are written, of these tokens, of which the first
        `served` are the prompt and what was served. Whole pages of these may be handed to others."""
        ...

    def release(self, request: int) -> None:
        """The request gives back all pages, at once; cached ones stay until they are evicted."""
        ...

    def evict(self) -> None:
        """The cache gives up every page that no request holds: these are free."""
        ...


class Scheduler(Protocol):
    """What stage `schedule()` returns."""

    def successors(
        self, prompt: Sequence[int], first: int, count: int, sampled: int
    ) -> Sequence[int]:
        """What the drafter reads beside columns [first, first + count) of a prompt: the token after
        each. `sampled` is what the target would emit after the last of them, which is the next token
        where the prompt ends there, and nowhere else."""
        ...

    def runnable(self, running: Sequence[int], in_flight: Collection[int]) -> Sequence[int]:
        """Of the requests that are running, those that the next round may begin with, while the results
        of the rounds that are `in_flight` are not back."""
        ...
