"""The steps of a script, one after another, on one backend; what holds after each is checked there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import index
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from treeproof.backends.decoder import Decoder
from treeproof.backends.reference.pool import pool
from treeproof.backends.reference.schedule import schedule
from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.counter import address_hash, permutation
from treeproof.contract.failure import Failure
from treeproof.contract.ledger import SPARE_TABLE_ROWS
from treeproof.contract.script import Admit, Finish, Prefill, Round, Step, Turn
from treeproof.contract.served_model import served_model
from treeproof.contract.serving import PagePool, PoolFull, Scheduler
from treeproof.diagnosis.serving import FULL, Call
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.memory import Memory, companion_rows, drafter_rows, path_codes
from treeproof.engine.serving.prefill import prefill
from treeproof.engine.serving.request import Served
from treeproof.engine.serving.step import (
    drafted_request,
    fits,
    idle_request,
    round_seed,
    verify_step,
)
from treeproof.engine.serving.verify import Done, stop_at, verify
from treeproof.generate.prefix_tokens import prefix_tokens
from treeproof.oracles.continuation import continuation, sequence64
from treeproof.properties.holdings import Holdings
from treeproof.properties.layers import errors_of
from treeproof.properties.serving import (
    judge_cached,
    judge_contents,
    judge_runnable,
    judge_successors,
    judge_token,
)

_TABLE_ROWS = 703  # address word of the draw


@dataclass
class Tally:
    """What a script came to: generations that had a round and came to their end, rounds, tokens."""

    requests: int = 0
    rounds: int = 0
    tokens: int = 0
    ties: int = 0
    """Tokens that rounding leaves open, and that are not those of plain decoding."""


class Machine:
    """An engine around one backend: requests, pages, caches, and the round itself."""

    def __init__(self, case: VerifyCase, trial: Trial) -> None:
        self.case, self.trial, self.device = case, trial, trial.options.device
        try:
            self.model = served_model(case)
        except ValueError as error:
            raise Refused(str(error)) from None
        # A model in float32 whose attention is handed numbers of the case's dtype, and gives such.
        self.decoder = Decoder(self.model, torch.float32, self.device)
        backend = trial.backend
        self.errors = errors_of(trial.scene, backend.numerics, backend.capabilities)
        idle = max((s.idle for s in case.script if isinstance(s, Round)), default=0)
        rows = len(case.requests) + idle
        # Each row is followed by another one round a circle of all rows, so none is its own.
        circle = permutation(rows + SPARE_TABLE_ROWS, case.seed, _TABLE_ROWS)
        after = dict(zip(circle, [*circle[1:], circle[0]], strict=True))
        self.table_rows = [after[b] for b in range(rows)]
        self.memory = Memory(case, self.model.layers, rows + SPARE_TABLE_ROWS, self.device)
        self.holdings = Holdings(case.layout)
        self.pool: PagePool = self._made("pool", pool, case.layout)
        self.scheduler: Scheduler = self._made("schedule", schedule)
        self.published: list[tuple[int, ...]] = []
        self.pool_calls: list[Call] = []
        self.schedule_calls: list[Call] = []
        self.prompts = [p.tolist() for p in prefix_tokens(case, self.model.vocab_size)]
        self.serving: dict[int, Served] = {}
        self.tally = Tally()
        self.taken = 0
        self.probe = len(self.case.requests) + len(self.table_rows)
        """A request that nobody has made, to see what the pool answers."""

    def _made(self, stage: str, reference: Callable[..., Any], *arguments: Any) -> Any:
        """What the backend's own stage makes, or the reference's."""
        if not self.trial.has(stage):
            return reference(*arguments)
        return self.trial.call(stage, getattr(self.trial.instance, stage), *arguments)

    def _scheduled(self, method: str, *arguments: Any) -> list[int]:
        function = partial(_numbers, self.scheduler, method)
        answer: list[int]
        if self.trial.has("schedule"):
            answer = self.trial.call("schedule", function, *arguments)
        else:
            answer = function(*arguments)
        self.schedule_calls.append(Call(method, arguments, answer))
        return answer

    def run(self) -> Tally:
        """Every step; then all that is still served is finished, and nothing may be missing."""
        for step in self.case.script:
            self.taken += 1
            self._take(step)
        self.taken += 1
        for number in list(self.serving):
            self._finish(number)
        self._all_free()
        return self.tally

    def placed(self, failure: Failure) -> Failure:
        """The failure, and where in the script it was seen."""
        over = self.taken > len(self.case.script)
        where = "once the script was over" if over else f"in step {self.taken} of the script"
        request = failure.request
        if request == self.probe:
            where = f"{where}, where request {request} asks in nobody's name"
        if request not in range(len(self.case.requests)):
            request = None  # it is none of the case's
        return replace(failure, request=request, message=f"{failure.message}; seen {where}")

    def _take(self, step: Step) -> None:
        if isinstance(step, Admit):
            self._admit(step.request)
        elif isinstance(step, Prefill):
            self._prefill(step.request, step.tokens)
        elif isinstance(step, Round):
            self._round(step)
        elif isinstance(step, Finish):
            self._finish(step.request)
        else:
            self._ask("evict")

    def _ask(self, method: str, *arguments: Any) -> list[int] | None:
        """What the pool says, which is the backend's or the reference's; None: that it is full."""
        function = partial(_pages_or_full, self.pool, method)
        answer: list[int] | None
        if self.trial.has("pool"):
            answer = self.trial.call("pool", function, *arguments)
        else:
            answer = function(*arguments)
        self.pool_calls.append(Call(method, arguments, FULL if answer is None else answer))
        return answer

    def _admit(self, number: int) -> None:
        if number in self.serving:
            return
        prompt = self.prompts[number]
        pages = self._ask("match", number, prompt) or []
        page = self.case.layout.page_size
        self.holdings.matched(number, pages, (len(prompt) - 1) // page)
        served = Served(
            number, prompt, continuation(self.model, tuple(prompt)), self.table_rows[number], pages
        )
        served.ready = len(pages) * page
        served.tokens = list(prompt)
        served.codes = path_codes(prompt[: served.ready], 0)
        self.serving[number] = served
        self._read_back(served, handed_out=True)

    def _prefill(self, number: int, tokens: int) -> None:
        served = self.serving.get(number)
        if served is None or served.prefilled:
            return
        end = min(len(served.prompt), served.ready + tokens)
        if not self._reserve(served, end):
            return
        chunk = served.prompt[served.ready : end]
        slots = self._slots(served, end)
        memory = self.memory
        logits = prefill(
            self.decoder, self.case.shape, chunk, served.ready, slots, memory.k, memory.v
        )
        codes = path_codes(chunk, served.codes[-1] if served.codes else 0)
        memory.write_companions(slots[served.ready :], codes)
        served.codes += codes
        served.ready = end
        sampled = int(logits[-1].argmax())
        self._draft_keys(served, len(chunk), slots, sampled)
        if served.prefilled:
            self._emit(served, [sampled])
            self._slide(served)
        self._publish(served, end + 1)

    def _draft_keys(self, served: Served, count: int, slots: Tensor, sampled: int) -> None:
        """The drafter's keys of a chunk, of the tokens that the scheduler has it read."""
        first = served.ready - count
        after = self._scheduled("successors", list(served.prompt), first, count, sampled)
        right = [*served.prompt, sampled][first + 1 : served.ready + 1]
        stop_at(self.trial, judge_successors(served.number, first, after, right))
        self.memory.write_drafter(slots[first:], served.codes[first:], after)

    def _publish(self, served: Served, known: int, served_tokens: int | None = None) -> None:
        """The first `known` tokens, the last of them without keys yet, are there to be shared."""
        tokens = served.tokens[:known]
        count = known if served_tokens is None else served_tokens
        self.published.append(tuple(tokens[:count]))
        self._ask("publish", served.number, list(tokens), count)

    def _slide(self, served: Served) -> None:
        """Pages behind the window go, where the layout says that they do."""
        window = self.case.shape.window
        if window is None or not self.case.layout.evicted:
            return
        first = max(0, served.ready - window + 1)
        self._ask("slide", served.number, first)
        self.holdings.slid(served.number, first)
        served.pages = self.holdings.held[served.number]

    def _round(self, step: Round) -> None:
        turns = self._ready_turns(step)
        if not turns:
            return
        seed = round_seed(self.case, self.tally.rounds)
        served: list[Served | None] = [s for s, _, _ in turns]
        requests = [r for _, r, _ in turns]
        self._ask_who_is_next([one.number for one, _, _ in turns])
        codes: list[int] = []
        for one, request, _ in turns:
            of_node = _node_codes(one, request)
            codes += [of_node[node] for node in request.node_of_row]
        pages = [one.pages for one, _, _ in turns]
        rows = [one.table_row for one, _, _ in turns]
        idle: list[int] = []
        for i in range(step.idle):
            if not fits(self.case, [*requests, idle_request()]):
                break
            own = self._reserved(-1 - i, 1)
            if own is None:
                break
            idle.append(-1 - i)
            requests.append(idle_request())
            served.append(None)
            pages.append(own)
            rows.append(self.table_rows[len(self.case.requests) + i])
            codes.append(0)
        made = verify_step(
            self.case, requests, served, pages, rows, self.memory, seed, self.device,
            first=self.tally.rounds == 0,
        )  # fmt: skip
        refusal = self.trial.backend.capabilities.refusal(made.case, self.device)
        if refusal is not None:
            raise Refused(refusal)
        done = verify(self.trial, made, self.decoder, self.memory, codes)
        self.tally.rounds += 1
        for b, (one, _, turn) in enumerate(turns):
            self._settle(one, done, b, turn.stop)
        for number in idle:
            self._give_up(number)

    def _ask_who_is_next(self, in_flight: list[int]) -> None:
        """While a round is under way, whoever is in it cannot begin another one."""
        running = [s.number for s in self.serving.values() if s.prefilled]
        chosen = self._scheduled("runnable", running, frozenset(in_flight))
        stop_at(self.trial, judge_runnable(chosen, running, in_flight))

    def _ready_turns(self, step: Round) -> list[tuple[Served, Request, Turn]]:
        """Who can take part, with its tree drafted and its pages reserved."""
        seed = round_seed(self.case, self.tally.rounds)
        found: list[tuple[Served, Request, Turn]] = []
        for turn in step.turns:
            served = self.serving.get(turn.request)
            if served is None or not served.prefilled:
                continue
            request = drafted_request(self.case, served, turn, address_hash(seed, turn.request))
            batch = [r for _, r, _ in found]
            if fits(self.case, [*batch, request]) and self._reserve(
                served, served.ready + request.num_nodes
            ):
                found.append((served, request, turn))
        return found

    def _settle(self, served: Served, done: Done, b: int, stop: int | None) -> None:
        """The request after a round: what it emitted, what it holds, what the cache may know of it."""
        first = served.ready
        written = [served.tokens[-1], *done.emitted[b][:-1]]
        served.codes += path_codes(written, served.codes[-1])
        served.ready = done.ready[b]
        self._emit(served, done.emitted[b])
        slots = self._slots(served, served.ready)
        after = served.tokens[first + 1 : served.ready + 1]
        self.memory.write_drafter(slots[first:], served.codes[first:], after)
        self._ask("trim", served.number, served.ready)
        self.holdings.trimmed(served.number, served.ready)
        served.pages = self.holdings.held[served.number]
        self._slide(served)
        over = stop is not None and stop < len(done.emitted[b])
        served_tokens = first + 1 + (stop or 0) if over else None
        self._publish(served, len(served.tokens), served_tokens)
        if over:
            self._finish(served.number)
            self._look_up(served)

    def _look_up(self, served: Served) -> None:
        """What the cache knows of a sequence that was stopped: nothing that was served to nobody."""
        tokens, page = served.tokens, self.case.layout.page_size
        pages = self._ask("match", self.probe, list(tokens)) or []
        self._ask("release", self.probe)
        known = next(
            (
                end
                for end in range(len(pages) * page, 0, -page)
                if any(p[: end + 1] == tuple(tokens[: end + 1]) for p in self.published)
            ),
            0,
        )
        stop_at(self.trial, judge_cached(served.number, len(pages) * page, known))

    def _emit(self, served: Served, tokens: Sequence[int]) -> None:
        """Each token against plain decoding of all before it."""
        for token in tokens:
            position = len(served.tokens)
            served.truth.grow(position)
            self.tally.tokens += 1
            if token != int(served.truth.logits(position - 1).argmax()):
                self._judge_other(served, token)
                self.tally.ties += 1
            served.truth = served.truth.with_token(position, token)
            served.tokens.append(token)

    def _judge_other(self, served: Served, token: int) -> None:
        """A token that plain decoding does not emit here: does rounding leave it open?"""
        truth = sequence64(self.model, tuple(served.tokens), self.errors)
        failures = judge_token(
            served.number, len(served.tokens), token, truth.logits[-1], float(truth.limit[-1])
        )
        stop_at(self.trial, failures)

    def _finish(self, number: int) -> None:
        served = self.serving.pop(number, None)
        if served is None:
            return
        self._read_back(served, handed_out=False)
        self.tally.requests += served.ready > len(served.prompt)
        self._give_up(number)

    def _give_up(self, number: int) -> None:
        self._ask("release", number)
        self.holdings.released(number)

    def _reserve(self, served: Served, columns: int) -> bool:
        pages = self._reserved(served.number, columns)
        if pages is not None:
            served.pages = pages
        return pages is not None

    def _reserved(self, number: int, columns: int) -> list[int] | None:
        """Pages of a request, or None where there are not enough."""
        pages = self._ask("reserve", number, columns)
        if pages is None:
            return None
        self.holdings.reserved(number, pages, columns)
        return pages

    def _slots(self, served: Served, end: int) -> Tensor:
        """(end,) slots of the first columns."""
        page = self.case.layout.page_size
        own = torch.tensor(served.pages, device=self.device)
        column = torch.arange(end, device=self.device)
        return own[column // page] * page + column % page

    def _read_back(self, served: Served, *, handed_out: bool) -> None:
        """Columns [0, ready) against plain decoding, and their companions bit for bit."""
        gone = sum(number < 0 for number in served.pages) * self.case.layout.page_size
        if served.ready <= gone:
            return
        slots = self._slots(served, served.ready)[gone:]
        truth = sequence64(self.model, tuple(served.tokens[: served.ready]), self.errors)
        exactly = truth.key_limit.new_zeros(1, len(slots), 1, 1)
        after = served.tokens[gone + 1 : served.ready + 1]
        held = [
            ("keys", self.memory.k[:, slots], truth.keys[:, gone:], truth.key_limit[:, gone:]),
            (
                "values", self.memory.v[:, slots],
                truth.values[:, gone:], truth.value_limit[:, gone:],
            ),
            *(
                (
                    "companions",
                    cache[None, slots],
                    companion_rows(served.codes[gone:], which).double()[None],
                    exactly,
                )
                for which, cache in enumerate(self.memory.companions)
            ),
            (
                "keys of the drafter",
                self.memory.drafter[None, slots[: len(after)]],
                drafter_rows(served.codes[gone : gone + len(after)], after).double()[None],
                exactly[:, : len(after)],
            ),
        ]  # fmt: skip
        failures = judge_contents(served.number, gone, held, handed_out=handed_out)
        stop_at(self.trial, failures)

    def _all_free(self) -> None:
        """Take every page, one after another: so many are there as there were."""
        self._ask("evict")
        found: list[int] = []
        probe = self.probe
        for _ in range(len(self.holdings.usable) + 1):  # the last one is one too many
            pages = self._reserved(probe, (len(found) + 1) * self.case.layout.page_size)
            if pages is None:
                break
            found = pages
        self.holdings.all_free(found)
        self._give_up(probe)


def _numbers(asked: Any, method: str, *arguments: Any) -> list[int]:
    """The answer as plain numbers. Whatever else it is, it raises here, in the stage that gave it."""
    return [index(one) for one in getattr(asked, method)(*arguments)]


def _pages_or_full(asked: Any, method: str, *arguments: Any) -> list[int] | None:
    """Pages of an answer that has some; None where there is no room, which is an answer as well."""
    try:
        if method in ("match", "reserve"):
            return _numbers(asked, method, *arguments)
        getattr(asked, method)(*arguments)
    except PoolFull:
        return None
    return []


class Refused(Exception):
    """A round of the script lies outside the backend's capabilities."""


def _node_codes(served: Served, request: Request) -> list[int]:
    codes: list[int] = []
    for token, parent in zip(request.tree.tokens, request.tree.parents, strict=True):
        before = codes[parent] if parent >= 0 else served.codes[-1]
        codes.append(address_hash(before, token))
    return codes
