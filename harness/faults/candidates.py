"""Faults of candidates: which token a row carries, and whose tree it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.inputs import Candidates, VerifyInput
from treeproof.faults.fault import Fault, Plant
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import case, request
from treeproof.faults.tables import builds, rewritten

Carry = Callable[[list[list[int]], int, int], int]
"""The token of local row i of request b, out of the right tokens of every request's real rows."""


def _carrying(carry: Carry) -> Plant:
    """Real rows carry what `carry` says; padding stays as it was."""

    def rewrite(x: VerifyInput, c: Candidates) -> dict[str, object]:
        flat, first = x.draft_token.tolist(), x.qo_indptr.tolist()
        right = [
            flat[start : start + nodes]
            for start, nodes in zip(first, c.num_nodes.tolist(), strict=False)
        ]
        for b, tokens in enumerate(right):
            for i in range(len(tokens)):
                flat[first[b] + i] = carry(right, b, i)
        return {"draft_token": x.draft_token.new_tensor(flat)}

    return lambda backend: rewritten(backend, rewrite)


def partners(c: Candidates) -> list[int]:
    """For each request another one with as many nodes; itself where there is none."""
    nodes = c.num_nodes.tolist()
    others = [[*range(b + 1, len(nodes)), *range(b)] for b in range(len(nodes))]
    return [
        next((other for other in others[b] if nodes[other] == nodes[b]), b)
        for b in range(len(nodes))
    ]


def _trees_by_batch(backend: Backend) -> Backend:
    def around(right: Callable[[Candidates], VerifyInput], c: Candidates) -> VerifyInput:
        other = partners(c)
        names = ("bonus_tokens", "parent_list", "selected_index", "draft_token")
        return right(replace(c, **{name: getattr(c, name)[other] for name in names}))

    return wrapped(backend, "build", around)


def _drafts(tokens: list[list[int]]) -> list[int]:
    """Draft tokens of all requests, one after another, without their roots."""
    return [token for request in tokens for token in request[1:]]


def _draft_of(at: Callable[[list[list[int]], int], int]) -> Carry:
    """Drafts are read from one flat list; `at` says where those of request b begin."""

    def carry(tokens: list[list[int]], b: int, i: int) -> int:
        drafts = _drafts(tokens)
        return drafts[min(at(tokens, b) + i - 1, len(drafts) - 1)] if i else tokens[b][0]

    return carry


def _kept(tokens: list[list[int]]) -> list[int]:
    """The reduced vocabulary: target ids that the draft head can say, by draft id."""
    return sorted(set(_drafts(tokens)))


def _unmapped(tokens: list[list[int]], b: int, i: int) -> int:
    return _kept(tokens).index(tokens[b][i]) if i else tokens[b][0]


def _offsets_for_ids(tokens: list[list[int]], b: int, i: int) -> int:
    """A table of ids is read as one of offsets, so the id is added once more."""
    return 2 * _kept(tokens).index(tokens[b][i]) if i else tokens[b][0]


_CARRIED: tuple[tuple[str, str, str, tuple[str, ...], str, Carry, VerifyCase], ...] = (
    (
        "tokens-of-neighbour", "drafts", "rows carry the drafts of the request before",
        ("B003", "NVIDIA/TensorRT-LLM#3456"), "tokens-of-neighbour",
        lambda tokens, b, i: tokens[b - 1][i] if 0 < i < len(tokens[b - 1]) else tokens[b][i],
        case(request((-1, 0)), request((-1, 0), tokens=(0, 2))),
    ),
    (
        "tokens-of-neighbour", "bonus", "the root carries the bonus of the request before",
        ("B003", "NVIDIA/TensorRT-LLM#3456"), "tokens-of-neighbour",
        lambda tokens, b, i: tokens[b][i] if i else tokens[b - 1][0],
        case(request(), request(tokens=(1,))),
    ),
    (
        "block-period", "two",
        "a token's place inside its block of two is used to read it as well as to write it",
        ("B004", "vllm-project/vllm#15908"), "block-period",
        lambda tokens, b, i: tokens[b][i % 2],
        case(request((-1, 0, 1))),
    ),
    (
        "block-period", "four",
        "a token's place inside its block of four is used to read it as well as to write it",
        ("B004", "vllm-project/vllm#15908"), "block-period",
        lambda tokens, b, i: tokens[b][i % 4],
        case(request((-1, 0, 1, 2, 3))),
    ),
    (
        "draft-vocabulary", "unmapped", "ids of a reduced vocabulary pass for the target's ids",
        ("B005", "NVIDIA-NeMo/Automodel#2447"), "draft-vocabulary",
        _unmapped, case(request((-1, 0))),
    ),
    (
        "draft-vocabulary", "offsets", "a table of target ids is filled as if it held offsets",
        ("B005", "verl-project/verl-SpeCo#67"), "draft-vocabulary",
        _offsets_for_ids, case(request((-1, 0))),
    ),
    (
        "draft-index", "request-number",
        "a request's drafts are looked for at its number, and not where they begin",
        ("B007", "mlc-ai/mlc-llm#2949"), "tokens-of-neighbour",
        _draft_of(lambda tokens, b: b),
        case(request(), request((-1, 0, 0))),
    ),
    (
        "draft-index", "widest",
        "a request's drafts are looked for as if all requests had as many as the widest",
        ("B007", "mlc-ai/mlc-llm#2949"), "tokens-of-neighbour",
        _draft_of(lambda tokens, b: b * (max(map(len, tokens)) - 1)),
        case(request(), request((-1, 0, 0))),
    ),
    (
        "draft-index", "one-early", "a row carries the token of the row before it",
        ("B007", "mlc-ai/mlc-llm#2949"), "tokens-shifted",
        lambda tokens, b, i: tokens[b][max(i - 1, 0)],
        case(request((-1, 0))),
    ),
    (
        "draft-index", "bonus-left-out", "the bonus is not put before the drafts",
        ("B007", "mlc-ai/mlc-llm#2949"), "tokens-shifted",
        lambda tokens, b, i: tokens[b][min(i + 1, len(tokens[b]) - 1)],
        case(request((-1, 0))),
    ),
)  # fmt: skip

FAULTS = (
    *(
        Fault(
            family=family,
            variant=variant,
            says=says,
            sources=sources,
            stage="build",
            identity="candidate",
            evidence="declared",
            cause=cause,
            smallest=smallest,
            plant=_carrying(carry),
            applies=builds("draft_token"),
        )
        for family, variant, says, sources, cause, carry, smallest in _CARRIED
    ),
    Fault(
        family="tree-of-neighbour",
        says="tree state kept by slot is read by batch position, so requests trade their trees",
        sources=("B003", "NVIDIA/TensorRT-LLM#3456"),
        stage="build",
        identity="candidate",
        evidence="declared",
        cause="tokens-of-neighbour",
        smallest=case(request(), request(tokens=(1,))),
        plant=_trees_by_batch,
        applies=builds("draft_token"),
    ),
)
