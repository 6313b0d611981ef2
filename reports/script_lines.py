"""A script for reading: one step a line."""

from __future__ import annotations

from treeproof.contract.case import VerifyCase
from treeproof.contract.script import Admit, Evict, Finish, Params, Prefill, Round, Step, Turn


def script_lines(case: VerifyCase, most: int | None = None) -> list[str]:
    """Every step by its number; of more than `most`, the last ones, and how many came before."""
    lines = [
        f"{number:>3}  {step_text(case, step)}" for number, step in enumerate(case.script, start=1)
    ]
    if most is None or len(lines) <= most:
        return lines
    return [f"  …  {len(lines) - most + 1} steps before", *lines[len(lines) - most + 1 :]]


def step_text(case: VerifyCase, step: Step) -> str:
    if isinstance(step, Admit):
        prompt = _prompt(case, step.request)
        return f"admit    request {step.request}, a prompt of {prompt}{_params(step.params)}"
    if isinstance(step, Prefill):
        whole = step.tokens >= case.requests[step.request].prefix_len
        return f"prefill  request {step.request}, {'the rest' if whole else _tokens(step.tokens)}"
    if isinstance(step, Round):
        turns = "; ".join(_turn(case, turn) for turn in step.turns)
        sampled = "" if step.sample is None else f", sampled ({step.sample})"
        return f"round    {turns}{f'; and {step.idle} idle' if step.idle else ''}{sampled}"
    if isinstance(step, Finish):
        return f"finish   request {step.request}"
    assert isinstance(step, Evict)
    return "evict    cached pages that nobody holds"


def _turn(case: VerifyCase, turn: Turn) -> str:
    tree = case.requests[turn.request].tree
    nodes = len(tree) if turn.nodes is None else min(turn.nodes, len(tree))
    accepted = tree.depth[turn.accept]
    path = f" (to node {turn.accept})" if accepted else ""
    stop = "" if turn.stop is None else f", stopped after {_tokens(turn.stop)}"
    return f"request {turn.request} drafts {nodes - 1}, {accepted} accepted{path}{stop}"


def _prompt(case: VerifyCase, b: int) -> str:
    request = case.requests[b]
    given = f" {list(request.prefix_tokens)}" if 0 < len(request.prefix_tokens) <= 12 else ""
    return f"{_tokens(request.prefix_len)}{given}"


def _params(params: Params) -> str:
    """What it asks for, where that is anything."""
    asked = [
        f"{name.replace('_', ' ')} {value:g}"
        for name in ("temperature", "frequency", "presence", "repetition", "min_p")
        if (value := getattr(params, name)) != getattr(Params(), name)
    ]
    asked += [f"token {token} by {more:+g}" for token, more in params.bias]
    asked += ["a grammar"] * params.grammar
    asked += [] if params.limit is None else [f"at most {_tokens(params.limit)}"]
    asked += [f"stop at {list(params.stop_tokens)}"] * bool(params.stop_tokens)
    return f"; {', '.join(asked)}" if asked else ""


def _tokens(count: int) -> str:
    return f"{count} token{'' if count == 1 else 's'}"
