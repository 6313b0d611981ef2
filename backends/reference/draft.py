"""Layout of a drafting phase: slots, positions, lists and page tables of every step; page tails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from treeproof.backends.reference.used import note
from treeproof.contract.drafting import Drafted, DraftStep


def draft(step: DraftStep) -> Drafted:
    """Every field of `Drafted`; copies page tails in the caches, in place.

    Where there is one branch, or a page is one slot, branch t takes columns P + t*S to P + t*S + S - 1.
    Else it takes whole pages behind the prefix's whole ones, and begins where the prefix ends in its
    last page: branch 0's first page is that very page, the others get a copy of what it holds. Lists
    name the prefix keys where they are, page tables name the copies.
    """
    note("draft")
    branches = _branches(step)
    _copy_tails(step, branches)
    steps, device = range(step.num_steps), step.seq_lens.device
    lists = [[torch.cat((b.prefix, b.own[: s + 1])) for b in branches] for s in steps]
    bounds = [[0, *accumulate(map(len, line))] for line in lists]
    return Drafted(
        positions=torch.tensor([[b.length + s for b in branches] for s in steps], device=device),
        out_cache_loc=torch.stack([b.own for b in branches], dim=1),
        kv_indptr=torch.tensor(bounds, device=device),
        kv_indices=_padded([torch.cat(line) for line in lists]),
        page_table=_padded([b.pages for b in branches]).expand(len(steps), -1, -1).clone(),
        cache_seqlens=torch.tensor(
            [[b.length + s + 1 for b in branches] for s in steps], device=device
        ),
    )


@dataclass(frozen=True)
class _Branch:
    """One branch of one request, in slots; `tail` and `copy` are those of the last, partial page."""

    length: int  # P
    prefix: Tensor  # (P,)
    own: Tensor  # (S,)
    pages: Tensor  # page ids
    tail: Tensor
    copy: Tensor  # the same number of slots in its own first page


def _branches(step: DraftStep) -> list[_Branch]:
    found = []
    for row, prefix in zip(step.request_slots.tolist(), step.seq_lens.tolist(), strict=True):
        line = step.req_to_token[row]
        found += [_branch(line, prefix, t, step) for t in range(step.topk)]
    return found


def _branch(line: Tensor, prefix: int, t: int, step: DraftStep) -> _Branch:
    """Branch t of a request with this line of the token table."""
    page, steps = step.kv.page_size, step.num_steps
    tail = prefix % page
    whole = prefix - tail
    pages = -(-(tail + steps) // page)
    stride = steps if page == 1 or step.topk == 1 else pages * page
    home = whole + t * stride  # column of its first page
    return _Branch(
        length=prefix,
        prefix=line[:prefix],
        own=line[home + tail : home + tail + steps],
        pages=torch.cat((line[:whole:page], line[home : home + pages * page : page])) // page,
        tail=line[whole:prefix],
        copy=line[home : home + tail],
    )


def _copy_tails(step: DraftStep, branches: Sequence[_Branch]) -> None:
    sources = torch.cat([b.tail for b in branches])
    targets = torch.cat([b.copy for b in branches])
    for cache in (step.k_cache, step.v_cache):
        cache[targets] = cache[sources]


def _padded(lines: Sequence[Tensor]) -> Tensor:
    """One line under the other, as wide as the widest."""
    return torch.nn.utils.rnn.pad_sequence(list(lines), batch_first=True)
