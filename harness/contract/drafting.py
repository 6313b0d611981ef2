"""What a drafting phase lays out before the drafter runs. Tensors throughout; torch is not imported here.

Symbols as in `inputs`, and: S drafting steps; k branches a request; a branch-row j = b*k + t is branch
t of request b. All integer tensors are int64 or int32; `DraftStep` holds int64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from treeproof.contract.layout import KVLayout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DraftStep:
    """A drafting phase that is about to begin: the input of `draft`.

    In step s every branch runs the drafter on one token, whose K and V take a slot of the request's
    own behind its prefix. The bonus, the root of the tree to come, is not inside `seq_lens`.
    """

    seq_lens: Tensor
    """(B,) P_b: columns [0, P_b) hold keys and values."""
    request_slots: Tensor
    """(B,) row of each request in `req_to_token`."""
    req_to_token: Tensor
    """(request slots, columns) slot of each logical column; `columns_to_draft` of them are the
    request's own."""
    k_cache: Tensor
    """(num_slots, Hkv, D), the drafter's, or as `kv.storage` says. Written in place: page tails."""
    v_cache: Tensor
    """(num_slots, Hkv, Dv), the same."""
    topk: int
    num_steps: int
    kv: KVLayout


@dataclass(frozen=True)
class Drafted:
    """What `draft` returns. None: not made by this stage.

    A table says what each branch reads in each step: the P_b prefix keys in logical order and then the
    s + 1 keys of its own steps up to this one. Lists of slots and page tables are two forms of it. A
    page table whose pages are a branch's own names copies of the prefix keys in the last, partial page:
    the stage has then written those copies.
    """

    positions: Tensor | None = None
    """(S, B*k) position of each branch's token: P_b + s."""
    out_cache_loc: Tensor | None = None
    """(S, B*k) slot of each branch's token."""
    kv_indptr: Tensor | None = None
    """(S, B*k + 1) list bounds in `kv_indices`, step by step."""
    kv_indices: Tensor | None = None
    """(S, any width) slots; cells from `kv_indptr[s, -1]` on are free."""
    page_table: Tensor | None = None
    """(S, B*k, any width) page ids in logical order; cells past a branch's length are free."""
    cache_seqlens: Tensor | None = None
    """(S, B*k) keys that the table covers: P_b + s + 1."""


def columns_to_draft(prefix_len: int, topk: int, num_steps: int, page_size: int) -> int:
    """Logical columns that a request holds while it drafts, its prefix included.

    A branch needs `num_steps` of them. In pages of more than one slot several branches need whole
    pages of their own, each with room for the prefix keys of the last, partial page.
    """
    if page_size == 1 or topk == 1:
        return prefix_len + topk * num_steps
    tail = prefix_len % page_size
    return prefix_len - tail + topk * -(-(tail + num_steps) // page_size) * page_size


@dataclass(frozen=True)
class Extended:
    """What `extend` returns: what the drafter runs on before it drafts again. None: not made.

    It runs on the path that was accepted, so that its keys there are those of verified tokens. Entry j
    of request b pairs the target's hidden state of the j-th accepted row with the token emitted after
    it; entries from `accept_len[b]` on are free.
    """

    tokens: Tensor | None = None
    """(B, S+1) the tokens emitted, the bonus last."""
    hidden: Tensor | None = None
    """(B, S+1, H) hidden states of the accepted rows, as they were handed in."""
    positions: Tensor | None = None
    """(B, S+1) P_b + j, P_b being the boundary before the path was accepted."""
    out_cache_loc: Tensor | None = None
    """(B, S+1) slot of column P_b + j, where the drafter's key of entry j goes."""
