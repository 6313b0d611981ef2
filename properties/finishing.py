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
    failures = []
    names = {code: name for name, code in REASONS.items()}
    for b, situation in enumerate(SITUATIONS):
        run, reason = served(situation.run, situation.ending)
        found = list(tokens[b])
        while found and found[-1] == -1:
            found.pop()
        what = f"{situation.what}: of {list(situation.run)}"
        if found != list(run):
            failures.append(
                _failure(
                    "wrong-served", f"{what} is served {found}, expected {list(run)}", run, found
                )
            )
        if counts[b] != len(run):
            failures.append(
                _failure(
                    "wrong-count", f"{what} tokens counted are {counts[b]}, expected {len(run)}",
                    len(run), counts[b],
                )
            )  # fmt: skip
        if reasons[b] != REASONS[reason]:
            got = names.get(reasons[b], str(reasons[b]))
            failures.append(
                _failure("wrong-reason", f"{what} the end is {got}, expected {reason}", reason, got)
            )
    return failures


def _failure(kind: str, message: str, expected: object, actual: object) -> Failure:
    shown = (str(list(x)) if isinstance(x, tuple) else str(x) for x in (expected, actual))
    wanted, got = shown
    return Failure(
        identity="traversal", kind=kind, evidence="measured", stage="finish",
        expected=wanted, actual=got, message=message,
    )  # fmt: skip
