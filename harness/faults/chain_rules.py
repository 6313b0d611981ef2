"""Faults of rejection sampling of a chain: what is drawn in place of a draft that was refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.sampling import CHAIN, Sampling
from treeproof.faults.plant import wrapped
from treeproof.faults.samples import Sample, drawn, ends
from treeproof.faults.smallest import case, request
from treeproof.faults.wrong import Wrong, faults_of

Weights = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Laws of target and draft, (B, V) each, and the draft refused, (B, 1), to what is drawn by."""


@dataclass(frozen=True)
class _Residual:
    """The last token of a refusal is drawn by other weights."""

    weights: Weights

    def into(self, backend: Backend) -> Backend:
        return wrapped(backend, "sample", self._around)

    def _around(self, right: Sample, x: VerifyInput, given: Sampling) -> Accepted:
        done = right(x, given)
        last, refused = ends(x, done)
        if given.rule != CHAIN or not bool(refused.any()):
            return done
        assert given.draft_probs is not None
        assert x.retrieve_index is not None
        assert x.retrieve_next_token is not None
        at = done.accept_len[:, None] - 1
        step = at.clamp(max=given.draft_probs.shape[1] - 1)
        asked = given.draft_probs.gather(
            1, step[..., None].expand(-1, -1, given.draft_probs.shape[2])
        )[:, 0]
        local = (last - x.retrieve_index[:, 0])[:, None]
        child = x.retrieve_next_token.gather(1, local).clamp(min=0)
        token = x.draft_token[x.retrieve_index.gather(1, child)]
        tokens = drawn(self.weights(given.target_probs[last], asked, token), given.final_coins)
        emitted = done.tokens.scatter(1, at, tokens[:, None])
        return replace(done, tokens=done.tokens.where(~refused[:, None], emitted))


def _argmax(p: Tensor, q: Tensor, refused: Tensor) -> Tensor:
    best = (p - q).argmax(1, keepdim=True)
    return p.new_zeros(p.shape).scatter_(1, best, 1.0)


_WRONG = tuple(
    Wrong(
        "wrong-residual", variant, says, "unknown", _Residual(weights), case(request((-1, 0)))
    )
    for variant, says, weights in (
        (
            "of-the-target", "in place of a refused draft one is drawn by the target's law without that "
            "draft alone", lambda p, q, refused: p.scatter(1, refused, 0.0),
        ),
        (
            "of-the-draft", "in place of a refused draft one is drawn by what the draft's law has more",
            lambda p, q, refused: (q - p).clamp(min=0),
        ),
        (
            "likeliest", "in place of a refused draft the token is taken that the target's law has most "
            "more of", _argmax,
        ),
    )
)  # fmt: skip


FAULTS = faults_of(
    _WRONG,
    stage="sample",
    identity="traversal",
    evidence="measured",
    plant=lambda does: does.into,
    applies=lambda backend: "sample" in backend.stages and CHAIN in backend.capabilities.sampling,
)
