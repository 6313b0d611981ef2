"""A script: several rounds of several requests, step by step, as an engine would serve them.

The requests of the case are what there is to serve. A request's prompt is its `prefix_len` tokens
(those of `prefix_tokens`, where there are any), its tree is what is drafted for it in every round.
Tokens of the tree do not count: the drafter fills it in. Verify rows lie as `row_of_node` and
`pad_rows` say. A step that its request is not ready for is passed over.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from treeproof.contract.typed import Typed

MAX_STEPS = 1024
MAX_TURNS = 64

Index = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Penalty = Annotated[float, Meta(ge=-16, le=16)]
Scale = Annotated[float, Meta(gt=0, le=16)]
Bias = tuple[Index, Penalty]
Share = Annotated[float, Meta(ge=0, lt=1)]
SampledBy = Literal["target-only", "chain", "typical"]
EPSILON, DELTA = 0.09, 1.0
"""Of rounds by `typical`. By the usual delta, 0.3, a small model with its flat laws accepts all there is."""


class Params(Typed, frozen=True, kw_only=True):
    """What a request asks for, as long as it is served. By default it is greedy decoding without an end.

    Penalties, biases, the grammar, the temperature and min-p are those of `contract.constraints`: counts are of what
    the request has emitted, its prompt left out, and the grammar begins with the first token emitted.
    """

    limit: Count | None = None
    """Tokens that are served at most."""
    stop_tokens: tuple[Index, ...] = ()
    """The first of these that is emitted is the last token served."""
    temperature: Scale = 1.0
    frequency: Penalty = 0.0
    presence: Penalty = 0.0
    repetition: Scale = 1.0
    bias: tuple[Bias, ...] = ()
    """Tokens, each with what is added to its logit; those past the vocabulary are nobody's."""
    min_p: Share = 0.0
    grammar: bool = False
    """Some grammar, the same for all who ask for one."""

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed before a token is taken."""
        return self.adjusting != _PLAIN

    @property
    def adjusting(self) -> tuple[object, ...]:
        """What changes logits."""
        return (
            *(self.temperature, self.frequency, self.presence, self.repetition),
            *(self.bias, self.min_p, self.grammar),
        )


_PLAIN = (1.0, 0.0, 0.0, 1.0, (), 0.0, False)


class Admit(Typed, frozen=True, kw_only=True, tag="admit", tag_field="do"):
    """The request comes in; of its prompt, what whole pages of the prefix cache hold is there."""

    request: Index
    params: Params = Params()


class Prefill(Typed, frozen=True, kw_only=True, tag="prefill", tag_field="do"):
    """At most so many more tokens of the prompt get their keys and values; after the last one the
    first root is known."""

    request: Index
    tokens: Count = 1 << 20


class Turn(Typed, frozen=True, kw_only=True):
    """A request's part in a round: its first `nodes` nodes are drafted (None: all of them), and the
    drafter makes the path to `accept` what plain decoding would emit, and nothing beside it."""

    request: Index
    accept: Index = 0
    nodes: Count | None = None
    stop: Count | None = None
    """Of what the request emits in this round so many tokens are served, and then it is over: a stop
    string has been completed."""


class Round(Typed, frozen=True, kw_only=True, tag="round", tag_field="do"):
    """Draft, verify, accept and commit for these requests together.

    `idle` more requests of one row each fill the batch up to a captured size; they are nobody's.

    Without `sample` the walk is greedy. With it, acceptance goes by this rule of `contract.sampling`,
    at thresholds of 1, and by coins that the seed determines: the drafter's path to `accept` is the
    likeliest at each step, and coins are such that it is taken, and no further one. By `typical` no coin is asked on
    the way: how far it goes is for the target to say.
    """

    turns: tuple[Turn, ...]
    idle: Index = 0
    sample: SampledBy | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= len(self.turns) <= MAX_TURNS:
            raise ValueError(f"turns has {len(self.turns)} entries: accepted are 1 to {MAX_TURNS}")
        if self.idle > MAX_TURNS:
            raise ValueError(f"idle is {self.idle}: accepted are 0 to {MAX_TURNS}")
        requests = [turn.request for turn in self.turns]
        for i, request in enumerate(requests):
            if request in requests[:i]:
                raise ValueError(f"turns[{i}].request is {request}, which has a turn already")


class Finish(Typed, frozen=True, kw_only=True, tag="finish", tag_field="do"):
    """The request is served, or cancelled on the way: it gives back what it holds."""

    request: Index


class Evict(Typed, frozen=True, kw_only=True, tag="evict", tag_field="do"):
    """The prefix cache gives up every page that no request holds."""


Step = Admit | Prefill | Round | Finish | Evict


def requests_of(step: Step) -> tuple[int, ...]:
    """The requests that a step is about."""
    if isinstance(step, Round):
        return tuple(turn.request for turn in step.turns)
    return () if isinstance(step, Evict) else (step.request,)
