"""Traversal, of what is served: a run ends at the first token that ends the request, and is counted so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treeproof.contract.failure import Failure
from treeproof.contract.stopping import LENGTH, RUNNING, STOP_STRING, STOP_TOKEN
from treeproof.oracles.served import Ending, served

REASONS = {"running": RUNNING, "length": LENGTH, "token": STOP_TOKEN, "string": STOP_STRING}

PIECES = ("a", "b", "ab", "END", "x", "sto", "p", "<s>")
"""Text of each token of a vocabulary of 8: words that together spell more than one of them does."""

_A, _B, _AB, _END, _X, _STO, _P, _S = range(8)


@dataclass(frozen=True)
class Situation:
    """One request: what was accepted, and where it ends."""

    what: str
    run: tuple[int, ...]
    budget: int = 100
    stop_tokens: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    before: str = ""

    @property
    def ending(self) -> Ending:
        return Ending(
            self.budget, frozenset(self.stop_tokens), self.stop_strings, self.before, PIECES
        )


SITUATIONS: tuple[Situation, ...] = (
    Situation("nothing ends it", (_A, _B, _X)),
    Situation("a stop token is the last", (_A, _B, _END), stop_tokens=(_END,)),
    Situation("a stop token is in the middle", (_A, _END, _B), stop_tokens=(_END,)),
    Situation("a stop token is the first", (_END, _A, _B), stop_tokens=(_X, _END)),
    Situation("two stop tokens", (_A, _X, _END), stop_tokens=(_END, _X)),
    Situation("the budget is smaller than the run", (_A, _B, _X), budget=2),
    Situation("the budget is the run", (_A, _B, _X), budget=3),
    Situation("one token is left", (_A, _B, _X), budget=1),
    Situation("a stop token within the budget", (_A, _END, _B), 2, (_END,)),
    Situation("a stop token past the budget", (_A, _B, _END), 2, (_END,)),
    Situation("a stop string over two tokens", (_X, _STO, _P), stop_strings=("stop",)),
    Situation("a stop string in the middle", (_STO, _P, _X), stop_strings=("stop",)),
    Situation("a stop string that began before", (_P, _X), stop_strings=("stop",), before="a sto"),
    Situation("a stop string inside a token", (_A, _END, _B), stop_strings=("N",)),
    Situation("a stop string that was served already", (_A, _B), stop_strings=("x",), before="ax"),
    Situation("a stop string and a stop token in one", (_A, _END, _B), 2, (_END,), ("END",)),
    Situation("a stop string later than a stop token", (_X, _STO, _P), 9, (_X,), ("stop",)),
    Situation("the bonus alone", (_A,), budget=1),
)


def width() -> int:
    return max(len(situation.run) for situation in SITUATIONS)


def judge_finished(
    tokens: Sequence[Sequence[int]], counts: Sequence[int], reasons: Sequence[int]
) -> list[Failure]:
    """What `finish` returned of each situation, a request each."""
    return [
        failure
        for of, served, count, code in zip(SITUATIONS, tokens, counts, reasons, strict=True)
        for failure in judge_served(of.what, None, of.run, of.ending, served, count, code)
    ]


def judge_served(
    what: str, request: int | None, run: Sequence[int], ending: Ending, tokens: Sequence[int],
    count: int, code: int,
) -> list[Failure]:  # fmt: skip
    """What is served of one run: tokens padded with -1, how many they are counted, why it ends."""
    names = {number: name for name, number in REASONS.items()}
    right, reason = served(run, ending)
    found = list(tokens)
    while found and found[-1] == -1:
        found.pop()
    what = f"{what}: of {list(run)}"
    compared = (
        ("wrong-served", "is served", found, list(right)),
        ("wrong-count", "tokens counted are", count, len(right)),
        ("wrong-reason", "the end is", names.get(code, str(code)), reason),
    )
    return [
        Failure(
            identity="traversal", kind=kind, evidence="measured", stage="finish", request=request,
            expected=str(wanted), actual=str(got),
            message=f"{what} {says} {got}, expected {wanted}",
        )
        for kind, says, got, wanted in compared
        if got != wanted
    ]  # fmt: skip
