"""What a request has emitted and what it has cached, against plain decoding in float64."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from treeproof.contract.failure import Failure
from treeproof.contract.target_model import TargetModel
from treeproof.engine.serving.memory import Memory, companion_rows, drafter_codes
from treeproof.engine.serving.request import Served
from treeproof.engine.serving.tally import Tally
from treeproof.oracles.continuation import sequence64
from treeproof.oracles.target_errors import Errors
from treeproof.properties.serving import judge_contents, judge_token


class Plain:
    """Plain decoding of the model; `errors` are those that an engine with this backend may make."""

    def __init__(self, model: TargetModel, errors: Errors) -> None:
        self.model, self.errors = model, errors

    def emit(self, served: Served, tokens: Sequence[int], tally: Tally) -> list[Failure]:
        """Each token against plain decoding of all before it; up to the first that is wrong, they are
        the request's then."""
        for token in tokens:
            position = len(served.tokens)
            served.truth.grow(position)
            tally.tokens += 1
            if token != int(served.truth.logits(position - 1).argmax()):
                failures = self._judge_other(served, token)
                if failures:
                    return failures
                tally.ties += 1
            served.truth = served.truth.with_token(position, token)
            served.tokens.append(token)
        return []

    def _judge_other(self, served: Served, token: int) -> list[Failure]:
        """A token that plain decoding does not emit here: does rounding leave it open?"""
        truth = sequence64(self.model, tuple(served.tokens), self.errors)
        return judge_token(
            served.number, len(served.tokens), token, truth.logits[-1], float(truth.limit[-1])
        )

    def read_back(
        self, served: Served, slots: Tensor, memory: Memory, *, handed_out: bool
    ) -> list[Failure]:
        """Columns up to `ready`, the last of which lie in `slots` (n,): their companions bit for bit."""
        gone = served.ready - len(slots)
        truth = sequence64(self.model, tuple(served.tokens[: served.ready]), self.errors)
        exactly = truth.key_limit.new_zeros(1, len(slots), 1, 1)
        after = served.tokens[gone + 1 : served.ready + 1]
        drafted = drafter_codes(served.codes[gone : gone + len(after)], after)
        held = [
            ("keys", memory.k[:, slots], truth.keys[:, gone:], truth.key_limit[:, gone:]),
            ("values", memory.v[:, slots], truth.values[:, gone:], truth.value_limit[:, gone:]),
            *(
                (
                    "companions",
                    cache[None, slots],
                    companion_rows(served.codes[gone:], which).double()[None],
                    exactly,
                )
                for which, cache in enumerate(memory.companions)
            ),
            *(
                (
                    f"{name} of the drafter",
                    cache[None, slots[: len(after)]],
                    companion_rows(drafted, which).double()[None],
                    exactly[:, : len(after)],
                )
                for which, (name, cache) in enumerate(
                    zip(("keys", "values"), memory.drafter, strict=True)
                )
            ),
        ]
        return judge_contents(served.number, gone, held, handed_out=handed_out)
