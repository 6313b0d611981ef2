"""The steps of a script, one after another, on one backend; what holds after each is checked there."""

from __future__ import annotations

from dataclasses import replace as replaced
from functools import lru_cache

import torch
from msgspec.structs import replace
from torch import Tensor

from treeproof.backends.decoder import Decoder
from treeproof.contract.case import VerifyCase
from treeproof.contract.counter import permutation
from treeproof.contract.failure import Failure
from treeproof.contract.ledger import SPARE_TABLE_ROWS
from treeproof.contract.script import Admit, Finish, Params, Prefill, Round, Step
from treeproof.contract.target_model import TargetModel
from treeproof.engine.checks.trial import Trial
from treeproof.engine.serving.batch import Batch
from treeproof.engine.serving.drafting import draft
from treeproof.engine.serving.ends import Refused, stop_at
from treeproof.engine.serving.layers import Layers
from treeproof.engine.serving.memory import Memory, drafter_codes, path_codes
from treeproof.engine.serving.paging import Paging
from treeproof.engine.serving.params import asked_of, ending
from treeproof.engine.serving.plain import Plain
from treeproof.engine.serving.prefill import prefill
from treeproof.engine.serving.recorded import Recorded
from treeproof.engine.serving.request import Served
from treeproof.engine.serving.scheduling import Scheduling
from treeproof.engine.serving.selecting import select
from treeproof.engine.serving.step import round_seed, verify_step
from treeproof.engine.serving.tally import Tally
from treeproof.engine.serving.verify import Done, verify
from treeproof.generate.drafting import served_columns
from treeproof.generate.prefix_tokens import prefix_tokens
from treeproof.oracles.continuation import continuation
from treeproof.oracles.served import served as run_served
from treeproof.properties.layers import errors_of

_TABLE_ROWS = 703  # address word of the draw


class Machine:
    """An engine around one backend: requests, pages, caches, and the round itself."""

    def __init__(self, case: VerifyCase, trial: Trial, recorded: Recorded | None = None) -> None:
        """`recorded` is told of every round."""
        self.case, self.trial, self.device = case, trial, trial.options.device
        self.recorded = recorded
        try:
            self.layers = Layers.of(case, trial)
        except ValueError as error:
            raise Refused(str(error)) from None
        self.model = self.layers.model
        # A model in float32 whose attention is handed numbers of the case's dtype, and gives such.
        self.decoder = _decoder(self.model, self.device)
        backend = trial.backend
        self.plain = Plain(
            self.model, errors_of(trial.scene, backend.numerics, backend.capabilities)
        )
        idle = max((s.idle for s in case.script if isinstance(s, Round)), default=0)
        rows = len(case.requests) + idle
        # Each row is followed by another one round a circle of all rows, so none is its own.
        circle = permutation(rows + SPARE_TABLE_ROWS, case.seed, _TABLE_ROWS)
        after = dict(zip(circle, [*circle[1:], circle[0]], strict=True))
        self.table_rows = [after[b] for b in range(rows)]
        self.memory = Memory(case, self.layers, rows + SPARE_TABLE_ROWS, self.device)
        self.paging = Paging(trial, case.layout, nobody=len(case.requests) + rows)
        self.scheduling = Scheduling(trial)
        # A phase reads the whole prefix; where pages of it are given back there is none.
        self.drafts = trial.has("draft") and not case.layout.evicted
        self.prompts = [p.tolist() for p in prefix_tokens(case, self.model.vocab_size)]
        self.serving: dict[int, Served] = {}
        self.tally = Tally()
        self.taken = 0

    def run(self) -> Tally:
        """Every step; then all that is still served is finished, and nothing may be missing."""
        for step in self.case.script:
            self.taken += 1
            self._take(step)
        self.taken += 1
        for number in list(self.serving):
            self._finish(number)
        self.paging.all_free()
        return self.tally

    def placed(self, failure: Failure) -> Failure:
        """The failure, and where in the script it was seen."""
        over = self.taken > len(self.case.script)
        where = "once the script was over" if over else f"in step {self.taken} of the script"
        request = failure.request
        if request == self.paging.nobody:
            where = f"{where}, where request {request} asks in nobody's name"
        if request not in range(len(self.case.requests)):
            request = None  # it is none of the case's
        return replace(failure, request=request, message=f"{failure.message}; seen {where}")

    def _take(self, step: Step) -> None:
        if isinstance(step, Admit):
            self._admit(step.request, step.params)
        elif isinstance(step, Prefill):
            self._prefill(step.request, step.tokens)
        elif isinstance(step, Round):
            self._round(step)
        elif isinstance(step, Finish):
            self._finish(step.request)
        else:
            self.paging.evict()

    def _admit(self, number: int, params: Params) -> None:
        if number in self.serving:
            return
        prompt = self.prompts[number]
        pages = self.paging.match(number, prompt)
        asked = asked_of(params, self.model.vocab_size) if params.adjusts else None
        truth = continuation(self.model, tuple(prompt), asked)
        served = Served(number, prompt, params, truth, self.table_rows[number], pages)
        served.ready = len(pages) * self.paging.page
        served.tokens = list(prompt)
        served.codes = path_codes(prompt[: served.ready], 0)
        self.serving[number] = served
        self._read_back(served, handed_out=True)

    def _prefill(self, number: int, tokens: int) -> None:
        served = self.serving.get(number)
        if served is None or served.prefilled:
            return
        end = min(len(served.prompt), served.ready + tokens)
        pages = self.paging.reserve(number, end)
        if pages is None:
            return
        served.pages = pages
        chunk = served.prompt[served.ready : end]
        slots = self._slots(served, end)
        memory = self.memory
        logits = prefill(self.decoder, self.layers, memory, chunk, served.ready, slots)
        codes = path_codes(chunk, served.codes[-1] if served.codes else 0)
        memory.write_companions(slots[served.ready :], codes)
        served.codes += codes
        served.ready = end
        sampled = int(served.truth.adjusted(logits[-1].double().cpu(), end - 1).argmax())
        first = end - len(chunk)
        after = self.scheduling.successors(served, len(chunk), sampled)
        memory.write_drafter(slots[first:], drafter_codes(served.codes[first:], after))
        vocab, over = self.model.vocab_size, False
        if served.prefilled:
            over = run_served([sampled], ending(served, vocab, [sampled], None))[1] != "running"
            stop_at(self.trial, self.plain.emit(served, [sampled], self.tally))
            self._slide(served)
        known = served.tokens[: end + 1]
        self.paging.publish(number, known, len(known))
        if over:
            self._finish(number)

    def _round(self, step: Round) -> None:
        seed = round_seed(self.case, self.tally.rounds)
        batch = Batch(self.case)
        for turn in step.turns:
            served = self.serving.get(turn.request)
            if served is not None and served.prefilled:
                batch.join(
                    served, turn, seed, self.paging, self._to_draft, sampled=step.sample is not None
                )
        if not batch.turns:
            return
        self.scheduling.ask_who_is_next(
            self.serving.values(), [served.number for served in batch.ready]
        )
        if self.drafts:
            draft(self.trial, batch, self.memory, seed)
        batch.fill_up(step, self.table_rows[len(self.case.requests) :], self.paging)
        made = verify_step(
            batch, self.layers.parameters, self.memory, seed, self.device,
            first=self.tally.rounds == 0,
        )  # fmt: skip
        if self.trial.has("select"):
            made = replaced(made, made=select(self.trial, made))
        refusal = self.trial.backend.capabilities.refusal(made.case, self.device)
        if refusal is not None:
            raise Refused(refusal)
        if self.recorded is not None:
            self.recorded.begin(self.taken, made)
        done = verify(self.trial, made, self.layers, self.decoder, self.memory, step.sample)
        if self.recorded is not None:
            self.recorded.end(done)
        self.tally.rounds += 1
        for b, served in enumerate(batch.ready):
            self._settle(served, done, b)
        batch.let_idle_go(self.paging)

    def _to_draft(self, ready: int) -> int:
        """Columns that a request needs while it drafts."""
        if not self.drafts:
            return 0
        return served_columns(self.case.requests, ready, self.paging.page)

    def _settle(self, served: Served, done: Done, b: int) -> None:
        """The request after a round: what it emitted, what it holds, what the cache may know of it."""
        first = served.ready
        written = [served.tokens[-1], *done.emitted[b][:-1]]
        served.codes += path_codes(written, served.codes[-1])
        served.ready = done.ready[b]
        if done.drawn is None:
            failures = self.plain.emit(served, done.emitted[b], self.tally)
        else:
            failures = self.plain.emit_drawn(
                served, done.emitted[b], done.drawn.plans[b], done.drawn.rule, done.drawn.coins[b],
                self.tally,
            )  # fmt: skip
        stop_at(self.trial, failures or self.plain.judge_logits(served, done.logits[b]))
        slots = self._slots(served, served.ready)
        after = served.tokens[first + 1 : served.ready + 1]
        self.memory.write_drafter(slots[first:], drafter_codes(served.codes[first:], after))
        served.pages = self.paging.trim(served.number, served.ready)
        self._slide(served)
        count = first + 1 + done.served[b].count
        self.paging.publish(served.number, served.tokens, count)
        if done.served[b].over:
            self._finish(served.number)
            self.paging.look_up(served.number, served.tokens)

    def _slide(self, served: Served) -> None:
        """Pages behind the window go, where the layout says that they do."""
        window = self.case.shape.window
        if window is not None and self.case.layout.evicted:
            served.pages = self.paging.slide(served.number, max(0, served.ready - window + 1))

    def _finish(self, number: int) -> None:
        served = self.serving.pop(number, None)
        if served is None:
            return
        self._read_back(served, handed_out=False)
        self.tally.requests += served.ready > len(served.prompt)
        self.paging.release(number)

    def _slots(self, served: Served, end: int) -> Tensor:
        return self.paging.slots(served.pages, end, self.device)

    def _read_back(self, served: Served, *, handed_out: bool) -> None:
        """Of what is ready, all that the window has not let go."""
        gone = sum(number < 0 for number in served.pages) * self.paging.page
        if served.ready <= gone:
            return
        slots = self._slots(served, served.ready)[gone:]
        failures = self.plain.read_back(served, slots, self.memory, handed_out=handed_out)
        stop_at(self.trial, failures)


@lru_cache(maxsize=8)
def _decoder(model: TargetModel, device: str) -> Decoder:
    """It keeps nothing from one forward to the next, so one serves every script."""
    return Decoder(model, torch.float32, device)
