"""What requests of a script ask for: penalties, grammars and temperatures, and where they end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from test_rounds import FIVE, TREE, checked, ready, served, turns

from treeproof.contract.registry import load
from treeproof.contract.script import Admit, Params, Prefill, Step
from treeproof.contract.served_model import served_model
from treeproof.contract.stopping import (
    LENGTH,
    RUNNING,
    STOP_STRING,
    STOP_TOKEN,
)
from treeproof.faults import endings, processing
from treeproof.faults.fault import Fault
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import request
from treeproof.generate.prefix_tokens import prefix_tokens
from treeproof.oracles.sequence import sequence_logits

ASKED = Params(repetition=1.5, presence=0.5, frequency=0.25, temperature=0.5)
THREE = [turns(3), turns(4), turns(1)]


def asking(params: Params, number: int = 0) -> list[Step]:
    return [Admit(request=number, params=params), Prefill(request=number)]


def seen_of(stage: str, script: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """What a stage of `topology` was handed and gave back, call by call."""
    calls: list[tuple[tuple[Any, ...], Any]] = []

    def around(right: Callable[..., Any], *given: Any) -> Any:
        calls.append((given, right(*given)))
        return calls[-1][1]

    found = checked(script, wrapped(load("topology"), stage, around))
    assert found.failures == ()
    return calls


def plainly(script: Any, params: Params, count: int) -> list[int]:
    """Greedy decoding with penalties, one token after the other; written anew."""
    model = served_model(script)
    known, emitted = prefix_tokens(script, model.vocab_size)[0].tolist(), []
    for _ in range(count):
        logits = sequence_logits(model, known + emitted)[0][-1]
        counts = torch.bincount(torch.tensor(emitted, dtype=torch.int64), minlength=len(logits))
        seen = counts > 0
        logits = logits - params.frequency * counts - params.presence * seen
        divided = torch.where(logits > 0, logits / params.repetition, logits * params.repetition)
        emitted.append(int(torch.where(seen, divided, logits).argmax()))
    return emitted


@pytest.mark.parametrize("backend", FIVE)
def test_what_a_request_asks_of_its_logits_holds_over_all_its_rounds(backend: str) -> None:
    script = served(request(TREE, 4), steps=[*asking(ASKED), *THREE])
    found = checked(script, backend)
    assert found.failures == ()
    # Drafts are right for as long as the script says, by penalties as well.
    assert found.generated is not None
    assert found.generated.tokens == 1 + 3 + 3 + 2


def test_emitted_tokens_are_those_of_greedy_decoding_with_penalties() -> None:
    script = served(request(TREE, 4), steps=[*asking(ASKED), *THREE])
    calls = seen_of("process", script)
    right = plainly(script, ASKED, 10)
    roots = [given[0].draft_token[0].item() for given, _ in calls]
    assert roots == [right[0], right[3], right[6]]
    assert roots != [plainly(script, Params(), 10)[i] for i in (0, 3, 6)]  # they matter
    for ((_, _, asked), _), upto in zip(calls, (1, 4, 7), strict=True):
        counts = torch.bincount(torch.tensor(right[:upto]), minlength=asked.counts.shape[1])
        assert torch.equal(asked.counts[0], counts)


def test_a_grammar_goes_on_from_round_to_round() -> None:
    script = served(request(TREE, 4), steps=[*asking(Params(grammar=True)), *THREE])
    calls = seen_of("process", script)
    states = []
    for (_, _, asked), made in calls:
        table, state = asked.grammar[0], int(asked.grammar_state[0])
        states.append(state)
        barred = table[state] < 0
        assert bool(barred.any())
        assert bool(torch.isinf(made[0][barred]).all())
        assert not bool(torch.isinf(made[0][~barred]).any())
    assert len(set(states)) > 1


def test_requests_that_ask_for_nothing_are_left_as_they_are() -> None:
    script = served(
        request(TREE, 4), request(TREE, 5), steps=[*asking(ASKED), *asking(Params(), 1), turns(3, 3, idle=1)],
    )  # fmt: skip
    ((x, logits, _), made) = seen_of("process", script)[0]
    rows = slice(int(x.qo_indptr[1]), int(x.qo_indptr[2]))
    assert torch.equal(made[rows], logits[rows])
    assert not torch.equal(made[: rows.start], logits[: rows.start])
    alone = served(request(TREE, 4), steps=[*ready(0), turns(3)])
    assert seen_of("process", alone) == []


def reasons(script: Any) -> list[list[int]]:
    return [done.reason.tolist() for _, done in seen_of("finish", script)]


def test_a_request_ends_with_the_last_token_of_its_limit() -> None:
    script = served(
        request(TREE, 4), steps=[*asking(Params(limit=5)), turns(3), turns(3), turns(3)]
    )
    assert reasons(script) == [[RUNNING], [LENGTH]]
    (_, done) = seen_of("finish", script)[1]
    assert done.served.tolist() == [1]  # of three: one at first, three in the first round


def test_a_request_ends_with_a_stop_token_wherever_in_a_run_it_is() -> None:
    plain = served(request(TREE, 4), steps=[*ready(0), turns(3), turns(3)])
    emitted = plainly(plain, Params(), 7)
    stop = next(token for token in emitted[4:6] if token not in emitted[:4])
    script = served(
        request(TREE, 4), steps=[*asking(Params(stop_tokens=(stop,))), turns(3), turns(3), turns(3)]
    )
    assert reasons(script) == [[RUNNING], [STOP_TOKEN]]


def test_a_turn_that_is_stopped_is_ended_by_a_stop_string() -> None:
    stopped = msgspec.structs.replace(
        turns(3), turns=(msgspec.structs.replace(turns(3).turns[0], stop=2),)
    )
    script = served(request(TREE, 4), steps=[*ready(0), turns(3), stopped, turns(3)])
    assert reasons(script) == [[RUNNING], [STOP_STRING]]
    (_, done) = seen_of("finish", script)[1]
    assert done.served.tolist() == [2]


def test_who_may_be_served_one_token_has_no_round() -> None:
    script = served(
        request(TREE, 4), request(TREE, 4), steps=[*asking(Params(limit=1)), *ready(1), turns(3, 3)]
    )
    found = checked(script)
    assert found.failures == ()
    assert found.generated is not None
    assert found.generated.tokens == 1 + 1 + 3


def ending(params: Params, stop: int | None = None) -> Any:
    """Two rounds of three tokens each, of which the second ends."""
    (turn,) = turns(3).turns
    last = msgspec.structs.replace(turns(3), turns=(msgspec.structs.replace(turn, stop=stop),))
    return served(request(TREE, 4), steps=[*asking(params), turns(3), last])


# The second token of the second round, which is emitted nowhere before.
STOP = plainly(ending(Params()), Params(), 7)[5]
SCRIPTS = (
    served(
        request(TREE, 4), request((-1, 0, 0, 1, 1), 3, rows=(0, 2, 1, 4, 3)),
        steps=[
            *asking(msgspec.structs.replace(ASKED, grammar=True)),
            *asking(Params(frequency=1.0, grammar=True), 1), turns(3, 4), turns(4, 1), turns(1, 2),
        ],
    ),
    ending(Params(limit=6)),
    ending(Params(limit=7, stop_tokens=(STOP,))),
    ending(Params(stop_tokens=(STOP,)), stop=2),
)  # fmt: skip


# Neither min-p nor a bias is any other in another round, so scripts have none.
_NOT_ASKED = {"parameter-skipped.min-p", "parameter-skipped.bias"}
_PLANTED = [f for f in (*processing.FAULTS, *endings.FAULTS) if f.name not in _NOT_ASKED]


@pytest.mark.parametrize("fault", _PLANTED, ids=lambda fault: fault.name)
def test_faults_of_what_requests_ask_for_are_seen_in_rounds(fault: Fault) -> None:
    wrong = fault.into(load("reference"))
    failures = next(filter(None, (checked(script, wrong).failures for script in SCRIPTS)), ())
    assert (fault.identity, fault.evidence, fault.stage) in {
        (f.identity, f.evidence, f.stage) for f in failures
    }


def test_numbers_that_no_request_can_ask_for_are_refused_by_name() -> None:
    for field, value in (
        ("limit", 0), ("temperature", 0.0), ("temperature", float("nan")), ("repetition", -1.0),
        ("frequency", float("nan")), ("presence", 17.0), ("stop_tokens", (-1,)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=field):
            Params(**{field: value})
