"""What all rows must read, as tensors, equals what is said of each request in words."""

from __future__ import annotations

import pytest
import torch

from treeproof.contract.case import AttentionShape, Full, KVLayout, Request, VerifyCase, Window
from treeproof.contract.tree import CandidateTree
from treeproof.generate.orders import ROW_ORDERS, row_of_node
from treeproof.generate.topologies import TOPOLOGIES, grow
from treeproof.properties.expected import expected_reads
from treeproof.properties.scene import Scene
from treeproof.properties.wanted import columns_of, wanted, wanted_reads


def request(topology: str, nodes: int, prefix: int, pad_rows: int) -> Request:
    tree = CandidateTree(tuple(range(nodes)), grow(topology, nodes, 3, nodes))
    order = row_of_node(tree, ROW_ORDERS[-1], nodes)
    return Request(tree=tree, row_of_node=order, prefix_len=prefix, pad_rows=pad_rows)


def scene_of(window: int | None, **layout: object) -> Scene:
    names = list(TOPOLOGIES)
    requests = tuple(
        request(names[i % len(names)], nodes, prefix, pad)
        for i, (nodes, prefix, pad) in enumerate([(1, 40, 2), (23, 17, 0), (64, 16, 1), (9, 33, 5)])
    )
    visibility = Full() if window is None else Window(width=window)
    shape = AttentionShape(
        num_q_heads=2, num_kv_heads=1, head_dim=16, v_head_dim=16, visibility=visibility
    )
    given = {"page_size": 4, "num_slots": 512, "order": "shuffled", "shared_prefix": 8, **layout}
    return Scene.of(VerifyCase(requests=requests, shape=shape, layout=KVLayout(**given)))  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [None, 1, 4, 19], ids=lambda w: f"window-{w}")
@pytest.mark.parametrize("evicted", [False, True])
def test_tensors_say_of_every_row_and_slot_what_the_words_say(
    window: int | None, evicted: bool
) -> None:
    scene = scene_of(window, evicted=evicted and window is not None)
    slots = list(scene.ledger.owner)
    told = wanted_reads(scene, slots)
    counts = wanted(scene).count.tolist()

    for flat, (b, row) in enumerate(scene.rows):
        request, own = scene.case.requests[b], scene.ledger.columns[b]
        if row >= request.num_nodes:
            assert counts[flat] == 0
            assert not told[flat].any()
            continue
        reads = expected_reads(request, window)[row]
        assert counts[flat] == reads.count
        columns = {slot: column for column, slot in enumerate(own) if slot >= 0}
        read = [slot in columns and reads.has(columns[slot]) for slot in slots]
        assert told[flat].tolist() == [float(r) for r in read]


def test_a_shared_slot_has_its_own_column_in_each_request_and_a_foreign_one_none() -> None:
    scene = scene_of(None)
    shared, own = scene.ledger.columns[0][3], scene.ledger.columns[2][20]

    assert columns_of(scene, [own, shared]).tolist() == [[-1, 3], [-1, 3], [20, 3], [-1, 3]]


def test_rows_of_nodes_name_each_node_once_and_no_padding() -> None:
    scene = scene_of(None)
    nodes = [
        (b, node)
        for b, request in enumerate(scene.case.requests)
        for node in range(len(request.tree))
    ]

    places = [scene.rows[flat] for flat in scene.node_rows.tolist()]

    assert places == [(b, scene.case.requests[b].row_of_node[node]) for b, node in nodes]
    assert not torch.isin(scene.node_rows, scene.padding.nonzero()).any()
