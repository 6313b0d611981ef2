"""Faults that show in a later round alone: what a stage keeps from one round is used in the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.constraints import Constraints
from treeproof.contract.drafting import Drafted, DraftStep, Extended
from treeproof.contract.failure import Evidence, Identity
from treeproof.contract.inputs import Accepted, VerifyInput
from treeproof.contract.sampling import TYPICAL, Sampling
from treeproof.contract.script import Admit, Params, Prefill, Round, Step, Turn
from treeproof.contract.stopping import RUNNING, Finished, StopRules
from treeproof.faults.fault import Applies, Fault, Plant
from treeproof.faults.plant import remembering
from treeproof.faults.smallest import FORK, SERVED, case, request

Kept = dict[Any, Any]
"""What an instance keeps from call to call."""
Stage = Callable[..., Any]
"""The stage as it was. The wrong one is `wrong(right, kept, *given)`."""


def _tails_once(right: Stage, kept: Kept, step: DraftStep) -> Drafted:
    """A branch's copy of the last, partial page is made once for each of its pages, and is then thought to be
    there: what the prefix has grown by in between is left out, as is what has come in its place."""
    before = step.k_cache.clone(), step.v_cache.clone()
    drafted: Drafted = right(step)
    for cache, was in zip((step.k_cache, step.v_cache), before, strict=True):
        written = (cache != was).flatten(1).any(1).nonzero()[:, 0]
        for page in set((written // step.kv.page_size).tolist()):
            slots = slice(page * step.kv.page_size, (page + 1) * step.kv.page_size)
            if (page, "k" if cache is step.k_cache else "v") in kept:
                cache[slots] = was[slots]
            kept[page, "k" if cache is step.k_cache else "v"] = True
    return drafted


def _moved_on(right: Stage, kept: Kept, step: DraftStep) -> Drafted:
    """Positions are a buffer that a phase moves on, and that nobody puts back."""
    drafted: Drafted = right(step)
    assert drafted.positions is not None
    moved = kept.get("moved", 0)
    kept["moved"] = 1
    return replace(drafted, positions=drafted.positions + moved)


def _first(field: str) -> Stage:
    """A field of what is returned is that of the first call of its shape."""

    def wrong(right: Stage, kept: Kept, *given: Any) -> Any:
        made = right(*given)
        own = getattr(made, field)
        return replace(made, **{field: kept.setdefault(tuple(own.shape), own.clone()).clone()})

    return wrong


def _boundary_kept(right: Stage, kept: Kept, x: VerifyInput, *rest: Any) -> Extended:
    """The accepted path stands behind the boundary of the first round."""
    lengths = kept.setdefault(len(x.seq_lens), x.seq_lens.clone())
    made: Extended = right(replace(x, seq_lens=lengths), *rest)
    return made


def _coins_kept(field: str) -> Stage:
    """The generator begins anew in every round: the same coins are thrown again, as many as it takes."""

    def wrong(right: Stage, kept: Kept, x: VerifyInput, given: Sampling) -> Accepted:
        own: Tensor = getattr(given, field)
        thrown = kept.get(field, own[:0])
        kept[field] = torch.cat((thrown, own[len(thrown) :]))
        again: dict[str, Any] = {field: kept[field][: len(own)].clone()}
        made: Accepted = right(x, replace(given, **again))
        return made

    return wrong


def _laws_kept(right: Stage, kept: Kept, x: VerifyInput, given: Sampling) -> Accepted:
    """Typical acceptance goes by laws that were copied out in the first round, line by line of the batch."""
    if given.rule == TYPICAL:
        own, ends = given.target_probs.clone(), x.qo_indptr.tolist()
        for b, (first, end) in enumerate(pairwise(ends)):
            before = kept.setdefault(b, own[first:end].clone())
            rows = min(len(before), end - first)
            own[first : first + rows] = before[:rows]
        given = replace(given, target_probs=own)
    made: Accepted = right(x, given)
    return made


def _bias_once(
    right: Stage, kept: Kept, x: VerifyInput, logits: Tensor, given: Constraints
) -> Tensor:
    """Biases are added to a buffer of logits that the next round overwrites."""
    if kept.get("added"):
        given = replace(given, bias=torch.zeros_like(given.bias))
    kept["added"] = True
    made: Tensor = right(x, logits, given)
    return made


def _drafts_counted(
    right: Stage, kept: Kept, x: VerifyInput, logits: Tensor, given: Constraints
) -> Tensor:
    """Counts are an object that verification goes on counting in: drafts that were refused stay in it."""
    shape = tuple(given.counts.shape)
    more: Tensor = kept.setdefault(shape, torch.zeros_like(given.counts))
    made: Tensor = right(x, logits, replace(given, counts=given.counts + more))
    assert x.retrieve_index is not None
    for b, line in enumerate(x.retrieve_index):
        rows = line[line >= 0][1:]  # the root has been emitted
        more[b].index_add_(0, x.draft_token[rows], torch.ones_like(rows))
    return made


def _state_kept(
    right: Stage, kept: Kept, x: VerifyInput, logits: Tensor, given: Constraints
) -> Tensor:
    """A grammar is where it was in the first round."""
    state = kept.setdefault(len(given.grammar_state), given.grammar_state.clone())
    made: Tensor = right(x, logits, replace(given, grammar_state=state))
    return made


def _budget_kept(right: Stage, kept: Kept, accepted: Accepted, rules: StopRules) -> Finished:
    """What is left of a limit is what was left in the first round."""
    budget = kept.setdefault(len(rules.budget), rules.budget.clone())
    made: Finished = right(accepted, replace(rules, budget=budget))
    return made


def _end_kept(right: Stage, kept: Kept, accepted: Accepted, rules: StopRules) -> Finished:
    """A line of the batch that a request has ended on is over for whoever comes there next."""
    done: Finished = right(accepted, rules)
    over = kept.get(len(done.reason), torch.full_like(done.reason, RUNNING))
    kept[len(done.reason)] = torch.where(done.reason == RUNNING, over, done.reason)
    return replace(done, reason=torch.where(done.reason == RUNNING, over, done.reason))


_READY: tuple[Step, ...] = (Admit(request=0), Prefill(request=0))


def _rounds(*accept: int, sample: Any = None) -> list[Step]:
    return [Round(turns=(Turn(request=0, accept=node),), sample=sample) for node in accept]


def _script(
    *steps: Step,
    tree: Sequence[int] = (-1,),
    prefix: int = 1,
    params: Params | None = None,
    **settings: Any,
) -> Any:
    first: Sequence[Step] = _READY
    if params is not None:
        first = (Admit(request=0, params=params), Prefill(request=0))
    return case(
        request(tree, prefix), script=[*first, *steps], **{"spare_pages": 6, **SERVED, **settings}
    )


@dataclass(frozen=True)
class _Late:
    family: str
    variant: str
    stage: str
    says: str
    check: tuple[Identity, Evidence]
    wrong: Stage
    smallest: Any
    sources: tuple[str, ...] = ()
    larger: str = ""
    cause: str = "of-an-earlier-round"
    applies: Applies | None = None
    """None: every backend that has the stage."""


_LATE: tuple[_Late, ...] = (
    _Late(
        "draft-position-moved-on", "", "draft",
        "positions are left where the phase before has moved them", ("position", "declared"),
        _moved_on, _script(*_rounds(0, 0)), ("B012", "sgl-project/sglang#25015"), cause="unknown",
    ),
    _Late(
        "draft-slots-of-first-round", "", "draft",
        "drafts go to the slots that they went to in the first round", ("kv", "declared"),
        _first("out_cache_loc"), _script(*_rounds(0, 0)),
    ),
    _Late(
        "selected-tokens-kept", "", "select",
        "rows carry the tokens that were selected in the first round", ("candidate", "declared"),
        _first("draft_token"), _script(*_rounds(0, 0), tree=(-1, 0)),
    ),
    _Late(
        "extend-from-first-boundary", "", "extend",
        "the accepted path stands behind the boundary of the first round", ("position", "declared"),
        _boundary_kept, _script(*_rounds(0, 0)),
    ),
    _Late(
        "coins-not-advanced", "draw", "sample",
        "the coin of the first round draws the last token of later ones, too", ("traversal", "measured"),
        _coins_kept("final_coins"), _script(*_rounds(0, 0, sample="target-only")),
    ),
    _Late(
        "counts-of-refused-drafts", "", "process",
        "drafts that were refused stay counted", ("output", "measured"),
        _drafts_counted, _script(*_rounds(0, 0), tree=(-1, 0), params=Params(frequency=1.0)),
        ("B063", "sgl-project/sglang#33643"), cause="unknown",
    ),
    _Late(
        "grammar-of-first-round", "", "process",
        "a grammar is where it was in the first round", ("output", "measured"),
        _state_kept, _script(*_rounds(0, 0), params=Params(grammar=True)),
    ),
    _Late(
        "budget-of-first-round", "", "finish",
        "what is left of a limit is what was left in the first round", ("traversal", "measured"),
        _budget_kept, _script(*_rounds(0, 0), params=Params(limit=3)), ("B066", "sgl-project/sglang#39826"),
    ),
    _Late(
        "end-of-another", "", "finish",
        "whoever comes after a request that has ended is told that it has ended, too",
        ("traversal", "measured"), _end_kept,
        _script(*_rounds(0), *_READY, *_rounds(0), params=Params(limit=2)),
        larger="a request that is stopped inside what it accepts needs a node for that, and a limit needs none",
        cause="unknown",
    ),
)  # fmt: skip


_MORE: tuple[_Late, ...] = (
    _Late(
        "tail-of-an-earlier-round", "", "draft",
        "a branch's copy of the last page is that of an earlier round", ("kv", "measured"),
        _tails_once, _script(*_rounds(0, 0), tree=FORK, prefix=1, page_size=4),
        larger="in pages of two slots, which are plainer, only another request comes with a tail to the same page",
        cause="unknown",
    ),
    _Late(
        "coins-not-advanced", "accept", "sample",
        "the coins of the first round decide on the drafts of later ones, too", ("traversal", "measured"),
        _coins_kept("coins"),
        _script(*_rounds(1, 0, sample="target-only"), tree=(-1, 0), seed=3),
    ),
    _Late(
        "bias-of-first-round", "", "process", "biases are added in the first round only",
        ("output", "measured"), _bias_once, _script(*_rounds(0, 0), params=Params(bias=((0, 1.0),))),
    ),
    _Late(
        "typical-by-first-round", "", "sample",
        "by typical, rows go by the laws that the target gave in the first round",
        ("traversal", "measured"), _laws_kept, _script(*_rounds(0, 0, sample="typical")),
        applies=lambda backend: TYPICAL in backend.capabilities.sampling,
    ),
)  # fmt: skip


def _plant(stage: str, wrong: Stage) -> Plant:
    def new() -> Callable[..., Any]:
        kept: Kept = {}
        return lambda right, *given: wrong(right, kept, *given)

    return lambda backend: remembering(backend, stage, new)


def _has(stage: str) -> Callable[[Backend], bool]:
    return lambda backend: stage in backend.stages


def _fault(late: _Late) -> Fault:
    return Fault(
        family=late.family,
        variant=late.variant,
        says=late.says,
        sources=late.sources,
        stage=late.stage,
        identity=late.check[0],
        evidence=late.check[1],
        cause=late.cause,
        smallest=late.smallest,
        larger=late.larger,
        plant=_plant(late.stage, late.wrong),
        applies=late.applies or _has(late.stage),
    )


FAULTS = tuple(map(_fault, _LATE))
MORE = tuple(map(_fault, _MORE))
