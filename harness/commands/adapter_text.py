"""The files that `treeproof init-backend` writes, as text: an adapter and its test.

What a kernel reads of a tree (`READS`) decides which fields its adapter starts from, and what stands
in for it, in plain torch, until it is called itself.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reads:
    """The parts of an adapter in which kernels differ by how they are told the tree."""

    consumes: str
    capabilities: str
    explained: str
    """Arguments of the stand-in, as lines of a docstring."""
    arguments: str
    stand_in: str


ADAPTER = '''\
"""How treeproof calls {name}. Edit ① to ④; then: treeproof check {file}"""

import torch

import treeproof


@treeproof.register(
    "{name}",
    # The tensors of x that are read below. All others arrive as garbage.
    consumes={{
        {consumes},
    }},
    # ② What the kernel takes: cases outside are `unsupported`, and are not sent to it.
    capabilities=treeproof.Capabilities({capabilities}),
    # ③ How it rounds; the error bound follows. p: the softmax weights, before they multiply V.
    numerics=treeproof.Numerics(p="input"),
    # ④ What a launch must run, so that a silent fall-back to something else fails:
    # kernels={{"{name}*"}},
)
def attend(x, q, k, v, k_cache, v_cache):
    """One launch for B requests. Rows qo_indptr[b] to qo_indptr[b+1]-1 of T are request b's tree.

    q (T, Hq, D), k (T, Hkv, D), v (T, Hkv, Dv): the rows' own.
    k_cache (num_slots, Hkv, D), v_cache (num_slots, Hkv, Dv): what each slot holds.
{explained}
    """
    treeproof.store_kv(x, k, v, k_cache, v_cache)  # goes if the kernel itself writes k and v
    # ① Your kernel instead of the stand-in. It gives out (T, Hq, Dv) in the dtype of q, and lse
    # (T, Hq) in float32, the log-sum-exp of each row's scaled scores in natural log, or None.
    out, lse = stand_in(
        {arguments},
    )
    return treeproof.Attended(out=out, lse=lse)


# Plain torch, to be deleted once the kernel is called.
{stand_in}'''

_ONE_REQUEST = """\
        keys = k_cache[slots].float().repeat_interleave(group, 1)
        values = v_cache[slots].float().repeat_interleave(group, 1)
        scores = torch.einsum("thd,lhd->htl", q[rows].float(), keys) * scale
        scores = scores.masked_fill(~visible, float("-inf"))
        out[rows] = torch.einsum("htl,lhd->thd", scores.softmax(-1), values).to(q.dtype)
        lse[rows] = scores.logsumexp(-1).T
    return out, lse
"""

_EMPTY = """\
    out = q.new_empty(*q.shape[:2], v_cache.shape[2])
    lse = torch.empty(q.shape[:2], device=q.device)
    group = q.shape[1] // k_cache.shape[1]  # query heads that share a KV head
"""

READS = {
    "mask": Reads(
        consumes='''"qo_indptr", "kv_indptr", "kv_indices", "out_cache_loc", "custom_mask", "mask_indptr"''',
        capabilities='mask_modes={"FULL_MASK"}, windows=False',
        explained="""\
    x.kv_indices[kv_indptr[b] : kv_indptr[b+1]]: slots of b's P prefix keys, in order.
    x.out_cache_loc (T,): slot of each row's own key; -1 or a spare slot of padded rows.
    x.custom_mask[mask_indptr[b] : mask_indptr[b+1]]: bool, R rows of P prefix cells, which need not
    be set and are always visible, and then R cells of the tree.""",
        arguments="""q, k_cache, v_cache, x.qo_indptr, x.kv_indptr, x.kv_indices, x.out_cache_loc,
        x.custom_mask, x.mask_indptr, x.shape.score_scale""",
        stand_in="""\
def stand_in(
    q, k_cache, v_cache, qo_indptr, kv_indptr, kv_indices, tree_slots, mask, mask_indptr, scale
):
"""
        + _EMPTY
        + """\
    for b in range(len(qo_indptr) - 1):
        rows = slice(qo_indptr[b], qo_indptr[b + 1])
        prefix = kv_indices[kv_indptr[b] : kv_indptr[b + 1]]
        own = tree_slots[rows]
        own = torch.where(own < 0, own[0], own)  # a padded row has no slot, and nobody reads it
        slots = torch.cat([prefix, own])
        visible = mask[mask_indptr[b] : mask_indptr[b + 1]].view(-1, len(slots)).clone()
        visible[:, : len(prefix)] = True
"""
        + _ONE_REQUEST,
    ),
    "page-table": Reads(
        consumes='"qo_indptr", "page_table", "cache_seqlens", "out_cache_loc", "custom_mask", "mask_indptr"',
        capabilities='mask_modes={"QLEN_ONLY"}, windows=False, page_sizes={1, 16, 64}',
        explained="""\
    x.page_table (B, pages), x.cache_seqlens (B,): pages of the P prefix keys; page p is the slots
    p * page_size to (p + 1) * page_size - 1. Cells past a request's length name no page of it.
    x.out_cache_loc (T,): slot of each row's own key; -1 or a spare slot of padded rows.
    x.custom_mask[mask_indptr[b] : mask_indptr[b+1]]: bool, R rows of R cells of the tree.""",
        arguments="""q, k_cache, v_cache, x.qo_indptr, x.page_table, x.cache_seqlens, x.out_cache_loc,
        x.custom_mask, x.mask_indptr, x.kv.page_size, x.shape.score_scale""",
        stand_in="""\
def stand_in(
    q, k_cache, v_cache, qo_indptr, page_table, lengths, tree_slots, mask, mask_indptr, page, scale
):
"""
        + _EMPTY
        + """\
    for b in range(len(qo_indptr) - 1):
        rows = slice(qo_indptr[b], qo_indptr[b + 1])
        column = torch.arange(int(lengths[b]), device=q.device)
        prefix = page_table[b, column // page] * page + column % page
        own = tree_slots[rows]
        own = torch.where(own < 0, own[0], own)  # a padded row has no slot, and nobody reads it
        slots = torch.cat([prefix, own])
        tree = mask[mask_indptr[b] : mask_indptr[b + 1]].view(len(own), -1)
        visible = torch.nn.functional.pad(tree, (len(prefix), 0), value=True)
"""
        + _ONE_REQUEST,
    ),
    "row-lists": Reads(
        consumes='"qo_indptr", "kv_indptr", "kv_indices", "out_cache_loc", "retrieve_parent_token"',
        capabilities="windows=False",
        explained="""\
    x.kv_indices[kv_indptr[b] : kv_indptr[b+1]]: slots of b's P prefix keys, in order.
    x.out_cache_loc (T,): slot of each row's own key; -1 or a spare slot of padded rows.
    x.retrieve_parent_token (B, Nmax): each row's parent, a row of b's tree; -1 above the root.""",
        arguments="q, k_cache, v_cache, *lists_of_rows(x), x.shape.score_scale",
        stand_in="""\
def stand_in(q, k_cache, v_cache, bounds, slots, scale):
"""
        + _EMPTY
        + '''\
    for row in range(len(q)):
        own = slots[bounds[row] : bounds[row + 1]]
        keys = k_cache[own].float().repeat_interleave(group, 1)
        values = v_cache[own].float().repeat_interleave(group, 1)
        scores = torch.einsum("hd,lhd->hl", q[row].float(), keys) * scale
        out[row] = torch.einsum("hl,lhd->hd", scores.softmax(-1), values).to(q.dtype)
        lse[row] = scores.logsumexp(-1)
    return out, lse


def lists_of_rows(x):
    """Bounds (T+1,) and slots: of each row its prefix, its ancestors from the root on, itself."""
    bounds, slots = [0], []
    for b, parents in enumerate(x.retrieve_parent_token.tolist()):
        first, end = x.qo_indptr[b : b + 2].tolist()
        prefix = x.kv_indices[x.kv_indptr[b] : x.kv_indptr[b + 1]].tolist()
        tree = x.out_cache_loc[first:end].tolist()
        for row in range(end - first):
            path = [row]
            while parents[path[0]] >= 0:
                path.insert(0, parents[path[0]])
            slots += prefix + [tree[i] for i in path]
            bounds.append(len(slots))
    return torch.tensor(bounds), torch.tensor(slots, device=x.kv_indices.device)
''',
    ),
}

TEST = '''\
"""{name} under pytest, one item a group of shapes: pytest {test}"""

from pathlib import Path

import treeproof

test_{module} = treeproof.make_tests(Path(__file__).with_name("{file}"))
'''
