"""Faults of a drafting phase: which slots its branches write, what they read, where they stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.drafting import Drafted, DraftStep
from treeproof.contract.failure import Evidence, Identity
from treeproof.faults.fault import Fault, Plant
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import FORK, case, request

Draft = Callable[[DraftStep], Drafted]
Rewrite = Callable[[Drafted, DraftStep], Mapping[str, Tensor]]
"""What was laid out, and for what: the fields that are changed, and their wrong values."""

_BRANCHED = (-1, 0, 0, 1)
"""Two branches and two steps."""


def _rewriting(rewrite: Rewrite) -> Plant:
    def around(right: Draft, step: DraftStep) -> Drafted:
        drafted = right(step)
        return replace(drafted, **rewrite(drafted, step))

    return lambda backend: wrapped(backend, "draft", around)


def _steps(step: DraftStep) -> Tensor:
    """(S, 1)."""
    return torch.arange(step.num_steps, device=step.seq_lens.device)[:, None]


def _transposed(d: Drafted, step: DraftStep) -> Mapping[str, Tensor]:
    """Laid out by request, branch and step; taken for steps of all branches."""
    assert d.out_cache_loc is not None
    return {"out_cache_loc": d.out_cache_loc.T.reshape(d.out_cache_loc.shape)}


def _moved(by: Callable[[Tensor, Tensor], Tensor]) -> Rewrite:
    """Positions out of right ones and their steps."""

    def rewrite(d: Drafted, step: DraftStep) -> Mapping[str, Tensor]:
        assert d.positions is not None
        return {"positions": by(d.positions, _steps(step))}

    return rewrite


def _tiled(d: Drafted, step: DraftStep) -> Mapping[str, Tensor]:
    """Lengths of the batch are repeated one after another, and not each for its branches."""
    return {"positions": step.seq_lens.repeat(step.topk)[None] + _steps(step)}


def _lists(d: Drafted) -> list[list[Tensor]]:
    """Slots of each branch-row's list, step by step."""
    assert d.kv_indptr is not None
    assert d.kv_indices is not None
    return [
        [line[lo:hi] for lo, hi in pairwise(ends)]
        for line, ends in zip(d.kv_indices, d.kv_indptr.tolist(), strict=True)
    ]


def _listed(lists: list[list[Tensor]]) -> Mapping[str, Tensor]:
    ends = [[0, *torch.tensor([len(own) for own in line]).cumsum(0).tolist()] for line in lists]
    flat = [torch.cat(line) for line in lists]
    return {
        "kv_indptr": torch.tensor(ends, device=flat[0].device),
        "kv_indices": torch.nn.utils.rnn.pad_sequence(flat, batch_first=True),
    }


def _lists_lag(d: Drafted, step: DraftStep) -> Mapping[str, Tensor]:
    """The length on the host stays that of the first step."""
    lists = _lists(d)
    first = [len(own) for own in lists[0]]
    return _listed([[own[:n] for own, n in zip(line, first, strict=True)] for line in lists])


def _pages_lag(d: Drafted, step: DraftStep) -> Mapping[str, Tensor]:
    assert d.cache_seqlens is not None
    return {"cache_seqlens": d.cache_seqlens[:1].expand_as(d.cache_seqlens).clone()}


def _room(d: Drafted, step: DraftStep) -> int:
    """Cells of a buffer's line that is sized for one branch a request."""
    return int((step.seq_lens + step.num_steps).sum())


def _cut(d: Drafted, step: DraftStep) -> Mapping[str, Tensor]:
    assert d.kv_indices is not None
    return {"kv_indices": d.kv_indices[:, : _room(d, step)].clone()}


def _spilled(d: Drafted, step: DraftStep) -> Mapping[str, Tensor]:
    """Each step's lists run on into the line of the next, which is written after them."""
    assert d.kv_indices is not None
    assert d.kv_indptr is not None
    room, width = _room(d, step), d.kv_indices.shape[1]
    buffer = d.kv_indices.new_zeros(room * step.num_steps + width)
    for s, (line, end) in enumerate(zip(d.kv_indices, d.kv_indptr[:, -1].tolist(), strict=True)):
        buffer[s * room : s * room + end] = line[:end]
    buffer[room * step.num_steps :] = 0  # memory of somebody else
    return {"kv_indices": buffer.unfold(0, width, room)[: step.num_steps].clone()}


def _one_line(d: Drafted, step: DraftStep) -> Mapping[str, Tensor]:
    """Pages of all steps go into lines that are as long as the step at hand needs."""
    assert d.page_table is not None
    assert d.cache_seqlens is not None
    every = -(-d.cache_seqlens // step.kv.page_size)
    table = d.page_table.clone()
    for s, line in enumerate(every.tolist()):
        width, pages = max(line), every[-1].tolist()
        lines = d.page_table.new_zeros(len(line) * width + d.page_table.shape[2])
        for row in range(len(pages)):  # what runs on comes last
            lines[row * width : row * width + width] = d.page_table[s, row, :width]
        for row, count in enumerate(pages):
            lines[row * width + width : row * width + count] = d.page_table[s, row, width:count]
        table[s, :, :width] = lines[: len(line) * width].view(len(line), width)
    return {"page_table": table}


def _from_half(d: Drafted, step: DraftStep) -> Mapping[str, Tensor]:
    """Columns are counted on from a coordinate that lags behind the number of keys."""
    assert d.out_cache_loc is not None
    table = step.req_to_token[step.request_slots].repeat_interleave(step.topk, 0)
    own = torch.arange(step.topk * step.num_steps, device=table.device).view(step.topk, -1)
    columns = (step.seq_lens // 2)[:, None, None] + own
    return {"out_cache_loc": table.gather(1, columns.flatten(0, 1)).T}


def _by_batch(right: Draft, step: DraftStep) -> Drafted:
    """The line of the token table is that of the request's number in the batch."""
    return right(replace(step, request_slots=torch.arange(len(step.seq_lens))))


def _kept(copied: Callable[[DraftStep, str, Tensor, Tensor], None]) -> Plant:
    """`copied(step, name, now, before)` undoes what was copied into one of the caches."""

    def around(right: Draft, step: DraftStep) -> Drafted:
        before = {name: getattr(step, name).clone() for name in ("k_cache", "v_cache")}
        drafted = right(step)
        for name, was in before.items():
            copied(step, name, getattr(step, name), was)
        return drafted

    return lambda backend: wrapped(backend, "draft", around)


def _none(step: DraftStep, name: str, now: Tensor, before: Tensor) -> None:
    now.copy_(before)


def _keys_alone(step: DraftStep, name: str, now: Tensor, before: Tensor) -> None:
    if name == "v_cache":
        now.copy_(before)


_DRAFTED: tuple[
    tuple[str, str, str, tuple[str, ...], tuple[Identity, Evidence], str, Plant, VerifyCase], ...
] = (
    (
        "drafts-transposed", "",
        "slots laid out by branch and step are taken as those of all branches, step by step",
        ("B006", "sgl-project/sglang#7239"), ("visibility", "declared"), "drafts-transposed",
        _rewriting(_transposed), case(request(_BRANCHED)),
    ),
    (
        "draft-position-ahead", "every-step",
        "positions are moved on before the drafter runs, and not after it",
        ("B012", "sgl-project/sglang#25015"), ("position", "declared"), "draft-position",
        _rewriting(_moved(lambda right, s: right + 1)), case(request()),
    ),
    (
        "draft-position-ahead", "later-steps",
        "positions are moved on twice after the first step",
        ("B012", "sgl-project/sglang#25015"), ("position", "declared"), "draft-position",
        _rewriting(_moved(lambda right, s: right + (s > 0).long())), case(request((-1, 0, 1))),
    ),
    (
        "draft-position-frozen", "",
        "every step of a branch stands where its first one does",
        (), ("position", "declared"), "draft-position",
        _rewriting(_moved(lambda right, s: right - s)), case(request((-1, 0, 1))),
    ),
    (
        "draft-position-tiled", "",
        "the lengths of a batch are laid one after another over all branches",
        (), ("position", "declared"), "draft-position",
        _rewriting(_tiled), case(request(FORK), request(prefix=1)),
    ),
    (
        "draft-lengths-lag", "lists",
        "the length on the host stays that of the first step, so later steps miss the last ones",
        ("B013", "Ascend/sglang#141"), ("visibility", "declared"), "draft-lengths-lag",
        _rewriting(_lists_lag), case(request((-1, 0, 1))),
    ),
    (
        "draft-lengths-lag", "pages",
        "page tables cover in every step what they cover in the first",
        ("B013", "Ascend/sglang#141"), ("visibility", "declared"), "draft-lengths-lag",
        _rewriting(_pages_lag), case(request((-1, 0, 1))),
    ),
    (
        "draft-lists-short", "spilled",
        "the buffer of lists has room for one branch, and a step's lists run on into the next's",
        ("B047", "sgl-project/sglang#27338"), ("visibility", "declared"), "draft-lists-run-on",
        _rewriting(_spilled), case(request(FORK)),
    ),
    (
        "draft-lists-short", "cut",
        "the buffer of lists has room for one branch, and the lists end outside of it",
        ("B047", "sgl-project/sglang#27460"), ("contract", "measured"), "wrong-shape",
        _rewriting(_cut), case(request(FORK)),
    ),
    (
        "draft-table-short", "",
        "pages of all steps go into lines as long as one step needs, and run on into the next",
        ("B049", "sgl-project/sglang#27360"), ("visibility", "declared"), "draft-pages-run-on",
        _rewriting(_one_line), case(request(_BRANCHED)),
    ),
    (
        "draft-slot-by-coordinate", "",
        "slots are counted on from a rotary coordinate, which lags behind the number of keys",
        ("B016", "vllm-project/vllm#54498"), ("kv", "declared"), "draft-slot-by-coordinate",
        _rewriting(_from_half), case(request(prefix=1)),
    ),
    (
        "draft-line-by-batch", "",
        "slots of a request are looked up by its number in the batch",
        ("B003", "NVIDIA/TensorRT-LLM#3456"), ("kv", "declared"), "draft-line-of-another",
        lambda backend: wrapped(backend, "draft", _by_batch), case(request()),
    ),
    (
        "draft-tail-not-copied", "at-all",
        "branches get pages of their own without the prefix keys of the last, partial page",
        ("sgl-project/sglang#7725",), ("kv", "measured"), "draft-tail-not-copied",
        _kept(_none), case(request(FORK, prefix=1), page_size=2),
    ),
    (
        "draft-tail-not-copied", "values",
        "the keys of the last, partial page are copied for each branch, and not the values",
        (), ("kv", "measured"), "draft-tail-not-copied",
        _kept(_keys_alone), case(request(FORK, prefix=1), page_size=2),
    ),
)  # fmt: skip


def _drafts(backend: Backend) -> bool:
    return "draft" in backend.stages


def _fault(
    family: str, variant: str, says: str, sources: tuple[str, ...],
    check: tuple[Identity, Evidence], cause: str, plant: Plant, smallest: VerifyCase,
) -> Fault:  # fmt: skip
    identity, evidence = check
    given: dict[str, Any] = {"family": family, "variant": variant, "says": says}
    return Fault(
        **given, sources=sources, stage="draft", identity=identity, evidence=evidence, cause=cause,
        smallest=smallest, plant=plant, applies=_drafts,
    )  # fmt: skip


FAULTS = tuple(_fault(*drafted) for drafted in _DRAFTED)
