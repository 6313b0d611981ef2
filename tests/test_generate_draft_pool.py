"""The draft pool, selected from in plain Python."""

import random

import pytest

from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.tree import CandidateTree
from treeproof.generate.draft_pool import draft_pool


def any_tree(rng, nodes):
    back = rng.choice([1, 2, 5, nodes])
    parents = (-1, *(rng.randrange(max(0, i - back), i) for i in range(1, nodes)))
    return CandidateTree(tuple(rng.sample(range(10_000), nodes)), parents)


def pool_for(*trees):
    requests = tuple(
        Request(tree=tree, row_of_node=tuple(range(len(tree))), prefix_len=0) for tree in trees
    )
    shape = AttentionShape(num_q_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16)
    layout = KVLayout(page_size=1, num_slots=8192)
    return draft_pool(VerifyCase(requests=requests, shape=shape, layout=layout))


def best(scores, count):
    return sorted(range(len(scores)), key=lambda s: -scores[s])[:count]


def token_paths(selected, tokens, parents, topk):
    """Token path of each selected candidate; None where an ancestor is not selected."""
    found = set()
    for s in selected:
        path = [tokens[s]]
        while s // topk:
            s = parents[s // topk]
            path.insert(0, tokens[s] if s in selected else None)
        found.add(tuple(path))
    return found


def drawn_paths(tree):
    def path(node):
        return () if node == 0 else (*path(tree.parents[node]), tree.tokens[node])

    return {path(node) for node in range(1, len(tree))}


@pytest.mark.parametrize("seed", range(40))
def test_the_highest_scores_are_the_tree(seed):
    rng = random.Random(seed)
    trees = [any_tree(rng, rng.choice([1, 2, 5, 17, 64])) for _ in range(rng.randint(1, 3))]
    pool = pool_for(*trees)
    for b, tree in enumerate(trees):
        scores, tokens = pool.scores[b].tolist(), pool.tokens[b].tolist()
        selected = set(best(scores, len(tree) - 1))
        assert token_paths(selected, tokens, pool.parents[b].tolist(), pool.topk) == drawn_paths(
            tree
        )
        others = [score for s, score in enumerate(scores) if s not in selected]
        assert max(others, default=0) < 0.5 < min([scores[s] for s in selected], default=1)


def test_one_candidate_more_is_not_the_tree():
    tree = any_tree(random.Random(3), 17)
    pool = pool_for(tree)
    selected = set(best(pool.scores[0].tolist(), 17))
    found = token_paths(selected, pool.tokens[0].tolist(), pool.parents[0].tolist(), pool.topk)
    assert found > drawn_paths(tree)


@pytest.mark.parametrize("seed", range(10))
def test_the_pool_is_one_that_a_draft_phase_leaves(seed):
    rng = random.Random(seed)
    pool = pool_for(any_tree(rng, 40), any_tree(rng, 9))
    k, steps = pool.topk, pool.spec_steps
    assert pool.scores.shape == pool.tokens.shape == (2, k + (steps - 1) * k * k)
    assert pool.parents.shape == (2, k * steps + 1)
    for b in range(2):
        scores, tokens = pool.scores[b].tolist(), pool.tokens[b].tolist()
        parents = pool.parents[b].tolist()
        assert parents[: k + 1] == list(range(-1, k))
        for level in range(1, steps):
            start = k + k * k * (level - 1)
            block = scores[start : start + k * k]
            beams = parents[1 + k * level : 1 + k * (level + 1)]
            assert [scores[s] for s in beams] == sorted(block, reverse=True)[:k]
            assert all(start <= s < start + k * k for s in beams)
            for r in range(k):
                siblings = range(start + r * k, start + (r + 1) * k)
                above = scores[parents[1 + k * (level - 1) + r]]
                assert all(scores[s] < above for s in siblings)
                ordered = [scores[s] for s in siblings]
                assert ordered == sorted(ordered, reverse=True)
                assert len({tokens[s] for s in siblings}) == k


def test_a_root_alone_selects_nothing_from_its_pool():
    pool = pool_for(CandidateTree((7,), (-1,)))
    assert (pool.topk, pool.spec_steps) == (1, 1)
    assert pool.scores.tolist() == [[0.25]]
    assert pool.parents.tolist() == [[-1, 0]]
