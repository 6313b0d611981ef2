"""Scripts: several rounds of several requests, served with any backend, equal plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch import Tensor

from treeproof.backends.reference.pool import PagedPool
from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.inputs import Attended, Candidates, Committed, VerifyInput
from treeproof.contract.registry import Backend, load
from treeproof.contract.script import Admit, Evict, Finish, Prefill, Round, Step, Turn
from treeproof.contract.served_model import served_model
from treeproof.contract.serving import PagePool
from treeproof.contract.tree import CandidateTree
from treeproof.contract.wire import read_case_file
from treeproof.engine.check import check_case
from treeproof.engine.checks.options import CheckOptions
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import SERVED, case, request
from treeproof.oracles.sequence import continue_greedily

FIVE = ("direct-mask", "cascade", "page-table", "swa-window", "topology")
TREE = (-1, 0, 0, 1, 2)


def turns(*accept: int, idle: int = 0) -> Round:
    """A round in which request b's path to node `accept[b]` is what plain decoding emits."""
    made = tuple(Turn(request=b, accept=node) for b, node in enumerate(accept))
    return Round(turns=made, idle=idle)


def served(*requests: Any, steps: Sequence[Step], **settings: Any) -> VerifyCase:
    return case(*requests, script=steps, **{"spare_pages": 40, **SERVED, **settings})


def ready(*numbers: int) -> list[Step]:
    """So many requests, admitted and through their prompts."""
    return [step(request=b) for b in numbers for step in (Admit, Prefill)]


def checked(script: VerifyCase, backend: Backend | str = "direct-mask") -> Checked:
    found = load(backend) if isinstance(backend, str) else backend
    return check_case(script, found, CheckOptions())


def kinds(found: Checked) -> set[tuple[str, str]]:
    return {failure.key for failure in found.failures}


TWO_ROUNDS = served(request(TREE, 3), steps=[*ready(0), turns(3), turns(4)])


@pytest.mark.parametrize("backend", FIVE)
def test_two_rounds_emit_what_plain_decoding_emits(backend: str) -> None:
    found = checked(TWO_ROUNDS, backend)
    assert found.failures == ()
    # The first root, then two accepted drafts and a bonus in each round.
    assert found.generated is not None
    assert (found.generated.rounds, found.generated.tokens) == (2, 1 + 3 + 3)
    passed = {(c.identity, c.evidence) for c in found.cells if c.status == "pass"}
    assert passed >= {("kv", "measured"), ("traversal", "measured"), ("output", "measured")}


@pytest.mark.parametrize("node", range(len(TREE)))
def test_every_length_is_accepted_that_the_drafter_is_told(node: int) -> None:
    found = checked(served(request(TREE, 3), steps=[*ready(0), turns(node), turns(node)]))
    assert found.failures == ()
    depth = (0, 1, 1, 2, 2)[node]
    assert found.generated is not None
    assert found.generated.tokens == 1 + 2 * (depth + 1)


def test_requests_come_in_chunks_share_pages_wait_idle_and_leave() -> None:
    steps: list[Step] = [
        Admit(request=0), Prefill(request=0, tokens=3), Admit(request=1), Prefill(request=0),
        Prefill(request=1), turns(3, 0, idle=2), Finish(request=0), Admit(request=2),
        Prefill(request=2), Round(turns=(Turn(request=1, accept=4, nodes=5), Turn(request=2))),
        Evict(), Admit(request=0), Prefill(request=0), turns(1, 2, 3),
    ]  # fmt: skip
    script = served(
        request(TREE, 6), request(TREE, 7, rows=(0, 4, 3, 2, 1)), request(TREE, 9, pad_rows=2),
        steps=steps, page_size=2, layout={"shared_prefix": 4, "order": "shuffled"},
    )  # fmt: skip
    found = checked(script)
    assert found.failures == ()
    assert found.generated is not None
    assert (found.generated.requests, found.generated.rounds) == (4, 3)


def test_nothing_is_passed_where_no_round_was_run() -> None:
    found = checked(served(request(TREE, 3), steps=[Admit(request=0), turns(0)]))
    assert {cell.status for cell in found.cells if cell.identity != "contract"} == {"not-checked"}
    assert any("no round of the script could be run" in cell.reason for cell in found.cells)


def test_a_backend_without_attention_is_driven_by_what_it_has() -> None:
    found = checked(TWO_ROUNDS, "reference")
    assert found.failures == ()
    missing = {(c.identity, c.stage, c.reason) for c in found.cells if c.status == "not-checked"}
    assert missing == {("output", "attend", "reference: no attend stage of its own")}
    assert ("traversal", "accept", "pass") in {(c.identity, c.stage, c.status) for c in found.cells}


def test_a_backend_that_has_no_stage_of_a_round_is_driven_by_nobody() -> None:
    merging = replace(load("cascade"), stages=frozenset({"merge"}))
    found = checked(TWO_ROUNDS, merging)
    assert {cell.status for cell in found.cells} == {"not-checked"}
    assert any("no stage of its own that rounds drive" in cell.reason for cell in found.cells)


def spoiled(stage: str, around: Callable[..., Any]) -> Backend:
    return wrapped(load("direct-mask"), stage, around)


def test_a_bonus_counted_as_cached_is_seen() -> None:
    def around(right: Callable[..., Committed], *given: Any) -> Committed:
        done = right(*given)
        return replace(done, seq_lens=done.seq_lens + 1)

    assert kinds(checked(TWO_ROUNDS, spoiled("commit", around))) == {("kv", "wrong-boundary")}


def test_lengths_that_stay_as_they_were_in_the_round_before_are_seen() -> None:
    """Right in every single step: the object remembers."""
    lengths: list[Tensor] = []

    def around(right: Callable[..., Attended], x: VerifyInput, *tensors: Tensor) -> Attended:
        lengths.append(x.seq_lens)
        return right(replace(x, seq_lens=lengths[0]), *tensors)

    found = checked(TWO_ROUNDS, spoiled("attend", around))
    assert kinds(found) == {("output", "wrong-continuation")}


def louder(by: float) -> Backend:
    def around(right: Callable[..., Attended], *given: Any) -> Attended:
        done = right(*given)
        return replace(done, out=done.out * (1 + by))

    return spoiled("attend", around)


@pytest.mark.parametrize(
    ("by", "where"), [(1e-2, "seen in step 3 of"), (2e-4, "seen once the script was over")]
)
def test_logits_that_are_off_are_seen_where_every_token_is_right(by: float, where: str) -> None:
    """What is far off at once; what is not is held to its limit when the request is finished."""
    (failure,) = checked(TWO_ROUNDS, louder(by)).failures
    assert (failure.key, failure.stage) == (("output", "wrong-logits"), "attend")
    assert where in failure.message
    assert failure.column in range(3, 9)  # of the first root and what follows it


def test_logits_that_rounding_explains_are_no_failure() -> None:
    assert checked(TWO_ROUNDS, louder(1e-6)).failures == ()


class Leaking(PagedPool):
    def trim(self, request: int, columns: int) -> None:
        del self.held[request][-(-columns // self.page) :]


class Hasty(PagedPool):
    def release(self, request: int) -> None:
        self.free += self.held.pop(request)


def with_pool(made: Callable[[Any], Any]) -> Backend:
    right = load("direct-mask")

    class Serving(right.make):  # type: ignore[name-defined,misc]
        def pool(self, kv: Any) -> PagePool:
            return made(kv)

    return replace(right, make=Serving, stages=right.stages | {"pool"})


def test_a_pool_of_its_own_is_judged() -> None:
    found = checked(TWO_ROUNDS, with_pool(PagedPool))
    assert found.failures == ()
    assert ("kv", "pool", "pass") in {(c.identity, c.stage, c.status) for c in found.cells}


def test_slots_that_never_come_back_are_missed() -> None:
    found = checked(TWO_ROUNDS, with_pool(Leaking))
    assert kinds(found) == {("kv", "leaks-slots")}
    assert "never came back" in found.failures[0].message


def test_a_page_that_is_given_out_twice_is_seen() -> None:
    steps = [*ready(0, 1), Finish(request=0), Admit(request=2), Prefill(request=2)]
    script = served(
        *(request(TREE, p) for p in (5, 6, 7)), steps=steps,
        page_size=2, layout={"shared_prefix": 4},
    )  # fmt: skip
    assert checked(script).failures == ()
    assert ("kv", "owned-twice") in kinds(checked(script, with_pool(Hasty)))


class Generous(PagedPool):
    """Once all others are gone it hands out the page that is nobody's."""

    def __init__(self, kv: Any) -> None:
        super().__init__(kv)
        self.free.insert(0, 0)


def test_a_page_too_many_is_seen_though_no_request_ever_got_it() -> None:
    (failure,) = checked(TWO_ROUNDS, with_pool(Generous)).failures
    assert failure.key == ("kv", "wrong-pages")
    assert failure.request is None  # whoever asked is none of the case's
    assert "page 0, which is no page to be had" in failure.message
    assert "asks in nobody's name" in failure.message


def test_a_script_that_names_what_is_not_there_is_refused() -> None:
    for steps, said in (
        ([Admit(request=1)], r"script\[0\] names request 1: there are 1"),
        ([turns(5)], r"script\[0\].turns\[0\].accept is node 5: drafted are 0 to 4"),
        ([Round(turns=(Turn(request=0, accept=2, nodes=2),))], "drafted are 0 to 1"),
    ):
        with pytest.raises(ValueError, match=said):
            served(request(TREE, 3), steps=steps)
    with pytest.raises(ValueError, match="a script needs a prompt of 1 to"):
        served(request(TREE, 0), steps=[Admit(request=0)])
    with pytest.raises(ValueError, match="which has a turn already"):
        Round(turns=(Turn(request=0), Turn(request=0)))


def test_a_case_without_a_script_keeps_its_id() -> None:
    assert msgspec.structs.replace(TWO_ROUNDS, script=()).id != TWO_ROUNDS.id


EXAMPLE = Path(__file__).parents[1] / "examples" / "boundary.json"
CHAIN = (-1, 0, 1, 2)
PROMPT = (7, 3, 3, 11, 5)


def boundary() -> VerifyCase:
    """Three drafts and all of them accepted, then a round that begins with the bonus."""
    return served(
        Request(
            tree=CandidateTree(tokens=(0, 1, 2, 3), parents=CHAIN),
            row_of_node=(0, 1, 2, 3),
            prefix_len=len(PROMPT),
            prefix_tokens=PROMPT,
        ),
        steps=[*ready(0), turns(3), turns(0)],
        spare_pages=8,
    )


def test_the_bonus_is_the_next_root_right_behind_what_is_ready() -> None:
    """R D1 D2 D3 get keys, D1 D2 D3 B are emitted: both are four, and they are other tokens."""
    built: list[VerifyInput] = []

    def around(right: Callable[[Candidates], VerifyInput], c: Candidates) -> VerifyInput:
        built.append(right(c))
        return built[-1]

    found = checked(boundary(), spoiled("build", around))
    assert found.failures == ()
    first, second = built
    greedy = continue_greedily(served_model(boundary()), PROMPT, 5)
    assert first.seq_lens.tolist() == [5]
    assert first.positions.tolist() == [5, 6, 7, 8]
    assert first.draft_token.tolist() == greedy[:4]  # R D1 D2 D3
    assert second.seq_lens.tolist() == [9]
    assert second.positions[0] == 9
    assert second.draft_token[0] == greedy[4]  # B, which has no keys before this round
    assert second.out_cache_loc[0] == second.req_to_token[second.request_slots[0], 9]


def test_the_example_of_the_boundary_is_this_script() -> None:
    assert read_case_file(EXAMPLE) == boundary()
    for backend in FIVE:
        assert checked(boundary(), backend).failures == ()


class Silent(PagedPool):
    def reserve(self, request: int, columns: int) -> Any:
        return None


class Broken(PagedPool):
    def match(self, request: int, tokens: Sequence[int]) -> Any:
        raise RuntimeError("no such thing")


@pytest.mark.parametrize("made", [Silent, Broken, lambda kv: object()])
def test_a_pool_that_answers_nothing_of_use_is_a_finding(made: Any) -> None:
    (failure,) = checked(TWO_ROUNDS, with_pool(made)).failures
    assert (failure.key, failure.stage) == (("contract", "raises"), "pool")


def test_what_a_script_may_ask_for_has_an_end() -> None:
    with pytest.raises(ValueError, match="a prompt of 1 to 4096 tokens"):
        served(request(TREE, 5000), steps=ready(0))
    with pytest.raises(ValueError, match="a script is served with 65536 at most"):
        served(request(TREE, 5), steps=ready(0), spare_pages=65536, head_dims=(32, 32))
