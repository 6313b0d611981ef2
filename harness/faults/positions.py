"""Faults of positions: what is counted, from where, and for whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.inputs import Candidates, VerifyInput
from treeproof.faults.fault import Fault, Plant
from treeproof.faults.smallest import FORK, case, request
from treeproof.faults.tables import builds, rewritten


@dataclass(frozen=True)
class _Built:
    """A right build as lists: of each request its first row, prefix and the depth of its rows."""

    first: list[int]
    prefix: list[int]
    depth: list[list[int]]
    flat: list[int]
    topk: int

    @classmethod
    def of(cls, x: VerifyInput, c: Candidates) -> _Built:
        first, prefix, flat = x.qo_indptr.tolist()[:-1], c.seq_lens.tolist(), x.positions.tolist()
        depth = [
            [position - p for position in flat[start : start + nodes]]
            for start, p, nodes in zip(first, prefix, c.num_nodes.tolist(), strict=True)
        ]
        return cls(first, prefix, depth, flat, c.topk)


Place = Callable[[_Built, int, int], int]
"""The position of local row i of request b."""


def _placed(place: Place) -> Plant:
    """Real rows are placed by `place`; padding stays as it was."""

    def rewrite(x: VerifyInput, c: Candidates) -> dict[str, object]:
        right = _Built.of(x, c)
        wrong = list(right.flat)
        for b, depths in enumerate(right.depth):
            for i in range(len(depths)):
                wrong[right.first[b] + i] = place(right, b, i)
        return {"positions": x.positions.new_tensor(wrong)}

    return lambda backend: rewritten(backend, rewrite)


def _padded(place: Callable[[int, int], int]) -> Plant:
    """Padded rows get `place(prefix, local row)`."""

    def rewrite(x: VerifyInput, c: Candidates) -> dict[str, object]:
        positions = x.positions.clone()
        for first, prefix, rows, nodes in zip(
            x.qo_indptr.tolist(), c.seq_lens.tolist(), c.num_rows.tolist(), c.num_nodes.tolist(),
            strict=False,
        ):  # fmt: skip
            for i in range(nodes, rows):
                positions[first + i] = place(prefix, i)
        return {"positions": positions}

    return lambda backend: rewritten(backend, rewrite)


def _one_a_request(backend: Backend) -> Backend:
    return rewritten(backend, lambda x, c: {"positions": c.seq_lens.clone()})


def _right(t: _Built, b: int, i: int) -> int:
    return t.prefix[b] + t.depth[b][i]


def _read(t: _Built, at: int) -> int:
    """Positions are one flat buffer; past its end its last cell is read."""
    return t.flat[min(at, len(t.flat) - 1)]


def _by_row(t: _Built, b: int, i: int) -> int:
    return t.prefix[b] + i


def _after_the_last_k(t: _Built, b: int, i: int) -> int:
    """New rows lie below the last topk ones, one by one, whichever rows their parents are."""
    return t.prefix[b] + t.depth[b][i - t.topk] + 1 if i > t.topk else _right(t, b, i)


def _in_full_layers(t: _Built, b: int, i: int) -> int:
    return t.prefix[b] + (1 + (i - 1) // t.topk if i else 0)


def _after_the_neighbour(t: _Built, b: int, i: int) -> int:
    return t.prefix[b - 1] + t.depth[b][i]


def _in_a_padded_buffer(t: _Built, b: int, i: int) -> int:
    return _read(t, b * max(map(len, t.depth)) + i)


def _in_a_buffer_of_drafts(t: _Built, b: int, i: int) -> int:
    return t.flat[t.first[b] - b + i]


_PLACES: tuple[tuple[str, str, str, tuple[str, ...], str, Place, VerifyCase], ...] = (
    (
        "position-is-row", "", "rows are numbered one after another, siblings too",
        ("B010", "lablup/mlxcel#1214"), "position-is-row",
        _by_row, case(request(FORK)),
    ),
    (
        "position-by-buffer-order", "last-k",
        "a new layer's depths are those of the last topk rows plus one, not those of its parents",
        ("B011", "NVIDIA/TensorRT-LLM#12962"), "position-of-wrong-parent",
        _after_the_last_k, case(request((-1, 0, 1, 0))),
    ),
    (
        "position-by-buffer-order", "full-layers",
        "depth is counted as if every layer held topk rows",
        ("B011", "NVIDIA/TensorRT-LLM#12962"), "position-of-wrong-parent",
        _in_full_layers, case(request((-1, 0, 1, 0))),
    ),
    (
        "position-off-by-one", "all", "positions were bumped in place before they were used",
        ("sgl-project/sglang#25015",), "position-off-by-one",
        lambda t, b, i: _right(t, b, i) + 1, case(request()),
    ),
    (
        "position-off-by-one", "drafts-up", "all rows but the root are one position too far",
        ("sgl-project/sglang#25015",), "position-off-by-one",
        lambda t, b, i: _right(t, b, i) + (i > 0), case(request((-1, 0))),
    ),
    (
        "position-off-by-one", "drafts-down",
        "drafts are counted from the prefix's end, as if the root were its last key",
        ("sgl-project/sglang#25015",), "position-off-by-one",
        lambda t, b, i: _right(t, b, i) - (i > 0), case(request((-1, 0))),
    ),
    (
        "position-base", "depth-alone", "the prefix is left out of positions",
        ("B010", "lablup/mlxcel#1214"), "position-without-prefix",
        lambda t, b, i: t.depth[b][i], case(request(prefix=1)),
    ),
    (
        "position-base", "neighbour", "positions start from the prefix of another request",
        ("B003", "NVIDIA/TensorRT-LLM#3456"), "position-of-neighbour",
        _after_the_neighbour, case(request(), request(prefix=1)),
    ),
    (
        "position-stride", "widest",
        "a request's positions are looked for as if all requests had as many rows as the widest",
        ("NVIDIA/TensorRT-LLM#12962", "NVIDIA/TensorRT-LLM#13426"), "position-of-neighbour",
        _in_a_padded_buffer, case(request(), request((-1, 0))),
    ),
    (
        "position-stride", "drafts-only",
        "the stride between requests counts drafts and no root, so rows slip by one a request",
        ("NVIDIA/TensorRT-LLM#12962", "NVIDIA/TensorRT-LLM#13426"), "position-of-neighbour",
        _in_a_buffer_of_drafts, case(request(), request(prefix=1)),
    ),
    (
        "position-not-expanded", "repeated",
        "a request's one position is repeated for all of its rows",
        ("B015", "alibaba/rtp-llm#1163"), "position-not-expanded",
        lambda t, b, i: t.prefix[b], case(request((-1, 0))),
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
            identity="position",
            evidence="declared",
            cause=cause,
            smallest=smallest,
            plant=_placed(place),
            applies=builds("positions"),
        )
        for family, variant, says, sources, cause, place, smallest in _PLACES
    ),
    *(
        Fault(
            family="padding-position",
            variant=variant,
            says=says,
            sources=("B014", "sgl-project/sglang#24401"),
            stage="build",
            identity="position",
            evidence="declared",
            cause="padding-position",
            smallest=case(request(pad_rows=1)),
            plant=_padded(place),
            applies=builds("positions"),
        )
        for variant, says, place in (
            (
                "of-an-older-batch",
                "padded rows keep the positions of an older, larger batch",
                lambda prefix, i: 900 + i,
            ),
            (
                "counted-on",
                "padded rows are counted on as if they held nodes",
                lambda prefix, i: prefix + i,
            ),
        )
    ),
    Fault(
        family="position-not-expanded",
        variant="one-a-request",
        says="tokens are expanded to a request's rows, positions are left at one a request",
        sources=("B015", "alibaba/rtp-llm#1163"),
        stage="build",
        identity="contract",
        evidence="measured",
        cause="position-not-expanded",
        smallest=case(request((-1, 0))),
        plant=_one_a_request,
        applies=builds("positions"),
    ),
)
