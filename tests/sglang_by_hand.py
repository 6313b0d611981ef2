"""Runs in a process of its own: known answers from SGLang's functions, called as its engine calls them."""

import json

import torch
from hand_candidates import TRACE, candidates, tree_block

from treeproof.backends.adapters import sglang_commit, sglang_loader, sglang_tree
from treeproof.backends.adapters.sglang_merge import SglangMerge


def listed(tensors):
    return [t.tolist() for t in tensors]


def trace():
    """The recorded candidates through the builder."""
    x = sglang_tree.SglangTree().build(candidates(**TRACE))
    tables = x.retrieve_index, x.retrieve_next_token, x.retrieve_next_sibling
    return [*listed([x.positions, *tables, x.draft_token]), [tree_block(x, b) for b in (0, 1)]]


def certain(k=2, steps=3):
    """Scores and parents that drafting leaves where each step after the first is certain."""
    functions = sglang_loader.load(sglang_commit.MOVING, "xpu", sglang_commit.WITHOUT)
    p, index, scores = torch.full((1, k), 1 / k), torch.arange(k)[None], None
    found = []
    for step in range(steps):
        _, _, scores, info = functions.select_top_k_tokens(step, p, index, None, scores, k)
        found.append(info)
        p = torch.eye(k)[:1].expand(k, k).contiguous()
        index = torch.arange(k).expand(k, k).contiguous()
    pool = torch.cat([s.flatten(1) for s, *_ in found], dim=1)
    return pool.tolist(), [sorted(parents[0].tolist()) for *_, parents in found]


def merged():
    """Masses 3 to 1 of 2 and 10."""
    out = [torch.full((1, 1, 16), value) for value in (2.0, 10.0)]
    lse = [torch.tensor([[mass]]).log() for mass in (3.0, 1.0)]
    value, total = SglangMerge().merge(out[0], lse[0], out[1], lse[1])
    return value.flatten()[0].item(), total.exp().item()


print(json.dumps({"trace": trace(), "certain": certain(), "merged": merged()}))
