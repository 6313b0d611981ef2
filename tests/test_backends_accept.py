"""Acceptance and commit of the five backends, against walks over the drawn tree."""

from dataclasses import replace

import pytest
import torch
from backend_scene import BACKENDS, SITUATIONS, Scene

from treeproof.backends.cascade import merge
from treeproof.contract.inputs import Accepted
from treeproof.contract.registry import load

LABELS = [
    "ragged-batch",
    "full-mask",
    "bit-packed-wide",
    "padded-rows",
    "padded-rows-without-a-slot",
    "root-alone",
    "window-of-one",
    "evicted-pages",
    "evicted-pages-holding-minus-one",
]
BONUS = 3_000_000


def steer(scene, targets):
    """Predictions (T,) that accept exactly the path to `targets[b]`; garbage on all other rows."""
    predicted = [BONUS + 7] * scene.case.num_rows
    for b, request in enumerate(scene.case.requests):
        first, node = scene.case.qo_indptr[b], targets[b]
        predicted[first + request.row_of_node[node]] = BONUS + b
        while node > 0:
            parent = request.tree.parents[node]
            predicted[first + request.row_of_node[parent]] = request.tree.tokens[node]
            node = parent
    return torch.tensor(predicted)


def expected(scene, targets):
    """(accept_index, tokens) rows, from the tree alone."""
    width = max(max(r.tree.depth) for r in scene.case.requests) + 1
    width = max(width, 2)  # one step at least is drafted
    index, tokens = [], []
    for b, request in enumerate(scene.case.requests):
        path, node = [], targets[b]
        while node >= 0:
            path.insert(0, node)
            node = request.tree.parents[node]
        rows = [scene.case.qo_indptr[b] + request.row_of_node[n] for n in path]
        words = [*(request.tree.tokens[n] for n in path[1:]), BONUS + b]
        index.append(rows + [-1] * (width - len(rows)))
        tokens.append(words + [-1] * (width - len(words)))
    return index, tokens


def rounds(scene):
    """Targets such that every node of every request is accepted once."""
    most = max(r.num_nodes for r in scene.case.requests)
    for turn in range(most):
        yield [(turn + b) % r.num_nodes for b, r in enumerate(scene.case.requests)]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("label", LABELS)
def test_every_node_can_be_accepted_and_emits_its_path(name, label):
    scene, backend = Scene(SITUATIONS[label]), load(name).make()
    x = backend.build(scene.candidates())
    for targets in rounds(scene):
        a = backend.accept(x, steer(scene, targets))
        index, tokens = expected(scene, targets)
        assert a.accept_index.tolist() == index, targets
        assert a.tokens.tolist() == tokens, targets
        assert a.accept_len.tolist() == [sum(row >= 0 for row in path) for path in index]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("label", LABELS)
def test_commit_leaves_the_accepted_path_in_the_first_columns(name, label):
    scene, backend = Scene(SITUATIONS[label]), load(name).make()
    x = backend.build(scene.candidates())
    slots = torch.arange(scene.case.layout.num_slots, dtype=torch.float32)
    for targets in rounds(scene):
        accepted = backend.accept(x, steer(scene, targets))
        k = slots[:, None, None].repeat(1, 2, 3)
        v = -slots[:, None, None].repeat(1, 1, 5)
        done = backend.commit(x, accepted, k, v)
        held = slots.tolist()
        index, _ = expected(scene, targets)
        for b, path in enumerate(index):
            homes = scene.ledger.row_slots(b)
            rows = [row - scene.case.qo_indptr[b] for row in path if row >= 0]
            for column, row in enumerate(rows):
                held[homes[column]] = float(homes[row])
        assert k[:, 0, 0].tolist() == held
        assert torch.equal(k, torch.tensor(held)[:, None, None].expand_as(k))
        assert torch.equal(v, -torch.tensor(held)[:, None, None].expand_as(v))
        lengths = [sum(row >= 0 for row in path) for path in index]
        prefixes = [r.prefix_len for r in scene.case.requests]
        assert done.seq_lens.tolist() == [p + n for p, n in zip(prefixes, lengths, strict=True)]
        assert done.next_root.tolist() == [BONUS + b for b in range(len(prefixes))]


@pytest.mark.parametrize("name", BACKENDS)
def test_moves_that_overlap_read_before_they_write(name):
    # Rows in reverse: the path climbs through slots that are targets of later rows.
    scene, backend = Scene(SITUATIONS["one-deep-tree"]), load(name).make()
    x = backend.build(scene.candidates())
    width = x.spec_steps + 1
    rows = [0, 2, 3, 4, 6, 7, 11][:width]
    index = torch.tensor([rows + [-1] * (width - len(rows))])
    tokens = torch.where(index >= 0, index + 500, -1)
    k = torch.arange(512.0)[:, None, None].repeat(1, 2, 2)
    homes = scene.ledger.row_slots(0)
    accepted = Accepted(accept_index=index, accept_len=torch.tensor([len(rows)]), tokens=tokens)
    backend.commit(x, accepted, k, k.clone())
    assert [k[homes[j], 0, 0].item() for j in range(len(rows))] == [homes[row] for row in rows]


@pytest.mark.parametrize("name", BACKENDS)
def test_no_more_rows_are_accepted_than_steps(name):
    scene, backend = Scene(SITUATIONS["one-deep-tree"]), load(name).make()
    x = replace(backend.build(scene.candidates()), spec_steps=2)
    deepest = 7
    a = backend.accept(x, steer(scene, [deepest]))
    full, _ = expected(scene, [deepest])
    assert a.accept_index.tolist() == [full[0][:3]]
    assert a.accept_len.tolist() == [3]


MASKS = [
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]],
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]],
]
"""SGLang's recorded mask -> links pair: a tree (parents -1 0 0 2) and a chain."""


@pytest.mark.parametrize(
    ("predicted", "index"),
    [
        ([12, 0, 13, 0, 21, 22, 23, 0], [[0, 2, 3, -1], [4, 5, 6, 7]]),
        ([11, 13, 0, 0, 21, 9, 23, 0], [[0, 1, -1, -1], [4, 5, -1, -1]]),
        ([13, 0, 0, 0, 22, 0, 0, 0], [[0, -1, -1, -1], [4, -1, -1, -1]]),
    ],
)
def test_direct_mask_walks_the_tree_that_a_recorded_mask_says(predicted, index):
    scene = Scene(replace(SITUATIONS["full-mask"], trees=(((-1,), (0,)),) * 2, prefixes=(12, 5), pads=(3, 3)))  # fmt: skip
    backend = load("direct-mask").make()
    x = replace(
        backend.build(scene.candidates()),
        spec_steps=3,
        draft_token=torch.tensor([10, 11, 12, 13, 20, 21, 22, 23]),
    )
    mask = torch.tensor(MASKS, dtype=torch.bool)
    for b, prefix in enumerate((12, 5)):
        start = x.mask_indptr[b]
        x.custom_mask[start : start + 4 * (prefix + 4)].view(4, -1)[:, prefix:] = mask[b]
    assert backend.accept(x, torch.tensor(predicted)).accept_index.tolist() == index


def test_the_scalar_merge_weighs_by_mass_and_does_not_average():
    # Z = 3 with output 2 and Z = 1 with output 10 give 4, where a mean gives 6.
    out, lse = merge(
        torch.tensor([2.0]), torch.tensor(3.0).log(), torch.tensor([10.0]), torch.tensor(1.0).log()
    )
    assert out.item() == pytest.approx(4.0)
    assert lse.exp().item() == pytest.approx(4.0)


def test_merging_with_nothing_changes_nothing_and_two_nothings_are_defined():
    nothing = torch.tensor(float("-inf"))
    out, lse = merge(torch.tensor([0.0]), nothing, torch.tensor([10.0]), torch.tensor(2.5))
    assert (out.item(), lse.item()) == (10.0, 2.5)
    out, lse = merge(torch.tensor([10.0]), torch.tensor(2.5), torch.tensor([0.0]), nothing)
    assert (out.item(), lse.item()) == (10.0, 2.5)
    out, lse = merge(torch.tensor([7.0]), nothing, torch.tensor([9.0]), nothing)
    assert (out.item(), lse.item()) == (0.0, float("-inf"))


def test_merging_large_masses_does_not_overflow():
    out, lse = merge(
        torch.tensor([1.0]), torch.tensor(5000.0), torch.tensor([3.0]), torch.tensor(5000.0)
    )
    assert out.item() == pytest.approx(2.0)
    assert lse.item() == pytest.approx(5000.6931, abs=1e-3)
