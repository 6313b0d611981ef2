"""What passes between the stages of a verify step. Tensors throughout; torch is not imported here.

Symbols: B requests; R_b rows of request b, padded ones included; T = sum of R_b; Nmax = max R_b;
P_b the KV-ready prefix length; k = topk; S = spec_steps. Field names are SGLang's where it has one.
All integer tensors are int64 unless said otherwise; -1 means none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from treeproof.contract.case import AttentionShape, KVLayout, MaskMode

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class DraftPool:
    """All candidates of a drafting phase, before selection; uniform over the batch.

    Pool index s < k is a depth-1 candidate; level i >= 1 holds `k + k*k*(i-1) + r*k + c` where r is
    the parent's beam slot and c the child's rank.
    """

    scores: Tensor
    """(B, k + (S-1)*k*k) float32: cumulative path scores."""
    tokens: Tensor
    """(B, k + (S-1)*k*k)."""
    parents: Tensor
    """(B, k*S + 1): -1, then 0..k-1, then the pool index behind each beam slot of each later level."""
    topk: int
    spec_steps: int
    hot_token_id: Tensor | None = None
    """(draft vocabulary,) the target's id of each of the drafter's, which `tokens` then holds; None:
    they have one vocabulary."""


@dataclass(frozen=True)
class Candidates:
    """Selected candidates and where their KV may go: the input of `build`.

    Row j >= 1 of request b is pool candidate `selected_index[b, j-1]`. Its parent is found through
    `parent_list[b, selected_index // k]`, the pool index of the parent, which is below its children's;
    0 <= selected_index < k means a child of the root.

    A selection may be no tree: a parent was not selected, two rows are each other's. A build refuses
    it (ValueError, AssertionError, RuntimeError) or keeps what is wrong inside that request; it comes
    back in any case.
    """

    bonus_tokens: Tensor
    """(B,) root token of each request: last round's bonus."""
    parent_list: Tensor
    """(B, k*(S-1) + 1), or (B, 0) where S == 1. Cells that no selected candidate reaches are free."""
    selected_index: Tensor
    """(B, Nmax-1) pool indices in row order; -1 for rows that are padding."""
    draft_token: Tensor
    """(B, Nmax-1) tokens in row order, the root not included; -1 for padding."""
    num_rows: Tensor
    """(B,) R_b: rows of each request, padded ones included."""
    num_nodes: Tensor
    """(B,) N_b: real rows, root included; rows N_b to R_b - 1 are padding."""
    seq_lens: Tensor
    """(B,) P_b."""
    request_slots: Tensor
    """(B,) row of each request in `req_to_token`."""
    req_to_token: Tensor
    """(request slots, columns) slot of each logical column."""
    topk: int
    spec_steps: int
    shape: AttentionShape
    kv: KVLayout
    mask_mode: MaskMode
    mask_buffer: Tensor
    """Flat, bool or the item type of a bit-packed mask; full of garbage, possibly too long."""
    fill_prefix_mask: bool
    """False: prefix cells of a FULL_MASK may be left as they are, and must not be read."""


@dataclass(frozen=True)
class VerifyInput:
    """Everything `attend`, `accept` and `commit` may look at. None: this field was not built."""

    draft_token: Tensor
    """(T,) token of each row."""
    positions: Tensor
    """(T,) logical index of each row, P + depth; 0 on padding."""
    seq_lens: Tensor
    """(B,) P_b; the root is not inside."""
    qo_indptr: Tensor
    """(B+1,) first row of each request; qo_indptr[-1] == T."""
    out_cache_loc: Tensor
    """(T,) slot each row's K and V are written to; the pad slot or -1 on padding."""
    request_slots: Tensor
    """(B,) row of each request in `req_to_token`."""
    req_to_token: Tensor
    """(request slots, columns) slot of each logical column."""
    topk: int
    spec_steps: int
    """Depth of the deepest candidate; accept_index is spec_steps + 1 wide."""
    shape: AttentionShape
    kv: KVLayout
    custom_mask: Tensor | None = None
    """Flat. FULL_MASK: R_b x (P_b + R_b) cells a request; QLEN_ONLY: R_b x R_b; bit-packed: one
    little-endian item a row, bit j is column j. True: visible."""
    mask_indptr: Tensor | None = None
    """(B+1,) first cell (or item) of each request in `custom_mask`."""
    mask_mode: MaskMode | None = None
    retrieve_index: Tensor | None = None
    """(B, Nmax) batch-global row of each row; -1 past N_b."""
    retrieve_next_token: Tensor | None = None
    """(B, Nmax) local row of the first child; -1 none."""
    retrieve_next_sibling: Tensor | None = None
    """(B, Nmax) local row of the next sibling; -1 none."""
    retrieve_parent_token: Tensor | None = None
    """(B, Nmax) local row of the parent; -1 on the root and on padding."""
    kv_indptr: Tensor | None = None
    """(B+1,) or (T+1,): list bounds in `kv_indices`, one list a request or one a row."""
    kv_indices: Tensor | None = None
    """(kv_indptr[-1],) slots in logical order."""
    kv_start: Tensor | None = None
    """(T,) first entry of each row's list inside the sliding window, counted from the list's start."""
    page_table: Tensor | None = None
    """(B, pages): page ids in logical order; or (T, keys): slots, a line a row (page size 1)."""
    cache_seqlens: Tensor | None = None
    """(B,) or (T,): keys that the table of the same height covers."""
    sinks: Tensor | None = None
    alibi_slopes: Tensor | None = None
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    """As in `LayerParameters`. The harness lays them in after `build`, which need not know them."""


@dataclass(frozen=True)
class LayerParameters:
    """What a layer holds beside its activations, all float32; None where the shape has no such thing.

    The fields of `VerifyInput` with the same names.
    """

    sinks: Tensor | None = None
    """(Hq,) a logit that joins the softmax's denominator only."""
    alibi_slopes: Tensor | None = None
    """(Hq,) the bias of a key is -slope times its distance in logical indices."""
    k_scale: Tensor | None = None
    """(Hkv,) what the codes of a quantised K cache are multiplied by."""
    v_scale: Tensor | None = None
    """(Hkv,) the same of the V cache."""


LAYER_FIELDS: tuple[str, ...] = tuple(f.name for f in fields(LayerParameters))
"""Fields of `VerifyInput` that no builder makes."""

TENSOR_FIELDS: tuple[str, ...] = tuple(
    f.name
    for f in fields(VerifyInput)
    if f.name not in {"topk", "spec_steps", "shape", "kv", "mask_mode"}
)
"""Fields a backend may name in `consumes`; those it does not name reach it as garbage."""


@dataclass(frozen=True)
class Attended:
    """What `attend` returns.

    `out` (T, Hq, Dv) in the case's dtype; `lse` (T, Hq) float32 or None, in the base and with or
    without the sink as `Capabilities` say (natural log of the keys alone unless they say otherwise).
    `declared` maps names of `VerifyInput` fields to the tensors actually launched.
    """

    out: Tensor
    lse: Tensor | None = None
    declared: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Accepted:
    """What `accept` returns.

    `accept_index` (B, S+1): batch-global rows on the accepted path, the root first, -1 padded.
    `accept_len` (B,): rows accepted, the root included (= accepted drafts + 1).
    `tokens` (B, S+1): emitted tokens [D1, ..., Dm, bonus], -1 padded.
    """

    accept_index: Tensor
    accept_len: Tensor
    tokens: Tensor


@dataclass(frozen=True)
class Committed:
    """What `commit` returns; the caches are compacted in place.

    `seq_lens` (B,): the new KV-ready boundary, P + accept_len.
    `next_root` (B,): the bonus token, next round's root, which has no KV yet.
    """

    seq_lens: Tensor
    next_root: Tensor


@dataclass(frozen=True)
class Selected:
    """What `select` returns: see `Candidates` for the fields."""

    parent_list: Tensor
    selected_index: Tensor
    draft_token: Tensor
