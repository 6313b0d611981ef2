"""Negative controls: one wrong entry in a backend's own representation, and the comparison fails."""

from dataclasses import replace

import pytest
import torch
from backend_scene import SITUATIONS, Scene

from treeproof.contract.registry import load

# In the first tree of "ragged-batch" rows [0, 5, 2, 1, 6, 3, 4] hold nodes 0 to 6 of parents
# [-1, 0, 0, 1, 2, 1, 4]: row 1 reads rows 0, 5 and itself, row 2 is its uncle.


def put(*places):
    """A tensor with new values at some places."""

    def plant(x, tensor):
        changed = tensor.clone()
        for place, value in places:
            changed[place] = value(x) if callable(value) else value
        return changed

    return plant


def flipped(byte, bit):
    def plant(x, tensor):
        changed = tensor.clone()
        changed.view(torch.uint8)[byte] ^= bit
        return changed

    return plant


def swapped(first, second):
    def plant(x, tensor):
        changed = tensor.clone()
        changed[first], changed[second] = tensor[second], tensor[first]
        return changed

    return plant


def home(row):
    return lambda x: x.out_cache_loc[row]


FIRST, THIRD = set(range(7)), set(range(13, 18))
FULL_CELL = 1 * (9 + 7) + 9 + 2  # row 1, tree column 2, after nine prefix cells a row

PLANTS = {
    "mask-shows-an-uncle": ("direct-mask", "ragged-batch", "custom_mask", put((1 * 7 + 2, True)), {1}),
    "mask-hides-a-parent": ("direct-mask", "ragged-batch", "custom_mask", put((1 * 7 + 5, False)), {1}),
    "full-mask-shows-an-uncle": (
        "direct-mask", "full-mask", "custom_mask", put((FULL_CELL, True)), {1},
    ),
    "packed-bit-shows-an-uncle": ("direct-mask", "bit-packed", "custom_mask", flipped(1, 1 << 2), {1}),
    "mask-of-another-request": (
        "direct-mask", "ragged-batch", "mask_indptr", put((1, 0)), {8, 9, 10, 11, 12},
    ),
    "suffix-names-an-uncle": (
        "cascade", "ragged-batch", "kv_indices", put((2, home(2))), {1},
    ),
    "suffix-is-a-range": ("cascade", "ragged-batch", "kv_start", put((1, 1)), {1}),
    "prefix-pages-of-another-request": (
        "cascade", "ragged-batch", "page_table", swapped((0, 0), (2, 0)), FIRST | THIRD,
    ),
    "prefix-one-key-short": ("cascade", "ragged-batch", "cache_seqlens", put((0, 8)), FIRST),
    "line-names-an-uncle": (
        "page-table", "ragged-batch", "page_table", put(((1, 10), home(2))), {1},
    ),
    "line-one-key-short": ("page-table", "ragged-batch", "cache_seqlens", put((1, 11)), {1}),
    "line-swaps-two-prefix-keys-with-another-row": (
        "page-table", "ragged-batch", "page_table", swapped((0, 3), (14, 3)), {0, 14},
    ),
    "list-names-an-uncle": (
        "swa-window", "ragged-batch", "kv_indices", put((10 + 10, home(2))), {1},
    ),
    "window-begins-one-key-late": (
        "swa-window", "window-inside-the-prefix", "kv_start", put((3, 27 + 1)), {3},
    ),
    "window-begins-one-key-early": (
        "swa-window", "window-inside-the-prefix", "kv_start", put((3, 27 - 1)), {3},
    ),
    "brood-under-its-uncle": (
        "topology", "ragged-batch", "retrieve_next_sibling", put(((0, 6), 1)), {1, 3},
    ),
    "prefix-of-another-request": (
        "topology", "ragged-batch", "request_slots", swapped(0, 2), FIRST | THIRD,
    ),
}  # fmt: skip


@pytest.mark.parametrize("plant", PLANTS)
def test_one_wrong_entry_shows_in_exactly_the_rows_it_concerns(plant):
    name, label, field, change, rows = PLANTS[plant]
    scene, backend = Scene(SITUATIONS[label]), load(name).make()
    x = backend.build(scene.candidates())
    assert scene.wrong_rows(scene.attend(backend, x)) == set()
    wrong = replace(x, **{field: change(x, getattr(x, field))})
    if plant == "brood-under-its-uncle":
        # Rows 1 and 3 leave row 5 and follow row 6 below row 2.
        wrong = replace(wrong, retrieve_next_token=put(((0, 5), -1))(x, x.retrieve_next_token))
    assert scene.wrong_rows(scene.attend(backend, wrong)) == rows


@pytest.mark.parametrize("name", ["cascade", "page-table", "swa-window"])
def test_rows_written_to_each_others_slots_show(name):
    scene, backend = Scene(SITUATIONS["ragged-batch"]), load(name).make()
    x = backend.build(scene.candidates())
    wrong = replace(x, out_cache_loc=swapped(2, 5)(x, x.out_cache_loc))
    # Rows 2 and 5 hold nodes 2 and 1; every row but the root's is below one of them.
    assert scene.wrong_rows(scene.attend(backend, wrong)) == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize(
    ("name", "field", "place", "value"),
    [
        ("direct-mask", "custom_mask", 1 * 7 + 5, False),
        ("cascade", "kv_indices", 2, None),
        ("page-table", "page_table", (1, 10), None),
        ("swa-window", "kv_indices", 10 + 10, None),
        ("topology", "retrieve_next_token", (0, 5), -1),
    ],
)
def test_the_accept_walk_follows_the_same_representation(name, field, place, value):
    scene, backend = Scene(SITUATIONS["ragged-batch"]), load(name).make()
    x = backend.build(scene.candidates())
    predicted = torch.full((scene.case.num_rows,), 999)
    predicted[0], predicted[5] = 1, 3  # accepts node 1 (row 5), then node 3 (row 1)
    assert backend.accept(x, predicted).accept_index[0].tolist()[:3] == [0, 5, 1]
    entry = x.out_cache_loc[2] if value is None else value
    wrong = replace(x, **{field: put((place, entry))(x, getattr(x, field))})
    assert backend.accept(wrong, predicted).accept_index[0].tolist()[:3] == [0, 5, -1]


@pytest.mark.parametrize("circle", [("retrieve_next_sibling", 1, 1), ("retrieve_next_token", 3, 5)])
def test_topology_refuses_links_that_go_in_circles(circle):
    field, row, value = circle
    scene, backend = Scene(SITUATIONS["ragged-batch"]), load("topology").make()
    x = backend.build(scene.candidates())
    wrong = replace(x, **{field: put(((0, row), value))(x, getattr(x, field))})
    with pytest.raises(ValueError, match=r"circle|twice"):
        scene.attend(backend, wrong)
