"""Masks to links and links to masks: two routes through what a build declares, which must agree."""

import random
from dataclasses import fields

import numpy as np
import pytest

from treeproof.contract.ledger import SlotLedger
from treeproof.contract.registry import load
from treeproof.engine.checks.copies import copied
from treeproof.faults.catalog import named
from treeproof.faults.smallest import case, request
from treeproof.generate.pool import candidates
from treeproof.properties.declared import closures, declarations
from treeproof.properties.scene import Scene
from treeproof.properties.tables import recover_closure
from treeproof.properties.traversal import recover_links

LINKS = ("retrieve_next_token", "retrieve_next_sibling", "retrieve_parent_token")


def links_of_mask(block):
    """(next_token, next_sibling, depth) of rows in topological order, as SGLang's n-gram drafter finds
    them: a row's parent is the last row before it that it sees, its first child the first row that sees
    it and its next sibling the next row with the same parent."""
    rows = range(len(block))
    parent = [max((j for j in range(i) if block[i][j]), default=-1) for i in rows]
    child = [next((j for j in rows if j > i and block[j][i]), -1) for i in rows]
    sibling = [next((j for j in rows if j > i > 0 and parent[j] == parent[i]), -1) for i in rows]
    return child, sibling, [sum(map(int, line)) - 1 for line in block]


@pytest.mark.parametrize(
    ("block", "child", "sibling", "depth"),
    [
        (
            [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]],
            [1, -1, 3, -1], [-1, 2, -1, -1], [0, 1, 1, 2],
        ),
        (
            [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]],
            [1, 2, 3, -1], [-1, -1, -1, -1], [0, 1, 2, 3],
        ),
    ],
)  # fmt: skip
def test_links_of_a_tree_and_of_a_chain_are_those_recorded_of_sglang(block, child, sibling, depth):
    assert links_of_mask(block) == (child, sibling, depth)


def drawn(seed):
    """Three requests of one row to twenty, parents before children, and one padded row."""
    rng = random.Random(seed)

    def tree(nodes):
        back = rng.choice([1, 2, nodes])
        return [-1, *(rng.randrange(max(0, i - back), i) for i in range(1, nodes))]

    drawn = [request(tree(n), rng.randrange(9)) for n in (1, rng.randint(2, 8), 20)]
    drawn[1] = request(drawn[1].tree.parents, drawn[1].prefix_len, pad_rows=1)
    return case(*drawn, page_size=rng.choice([1, 4]), head_dims=(16, 16))


def both_ways(backend, checked):
    """(links that a form of table gives, links declared), and (closure of the links, its own)."""
    scene = Scene.of(checked)
    x = backend.make().build(copied(candidates(checked, SlotLedger.of(checked))))
    built = {f.name: getattr(x, f.name) for f in fields(x) if getattr(x, f.name) is not None}
    read = {name: table for name, table in built.items() if name not in LINKS}
    nodes = [r.num_nodes for r in checked.requests]
    child, sibling = x.retrieve_next_token.tolist(), x.retrieve_next_sibling.tolist()
    parents = recover_links(child, sibling, nodes)
    links, masks = [], []
    for declared in declarations(scene, read, checked.mask.mode):
        for b, block in enumerate(closures(declared, scene)):
            n, first = nodes[b], checked.qo_indptr[b]
            position = x.positions[first : first + n] - x.seq_lens[b]
            found = links_of_mask(block.tolist())
            links.append((found, (child[b][:n], sibling[b][:n], position.tolist())))
            masks.append((recover_closure(parents[b][:n]), block))
    return links, masks


BUILDS = ("reference", "direct-mask", "page-table", "swa-window", "cascade")


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.long) for s in (1, 2))])
@pytest.mark.parametrize("name", BUILDS)
def test_both_routes_through_what_a_build_declares_agree(name, seed):
    links, masks = both_ways(load(name), drawn(seed))

    assert len(links) >= 3  # a form of table, and three requests
    for of_mask, declared in links:
        assert of_mask == declared
    for of_links, block in masks:
        assert np.array_equal(of_links, block)


@pytest.mark.parametrize("fault", ["last-sibling-linked.zero", "sibling-lost.middle"])
def test_routes_part_where_links_are_wrong_and_masks_are_right(fault):
    (planted,) = named((fault,))
    links, _ = both_ways(planted.into(load("direct-mask")), case(request([-1, 0, 0, 0, 1], 2)))

    assert any(of_mask != declared for of_mask, declared in links)
