"""Edits that make a script simpler, and scripts that follow their requests when those are cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from functools import partial

from msgspec.structs import replace

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.script import (
    MAX_TURNS,
    Admit,
    Evict,
    Finish,
    Params,
    Prefill,
    Round,
    Step,
    Turn,
)

Edit = Callable[[VerifyCase], VerifyCase]

WHOLE_PROMPT = 1 << 20


def following(script: tuple[Step, ...], requests: tuple[Request, ...]) -> tuple[Step, ...]:
    """The script with turns that name no node which their request has lost."""
    return tuple(_followed(step, requests) if isinstance(step, Round) else step for step in script)


def _followed(step: Round, requests: tuple[Request, ...]) -> Round:
    turns = []
    for turn in step.turns:
        most = requests[turn.request].num_nodes
        nodes = None if turn.nodes is None or turn.nodes >= most else turn.nodes
        accept = min(turn.accept, (nodes or most) - 1)
        turns.append(replace(turn, nodes=nodes, accept=accept))
    return replace(step, turns=tuple(turns))


def renumbered(script: tuple[Step, ...], new: Mapping[int, int]) -> tuple[Step, ...]:
    """The script of those requests that have a new number; steps of others go."""
    steps: list[Step] = []
    for step in script:
        if isinstance(step, Round):
            turns = tuple(
                replace(turn, request=new[turn.request])
                for turn in step.turns
                if turn.request in new
            )
            if turns:
                steps.append(replace(step, turns=turns))
        elif isinstance(step, Evict):
            steps.append(step)
        elif step.request in new:
            steps.append(replace(step, request=new[step.request]))
    return tuple(steps)


def without_steps(case: VerifyCase, start: int, end: int) -> VerifyCase:
    """A script that is left with no step would be no script."""
    left = case.script[:start] + case.script[end:]
    if not left:
        raise ValueError("no step is left")
    return replace(case, script=left)


def with_step(case: VerifyCase, index: int, step: Step) -> VerifyCase:
    return replace(case, script=(*case.script[:index], step, *case.script[index + 1 :]))


def plainer_steps(step: Step) -> Iterator[Step]:
    """What could stand in place of a step: less of it, the least first."""
    if isinstance(step, Admit) and step.params != Params():
        yield replace(step, params=Params())
        for name in Params.__struct_fields__:
            params = replace(step.params, **{name: getattr(Params(), name)})
            if params != step.params:
                yield replace(step, params=params)
        yield from (replace(step, params=params) for params in _sooner(step.params))
    if isinstance(step, Prefill) and step.tokens < WHOLE_PROMPT:
        yield replace(step, tokens=WHOLE_PROMPT)
        for tokens in sorted({1, step.tokens // 2, step.tokens - 1} - {0, step.tokens}):
            yield replace(step, tokens=tokens)
    if not isinstance(step, Round):
        return
    for turn in step.turns:  # all that it is needed for may be that a request is over
        yield Finish(request=turn.request)
    if step.sample is not None:
        yield replace(step, sample=None)
    for i in range(len(step.turns)) if len(step.turns) > 1 else ():
        others = (*step.turns[:i], *step.turns[i + 1 :])
        yield replace(step, turns=others)
        if step.idle < MAX_TURNS:  # the batch may have to be as large
            yield replace(step, turns=others, idle=step.idle + 1)
    for idle in {0, step.idle - 1} if step.idle else ():
        yield replace(step, idle=idle)
    taken = {turn.request for turn in step.turns}
    for i, turn in enumerate(step.turns):
        for plainer in _plainer_turns(turn, taken):
            yield replace(step, turns=(*step.turns[:i], plainer, *step.turns[i + 1 :]))


def _sooner(params: Params) -> Iterator[Params]:
    """An end at a token hangs on what is emitted; one at a limit does not, and the fewer the plainer."""
    if params.stop_tokens:
        yield replace(params, stop_tokens=(), limit=1)
    if params.limit is not None:
        for limit in sorted({1, params.limit // 2, params.limit - 1} - {0, params.limit}):
            yield replace(params, limit=limit)


def _plainer_turns(turn: Turn, others: Set[int]) -> Iterator[Turn]:
    """An earlier request may take the turn, where it has none in that round: then this one may go."""
    for request in range(turn.request):
        if request not in others:
            yield replace(turn, request=request)
    if turn.nodes is not None:
        yield replace(turn, nodes=None)
    if turn.stop is not None:
        yield replace(turn, stop=None)
    for node in range(turn.accept):
        yield replace(turn, accept=node)


def single_removals(case: VerifyCase) -> Iterator[Edit]:
    """Edits that leave out one step, or one thing of a step."""
    for i, step in enumerate(case.script):
        yield partial(without_steps, start=i, end=i + 1)
        for plainer in plainer_steps(step):
            yield partial(with_step, index=i, step=plainer)
