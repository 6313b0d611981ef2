"""Scripts as cases: drawn alike everywhere, written and read, made smaller step by step, and shown."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from test_rounds import Hasty, Leaking, checked, kinds, ready, served, turns, with_pool

from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import VerifyCase
from treeproof.contract.json_text import FileError
from treeproof.contract.registry import load
from treeproof.contract.script import Admit, Evict, Finish, Params, Prefill, Round, Step, Turn
from treeproof.contract.wire import decode_case, encode_case
from treeproof.engine.reducer import reduce
from treeproof.engine.settings import RunSettings
from treeproof.engine.simplify import keep_nodes, keep_requests, with_request
from treeproof.engine.supply import CASES_A_SCRIPT, drawn_sources
from treeproof.faults.catalog import exactly
from treeproof.faults.smallest import request
from treeproof.generate.profiles import PROFILES
from treeproof.generate.script_groups import SCRIPT_GROUPS
from treeproof.generate.script_units import ScriptUnit, draw_scripts, script_units
from treeproof.generate.tags import SCRIPT_CLASSES, tags
from treeproof.reports.case_sheet import case_lines
from treeproof.reports.failure_block import Explained, failure_block

TREE = (-1, 0, 0, 1, 2)


def sampled(*accept: int) -> list[Step]:
    return [msgspec.structs.replace(turns(*accept), sample="target-only")]


SCRIPT = served(
    request(TREE, 5), request(TREE, 4),
    steps=[
        Admit(request=0), Prefill(request=0, tokens=2), Prefill(request=0), *ready(1),
        Round(turns=(Turn(request=0, accept=4), Turn(request=1, accept=1, nodes=2)), idle=2),
        Finish(request=0), Evict(), turns(0, 0),
    ],
)  # fmt: skip


def test_a_script_is_written_and_read_as_it_is() -> None:
    again = decode_case(encode_case(SCRIPT))
    assert again == SCRIPT
    assert again.id == SCRIPT.id


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"do":"evict"', b'"do":"evikt"', "accepted are admit, prefill, round,"),
        (b'"idle":2', b'"idle":-1', r"script\[5\].idle"),
        (b'"idle":2', b'"idle":65', "idle is 65: accepted are 0 to 64"),
        (b'"accept":4', b'"accept":5', "accept is node 5: drafted are 0 to 4"),
        (b'"idle":2', b'"idle":2,"late":1', "late"),
        (b'"idle":2', b'"sample":"walk"', "accepted are target-only, chain"),
        (
            b'"idle":2',
            b'"sample":"chain"',
            r"script\[5\].sample is chain: turns\[0\] drafts a tree",
        ),
        (b'"do":"admit",', b'"do":"admit","params":{"limit":0},', r"script\[0\].params.limit"),
        (b'"do":"admit",', b'"do":"admit","params":{"temperature":0},', r"params.temperature"),
        (b'"do":"admit",', b'"do":"admit","params":{"warm":1},', "warm"),
    ],
)
def test_a_script_that_is_none_is_refused_by_name(old: bytes, new: bytes, said: str) -> None:
    data = encode_case(SCRIPT)
    assert old in data
    with pytest.raises(FileError, match=said):
        decode_case(data.replace(old, new, 1))


def test_a_script_has_an_end() -> None:
    with pytest.raises(ValueError, match="script has 1025 steps: accepted are 0 to 1024"):
        msgspec.structs.replace(SCRIPT, script=(Evict(),) * 1025)


def test_a_unit_draws_the_same_scripts_whenever_it_is_drawn() -> None:
    unit = ScriptUnit("quick", 7, 0, 4)
    first, again = draw_scripts(unit), draw_scripts(unit)
    assert [case.id for case in first] == [case.id for case in again]
    assert len({case.id for case in first}) == 4
    other = draw_scripts(ScriptUnit("quick", 8, 0, 4))
    assert {case.id for case in first}.isdisjoint(case.id for case in other)


def test_every_pair_of_values_is_in_some_group_and_quick_has_them_all() -> None:
    columns = [list(vars(group).values()) for group in SCRIPT_GROUPS]
    for a, b in itertools.combinations(range(len(columns[0])), 2):
        values = [{row[i] for row in columns} for i in (a, b)]
        found = {(row[a], row[b]) for row in columns}
        assert found == set(itertools.product(*values)), (a, b)
    number = PROFILES["quick"].cases // CASES_A_SCRIPT
    drawn = [case for unit in script_units("quick", 0, number) for case in draw_scripts(unit)]
    assert [(case.shape, case.layout.page_size, case.layout.evicted) for case in drawn] == [
        (group.shape, group.page_size, group.evicted) for group in SCRIPT_GROUPS
    ]
    found = {tag.removeprefix("rounds:") for case in drawn for tag in tags(case)}
    assert found >= {"window-in-pages", "limit", "stop-tokens", "one-stops", "quantised-cache"}


def test_a_script_that_a_backend_does_not_take_is_fitted_to_what_it_does() -> None:
    able = {
        "plain": Capabilities(windows=False, page_sizes={1}),
        "every": load("direct-mask").capabilities,
        "ours": Capabilities(devices={"cuda"}),
    }
    settings = RunSettings(backends=tuple(able), seed=0)
    *_, source = drawn_sources(settings, able)
    assert source.fit is not None
    for case, group in zip(source.draw(), SCRIPT_GROUPS, strict=True):
        plain = source.fit(case, "plain")
        assert able["plain"].refusal(plain, "cpu") is None
        assert plain.script == case.script
        assert source.fit(case, "every") is case
        assert source.fit(case, "ours") is case  # nothing helps, and it is told why
        assert (plain is case) == (group is SCRIPT_GROUPS[0])


def test_the_scripts_of_a_profile_have_all_that_scripts_have() -> None:
    drawn = [case for unit in script_units("quick", 0, 48) for case in draw_scripts(unit)]
    found = {tag for case in drawn for tag in tags(case)}
    assert found == set(SCRIPT_CLASSES)


def smallest(script: VerifyCase, backend: object, key: tuple[str, str]) -> VerifyCase:
    found = reduce(script, lambda smaller: key in kinds(checked(smaller, backend)))  # type: ignore[arg-type]
    assert found.complete
    return found.case


def test_a_failure_is_left_with_the_steps_that_it_needs() -> None:
    script = draw_scripts(ScriptUnit("quick", 3, 0, 1))[0]
    least = smallest(script, with_pool(Leaking), ("kv", "leaks-slots"))
    assert least.script == (*ready(0), turns(0))
    assert [(r.num_nodes, r.prefix_len) for r in least.requests] == [(2, 1)]


def test_a_coin_that_is_used_twice_is_left_with_the_two_rounds_that_use_it() -> None:
    steps: list[Step] = [
        Admit(request=0, params=Params(limit=30, frequency=0.5, grammar=True)), *ready(1)[:2],
        Prefill(request=0, tokens=2), Prefill(request=0), turns(2, 1), *sampled(4, 2), Evict(),
        *sampled(0, 1), Finish(request=1), turns(3),
    ]  # fmt: skip
    script = served(request(TREE, 5), request(TREE, 4, pad_rows=1), steps=steps)
    wrong = exactly("coins-not-advanced.draw").into(load("reference"))
    least = smallest(script, wrong, ("traversal", "wrong-draw"))
    assert least.script == (*ready(0), *sampled(0), *sampled(0))
    assert [(r.num_nodes, r.prefix_len) for r in least.requests] == [(1, 1)]


def test_an_end_at_a_token_is_left_as_one_at_the_first_limit_that_does() -> None:
    """What is emitted changes with every token of the prompt, and then no token of it could go."""
    params = Params(limit=9, stop_tokens=tuple(range(61)))
    steps = [Admit(request=0, params=params), Prefill(request=0), *ready(0), turns(0)]
    alike = msgspec.structs.replace(request(TREE, 8), prefix_tokens=(7, 5) * 4)
    least = smallest(
        served(alike, steps=steps),
        exactly("key-of-page-alone").into(load("direct-mask")),
        ("kv", "owned-twice"),
    )
    assert least.script == (
        Admit(request=0, params=Params(limit=1)),
        Prefill(request=0),
        ready(0)[0],
    )
    assert [(r.num_nodes, r.prefix_tokens) for r in least.requests] == [(1, (0, 0, 0))]


def test_a_request_that_only_fills_the_batch_is_left_as_an_idle_row() -> None:
    asks = Admit(request=0, params=Params(frequency=1.0))
    steps = [asks, *ready(0, 1)[1:], turns(0, 1), turns(0, 0), Finish(request=1)]
    script = served(request((-1, 0), 1), request(TREE, 4), steps=steps)
    wrong = exactly("counts-of-refused-drafts").into(load("topology"))
    least = smallest(script, wrong, ("output", "wrong-processing"))
    assert [(r.num_nodes, r.prefix_len) for r in least.requests] == [(2, 1)]


def test_who_comes_next_is_left_as_who_was_there_and_comes_again() -> None:
    """Nothing is left out by it, until the request that does both is the only one."""
    params = Params(limit=2)
    steps = [
        Admit(request=1, params=params), *ready(1)[1:], Admit(request=0), turns_of(1),
        Finish(request=1), Prefill(request=0), turns_of(0),
    ]  # fmt: skip
    wrong = exactly("end-of-another").into(load("topology"))
    script = served(request(TREE, 4), request(TREE, 4), steps=steps)
    least = smallest(script, wrong, ("traversal", "wrong-reason"))
    assert least.script == (
        Admit(request=0, params=params), *ready(0)[1:], turns(0), *ready(0), turns(0)
    )  # fmt: skip
    assert [(r.num_nodes, r.prefix_len) for r in least.requests] == [(1, 1)]


def turns_of(request: int) -> Round:
    return Round(turns=(Turn(request=request),))


def test_a_round_that_only_ends_a_request_is_left_as_its_end() -> None:
    steps = [*ready(0), Round(turns=(Turn(request=0, accept=3, stop=1),)), *ready(0)[:1]]
    alike = msgspec.structs.replace(request(TREE, 5), prefix_tokens=(7,) * 5)
    wrong = exactly("key-of-page-alone").into(load("direct-mask"))
    least = smallest(served(alike, steps=steps), wrong, ("kv", "owned-twice"))
    assert least.script == (*ready(0), Finish(request=0), *ready(0)[:1])


def test_prompts_repeat_themselves_in_some_scripts_and_some_sample_many_rounds() -> None:
    drawn = [case for unit in script_units("quick", 0, 96) for case in draw_scripts(unit)]
    repeated = [case for case in drawn if case.requests[0].prefix_tokens]
    assert 16 <= len(repeated) <= 72
    for prompt in (one.prefix_tokens for case in repeated for one in case.requests):
        assert len(set(prompt)) <= 2
        assert prompt[2:] == prompt[:-2]
    sampled = [
        sum(isinstance(step, Round) and step.sample is not None for step in case.script)
        for case in drawn
    ]
    assert sum(count > 1 for count in sampled) >= 24
    assert sum(count == 0 for count in sampled) >= 16


def test_all_that_may_be_asked_and_each_rule_are_drawn() -> None:
    drawn = [case for unit in script_units("quick", 0, 48) for case in draw_scripts(unit)]
    asked = [s.params for case in drawn for s in case.script if isinstance(s, Admit)]
    assert {bool(params.bias) for params in asked} == {True, False}
    assert {params.min_p for params in asked} == {0.0, 2.0**-5, 2.0**-3}
    rules = {s.sample for case in drawn for s in case.script if isinstance(s, Round)}
    assert rules == {None, "target-only", "chain", "typical"}


def test_requests_that_go_take_their_steps_with_them() -> None:
    left = keep_requests(SCRIPT, {1})
    assert left.script == (
        *ready(0), Round(turns=(Turn(request=0, accept=1, nodes=2),), idle=2), Evict(), turns(0),
    )  # fmt: skip


def test_turns_follow_a_tree_that_is_cut() -> None:
    cut = with_request(SCRIPT, 0, keep_nodes(SCRIPT.requests[0], range(3)))
    assert cut.script[5] == Round(
        turns=(Turn(request=0, accept=2), Turn(request=1, accept=1, nodes=2)), idle=2
    )


def test_a_script_is_shown_one_step_a_line() -> None:
    shown = "\n".join(case_lines(SCRIPT))
    assert "script of 9 steps" in shown
    assert "  1  admit    request 0, a prompt of 5 tokens" in shown
    assert "  2  prefill  request 0, 2 tokens" in shown
    assert "  3  prefill  request 0, the rest" in shown
    assert (
        "  6  round    request 0 drafts 4, 2 accepted (to node 4); "
        "request 1 drafts 1, 1 accepted (to node 1); and 2 idle" in shown
    )
    assert "  7  finish   request 0" in shown
    assert "  8  evict    cached pages that nobody holds" in shown


def test_what_a_request_asks_for_and_how_a_round_is_sampled_is_shown() -> None:
    params = Params(limit=1, stop_tokens=(3, 4), temperature=0.5, repetition=1.25, grammar=True)
    script = served(request(TREE, 5), steps=[Admit(request=0, params=params), *sampled(4)])
    shown = "\n".join(case_lines(script))
    assert (
        "  1  admit    request 0, a prompt of 5 tokens; temperature 0.5, repetition 1.25, a grammar, "
        "at most 1 token, stop at [3, 4]" in shown
    )
    assert "request 0 drafts 4, 2 accepted (to node 4), sampled (target-only)" in shown


def test_a_failure_block_has_the_script_and_where_in_it_the_failure_was_seen() -> None:
    script = served(request(TREE, 5), steps=[*ready(0), turns(4), turns(3)])
    found = checked(script, with_pool(Leaking))
    block = failure_block(
        Explained("mine", found.failures[0], script, found, 1, "treeproof replay")
    )
    text = "\n".join(line.plain for line in block)
    assert "seen in step 3 of the script" in text.replace("\n  ", " ")
    assert "    3  round    request 0 drafts 4, 2 accepted (to node 4)" in text
    assert len(block) <= 40


def test_a_page_that_is_free_and_held_is_seen_in_the_step_that_frees_it() -> None:
    steps = [*ready(0, 1), Finish(request=0), Admit(request=2), Prefill(request=2)]
    script = served(
        *(request(TREE, p) for p in (5, 6, 7)), steps=steps,
        page_size=2, layout={"shared_prefix": 4},
    )  # fmt: skip
    (failure,) = checked(script, with_pool(Hasty)).failures
    assert failure.key == ("kv", "owned-twice")
    assert "while request 1 holds it; seen in step 5 of the script" in failure.message
