"""What a request asks for, as the oracle is told and as the stages `process` and `finish` are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from treeproof.contract.counter import address_hash
from treeproof.contract.script import Params
from treeproof.engine.serving.request import Served
from treeproof.oracles.processed import Asked
from treeproof.oracles.served import Ending

NO_LIMIT = 1 << 20
"""Of tokens, where a request has no limit of its own: more than any script serves."""
_STATES = 8
_GRAMMAR = 706  # address word of the grammar


@lru_cache(maxsize=64)
def asked_of(params: Params, vocab: int) -> Asked:
    """Before anything is emitted. Numbers are as a kernel has them, in float32."""

    def exactly(number: float) -> float:
        return float(np.float32(number))

    return Asked(
        counts=(0,) * vocab,
        frequency=exactly(params.frequency),
        presence=exactly(params.presence),
        repetition=exactly(params.repetition),
        bias=_biases(params, vocab),
        temperature=exactly(params.temperature),
        min_p=exactly(params.min_p),
        grammar=_grammar(vocab) if params.grammar else ((0,) * vocab,) * _STATES,
        state=0,
    )


def _biases(params: Params, vocab: int) -> tuple[float, ...]:
    """What is added to each token's logit; of a token that is named twice, all of it."""
    found = np.zeros(vocab, np.float32)
    for token, more in params.bias:
        if token < vocab:
            found[token] += np.float32(more)
    return tuple(found.tolist())


@lru_cache(maxsize=4)
def _grammar(vocab: int) -> tuple[tuple[int, ...], ...]:
    """A state by another and a token; in each state about a half of the tokens is allowed."""
    drawn = [
        [address_hash(_GRAMMAR, state, token) for token in range(vocab)] for state in range(_STATES)
    ]
    return tuple(
        tuple(
            (bits >> 1) % _STATES if bits % 2 or token == state % vocab else -1
            for token, bits in enumerate(line)
        )
        for state, line in enumerate(drawn)
    )


def asked_now(served: Served | None, vocab: int) -> Asked:
    """Of a request that has emitted what it has; of none, nothing."""
    if served is None:
        return asked_of(Params(), vocab)
    start = asked_of(served.params, vocab)
    state = start.state
    for token in served.emitted:
        state = start.grammar[state][token]
    counts = np.bincount(served.emitted, minlength=vocab).tolist()
    return replace(start, counts=counts, state=state)


@lru_cache(maxsize=4)
def pieces(vocab: int) -> tuple[str, ...]:
    """The text of each token."""
    return tuple(f"<{token}>" for token in range(vocab))


def ending(served: Served | None, vocab: int, run: Sequence[int], stop: int | None) -> Ending:
    """Where a run ends the request; `stop`: after so many tokens of it, where it has more."""
    text = pieces(vocab)
    emitted = [] if served is None else served.emitted
    params = Params() if served is None else served.params
    before = "".join(text[token] for token in emitted)
    strings: tuple[str, ...] = ()
    if stop is not None and stop < len(run):
        # All that the request was served by then, which no shorter run is.
        strings = (before + "".join(text[token] for token in run[:stop]),)
    limit = NO_LIMIT if params.limit is None else params.limit
    return Ending(
        budget=limit - len(emitted),
        stop_tokens=frozenset(params.stop_tokens),
        stop_strings=strings,
        before=before,
        pieces=text,
    )
