"""A stage that goes by an earlier round is named, with what and of which; what only looks so is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from test_rounds import TREE, ready, served, turns
from test_rounds_params import asking, plainly

from treeproof.contract.backend import Backend, BackendUnavailable
from treeproof.contract.case import VerifyCase
from treeproof.contract.registry import load
from treeproof.contract.script import Params, Round, Turn
from treeproof.diagnosis.earlier_rounds import (
    NAME,
    EarlierRound,
    StageCall,
    earlier_rounds,
)
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.look import look
from treeproof.faults import later_rounds
from treeproof.faults.fault import Fault
from treeproof.faults.plant import remembering
from treeproof.faults.smallest import request

Around = Callable[..., Any]
PLANTED = (*later_rounds.FAULTS, *later_rounds.MORE)


def cause(backend: Backend, script: VerifyCase) -> tuple[str, str]:
    (found,) = look(script, backend, CheckOptions())
    assert (NAME in found.ruled_out) == (found.cause != NAME)
    return found.cause, found.detail


def kept(stage: str, around: Callable[..., Any], name: str = "topology") -> Backend:
    """`around(seen, right, *given)`: `seen` are the arguments of the calls so far, this one's last."""

    def new() -> Around:
        seen: list[tuple[Any, ...]] = []

        def wrong(right: Around, *given: Any) -> Any:
            seen.append(tuple(given))
            return around(seen, right, *given)

        return wrong

    return remembering(load(name), stage, new)


# --- what is named -------------------------------------------------------------------------------


def predictions_of_the_round_before(seen: Any, right: Around, x: Any, target: Any) -> Any:
    """The argmax is copied back while the next round is under way."""
    late = seen[-2][1] if len(seen) > 1 else target
    whole = target.clone()
    whole[: len(late)] = late[: len(target)]
    return right(x, whole)


def temperature_of_the_first_batch(
    seen: Any, right: Around, x: Any, logits: Any, asked: Any
) -> Any:
    """A buffer of the batch is filled where a batch is of a new size, and not where others are in it."""
    sizes = [len(given[2].temperature) for given in seen]
    first = seen[sizes.index(sizes[-1])][2]
    return right(x, logits, replace(asked, temperature=first.temperature))


def counts_of_the_round_before(seen: Any, right: Around, x: Any, logits: Any, asked: Any) -> Any:
    before = seen[-2][2].counts if len(seen) > 1 else asked.counts
    return right(x, logits, replace(asked, counts=before))


def coins_of_the_round_before(seen: Any, right: Around, x: Any, given: Any) -> Any:
    before = seen[-2][1] if len(seen) > 1 else given
    return right(x, replace(given, coins=before.coins))


def stop_tokens_of_the_first_round_alone(
    seen: Any, right: Around, accepted: Any, rules: Any
) -> Any:
    stops = rules.stop_tokens if len(seen) == 1 else torch.full_like(rules.stop_tokens, -1)
    return right(accepted, replace(rules, stop_tokens=stops))


def budget_of_the_round_before(seen: Any, right: Around, accepted: Any, rules: Any) -> Any:
    before = seen[-2][1].budget if len(seen) > 1 else rules.budget
    return right(accepted, replace(rules, budget=before))


ONE = served(request(TREE, 3), steps=[*ready(0), turns(3), turns(0), turns(4)])
HOT = served(
    request(TREE, 3), request(TREE, 4),
    steps=[
        *asking(Params(temperature=2.0)), *asking(Params(temperature=0.5), 1),
        *(Round(turns=(Turn(request=b, accept=1),)) for b in (0, 1, 0)),
    ],
)  # fmt: skip
COUNTED = served(
    request(TREE, 3), steps=[*asking(Params(frequency=0.5)), turns(3), turns(0), turns(4)]
)
SAMPLED = served(
    request(TREE, 3),
    steps=[
        *ready(0),
        *(Round(turns=(Turn(request=0, accept=a),), sample="target-only") for a in (0, 1, 3)),
    ],
)
_THREE = (turns(1), turns(3), turns(1))
_EMITTED = plainly(served(request(TREE, 3), steps=[*ready(0), *_THREE]), Params(), 6)
# The first token of the second round.
STOPPED = served(request(TREE, 3), steps=[*asking(Params(stop_tokens=(_EMITTED[3],))), *_THREE])
LIMITED = served(request(TREE, 3), steps=[*asking(Params(limit=5)), turns(1), turns(3), turns(1)])


@pytest.mark.parametrize(
    ("stage", "around", "script", "detail"),
    [
        (
            "accept", predictions_of_the_round_before, ONE,
            "accept goes by the predictions of the round before",
        ),
        (
            "process", temperature_of_the_first_batch, HOT,
            "process goes by the temperatures of the round before or the first round",
        ),
        (
            "process", counts_of_the_round_before, COUNTED,
            "process goes by the counts of the round before",
        ),
        (
            "sample", coins_of_the_round_before, SAMPLED,
            "sample goes by the coins of the round before",
        ),
        (
            "finish", budget_of_the_round_before, LIMITED,
            "finish goes by the budgets of the round before",
        ),
        (
            "finish", stop_tokens_of_the_first_round_alone, STOPPED,
            "finish goes by the stop tokens of nobody past the first round",
        ),
    ],
)  # fmt: skip
def test_what_of_which_round_a_stage_goes_by_is_named(
    stage: str, around: Around, script: VerifyCase, detail: str
) -> None:
    name, said = cause(kept(stage, around), script)
    assert name == NAME
    assert said.startswith(detail)


@pytest.mark.parametrize(
    "fault", [f for f in PLANTED if f.cause == NAME], ids=lambda fault: fault.name
)
def test_planted_faults_of_later_rounds_are_named(fault: Fault) -> None:
    assert cause(fault.into(load("reference")), fault.smallest)[0] == NAME


def test_whatever_the_seed_there_are_further_scripts() -> None:
    script = msgspec.structs.replace(LIMITED, seed=2**63 - 1)
    assert cause(kept("finish", budget_of_the_round_before), script)[0] == NAME


def test_a_backend_that_cannot_run_further_scripts_keeps_its_cause() -> None:
    calls: list[int] = []

    def once(seen: Any, right: Around, *given: Any) -> Any:
        if len(seen) == 1:
            calls.append(1)
        if len(calls) > 1:
            raise BackendUnavailable("no more")
        return budget_of_the_round_before(seen, right, *given)

    (found,) = look(LIMITED, kept("finish", once), CheckOptions())
    assert (found.cause, found.cases_tried) == (NAME, 1)


# --- what is not ---------------------------------------------------------------------------------


def one_more_from_the_second_on(seen: Any, right: Around, accepted: Any, rules: Any) -> Any:
    """As the round before had it where that emitted one token, and nobody's where it emitted more."""
    late = len(seen) > 1
    return right(accepted, replace(rules, budget=rules.budget + int(late)))


def twice_from_the_second_on(seen: Any, right: Around, x: Any, logits: Any, asked: Any) -> Any:
    return right(x, logits, replace(asked, counts=asked.counts * min(2, len(seen))))


def shifted_from_the_second_on(seen: Any, right: Around, x: Any, given: Any) -> Any:
    return right(x, replace(given, coins=given.coins.roll(int(len(seen) > 1))))


def the_last_token_from_the_second_on(seen: Any, right: Around, x: Any, target: Any) -> Any:
    return right(x, target if len(seen) < 2 else torch.full_like(target, 60))


@pytest.mark.parametrize(
    ("stage", "around", "script"),
    [
        (
            "finish", one_more_from_the_second_on,
            served(request(prefix=1), steps=[*asking(Params(limit=3)), turns(0), turns(0)]),
        ),
        ("process", twice_from_the_second_on, COUNTED),
        ("sample", shifted_from_the_second_on, SAMPLED),
        ("accept", the_last_token_from_the_second_on, ONE),
    ],
)  # fmt: skip
def test_what_begins_in_a_later_round_and_is_no_earlier_ones_is_not_called_so(
    stage: str, around: Around, script: VerifyCase
) -> None:
    assert cause(kept(stage, around), script)[0] == "unknown"


@pytest.mark.parametrize(
    "fault", [f for f in PLANTED if f.cause != NAME], ids=lambda fault: fault.name
)
def test_what_goes_on_from_round_to_round_is_no_earlier_rounds(fault: Fault) -> None:
    assert cause(fault.into(load("reference")), fault.smallest)[0] == "unknown"


# --- statements by themselves --------------------------------------------------------------------


def call(*given: int, gave: int | None = None, requests: tuple[int, ...] = (0,)) -> StageCall:
    """Of a stage that gives back what it is given, line by line."""
    told = tuple(given if gave is None else [gave] * len(given))

    def wrong(asked: Any) -> frozenset[str]:
        return frozenset({"number"} if asked["number"] != told else ())

    return StageCall("echo", requests, {"number": given}, {"number": told}, wrong)


def whences(*calls: StageCall) -> set[str]:
    return {one.whence for one in earlier_rounds("echo", calls) if one.given}


def test_rounds_that_were_right_count_as_much_as_the_one_that_was_not() -> None:
    first, before = "the first round", "the round before"
    assert {first, before} <= whences(call(1), call(2, gave=1))
    assert before not in whences(call(1), call(2), call(3, gave=2))
    assert {first, before} <= whences(call(1), call(1), call(3, gave=1))
    assert whences(call(1), call(1), call(3, gave=2)) == set()
    assert whences(call(1), call(2)) == set()


def test_a_line_of_the_batch_is_not_the_request_that_was_in_it() -> None:
    assert whences(call(1, 5, requests=(0, 1)), call(7, gave=5, requests=(1,))) == {
        "the request's round before", "the request's first round",
    }  # fmt: skip
    assert whences(call(1, requests=(0,)), call(7, gave=1, requests=(1,))) == {
        "the round before", "the first round", "the first round of as many requests",
    }  # fmt: skip


def test_what_a_stage_gives_is_an_earlier_rounds_only_where_all_else_is_right() -> None:
    def of(name: str, *wrong: str) -> StageCall:
        return StageCall("s", (0,), {}, {"a": (name,), "b": ("x",)}, lambda _: frozenset(wrong))

    kept_a = EarlierRound("s", ("a",), "the round before", given=False)
    assert kept_a.holds([of("one"), of("one", "a")])
    assert not kept_a.holds([of("one"), of("two", "a")])
    assert not kept_a.holds([of("one"), of("one", "a", "b")])
