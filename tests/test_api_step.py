"""check_step: whatever is given of one verify step is judged; each judge has a wrong table to find."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import treeproof
from treeproof import check_step

# Node 1 and node 2 are siblings, node 3 is below node 1; three keys before them, in slots 10 to 12.
PARENTS, PREFIX, TOKENS = [-1, 0, 0, 1], 3, [7, 20, 21, 30]
SLOTS = [10, 11, 12, 4, 9, 2, 7]
TREE_MASK = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]
FULL_MASK = [[1, 1, 1, *row] for row in TREE_MASK]
FLAT_MASK = [cell for row in FULL_MASK for cell in row]
LISTS = [[10, 11, 12, 4], [10, 11, 12, 4, 9], [10, 11, 12, 4, 2], [10, 11, 12, 4, 9, 7]]
PATHS = [[0], [0, 1], [0, 2], [0, 1, 3]]


def changed(table: list[Any], at: int | tuple[int, int], value: int) -> list[Any]:
    copy = [list(row) if isinstance(row, list) else row for row in table]
    if isinstance(at, tuple):
        copy[at[0]][at[1]] = value
    else:
        copy[at] = value
    return copy


def lists(rows: list[list[int]]) -> dict[str, Any]:
    indptr = np.cumsum([0, *map(len, rows)]).tolist()
    return {"kv_indptr": indptr, "kv_indices": [slot for row in rows for slot in row]}


def mask(rows: list[list[int]], mode: str = "FULL_MASK") -> dict[str, Any]:
    return {"custom_mask": torch.tensor(rows, dtype=torch.bool), "mask_mode": mode}


LINKS = {"retrieve_next_token": [[1, 3, -1, -1]], "retrieve_next_sibling": [[-1, 2, -1, -1]]}
PAGES = {"page_table": [[5, 6]], "cache_seqlens": [3], "page_size": 2}

RIGHT: dict[str, dict[str, Any]] = {
    "draft_token": {"draft_token": TOKENS},
    "positions": {"positions": torch.tensor([3, 4, 4, 5], dtype=torch.int32)},
    "full mask": mask(FULL_MASK),
    "full mask, flat, with slack": {"custom_mask": [*FLAT_MASK, 1, 1, 1]},
    "full mask, prefix undefined": {
        **mask([[0, 1, 0, *row] for row in TREE_MASK]),
        "fill_prefix": False,
    },
    "tree mask": mask(TREE_MASK, "QLEN_ONLY"),
    "bit-packed mask": {
        "custom_mask": torch.tensor([1, 3, 5, 11], dtype=torch.uint8),
        "mask_mode": "QLEN_ONLY_BITPACKING",
    },
    "mask that starts later": {
        "custom_mask": [0, 0, *FLAT_MASK],
        "mask_indptr": [2, 30],
    },
    "links": LINKS,
    "parents": {"retrieve_parent_token": np.array([[-1, 0, 0, 1]])},
    "retrieve_index": {"retrieve_index": [[0, 1, 2, 3]]},
    "out_cache_loc": {"out_cache_loc": [4, 9, 2, 7]},
    "lists of rows": lists(LISTS),
    "list of the prefix": lists([[10, 11, 12]]),
    "list of all keys": lists([SLOTS]),
    "pages of the prefix": PAGES,
    "slots of rows in a table": {
        "page_table": [row + [0] * (6 - len(row)) for row in LISTS],
        "cache_seqlens": [4, 5, 5, 6],
    },
    "pages of the prefix, lists of the rest": {**PAGES, **lists([row[3:] for row in LISTS])},
}

WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "token of a sibling": (
        {"draft_token": [7, 21, 21, 30]}, "candidate: wrong-token", "row 1 (node 1, path 0→1)",
    ),
    "positions by row": (
        {"positions": [3, 4, 5, 6]}, "position: wrong-depth", "given position 5, expected 4",
    ),
    "too few positions": ({"positions": [3, 4, 4]}, "contract: wrong-shape", "expected (4,)"),
    "mask shows a sibling": (
        mask(changed(FULL_MASK, (2, 4), 1)), "visibility: reads-sibling", "row 1 (node 1)",
    ),
    "mask hides an ancestor": (
        mask(changed(TREE_MASK, (3, 1), 0), "QLEN_ONLY"), "visibility: misses-ancestor", "row 3",
    ),
    "mask hides a prefix key": (
        mask(changed(FULL_MASK, (1, 2), 0)), "visibility: misses-prefix", "prefix key 2",
    ),
    "bits in the other order": (
        {**RIGHT["bit-packed mask"], "custom_mask": torch.tensor([8, 12, 10, 13]).to(torch.uint8)},
        "visibility: misses-self", "row 0",
    ),
    "child linked under its uncle": (
        {**LINKS, "retrieve_next_token": [[1, -1, 3, -1]]}, "traversal: wrong-parent", "under row 2",
    ),
    "sibling not linked": (
        {**LINKS, "retrieve_next_sibling": [[-1, -1, -1, -1]]}, "traversal: unlinked-row", "row 2",
    ),
    "wrong parent": (
        {"retrieve_parent_token": [[-1, 0, 1, 1]]}, "traversal: wrong-parent", "under row 1",
    ),
    "rows of another request": (
        {"retrieve_index": [[4, 5, 6, 7]]}, "traversal: wrong-retrieve-index", "expected 0",
    ),
    "swapped slots": (
        {"out_cache_loc": [4, 2, 9, 7]}, "kv: wrong-slot", "slot 2 (column 5 of request 0)",
    ),
    "list with a sibling": (
        lists(changed(LISTS, (2, 4), 9)), "visibility: reads-sibling", "row 1 (node 1)",
    ),
    "list with a key twice": (
        lists(changed(LISTS, (3, 0), 11)), "visibility: reads-twice", "prefix key 1 more than once",
    ),
    "list with a free slot": (
        lists(changed(LISTS, (3, 0), 3)), "visibility: reads-unowned", "slot 3",
    ),
    "prefix list out of order": (
        lists([[10, 12, 11]]), "visibility: wrong-table-slot", "slot 12 (held by column 2 of request 0)",
    ),
    "prefix list too short": (
        lists([[10, 11]]), "visibility: wrong-table-length", "covers 2 keys of request 0",
    ),
    "wrong page": (
        {**PAGES, "page_table": [[5, 7]]}, "visibility: wrong-table-slot", "slot 14 (held by nobody)",
    ),
    "more keys than pages": ({**PAGES, "cache_seqlens": [5]}, "contract: raises", "accepted are 0 to"),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_table_passes(name: str) -> None:
    assert check_step(PARENTS, PREFIX, tokens=TOKENS, slots=SLOTS, **RIGHT[name]) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_table_is_found(name: str) -> None:
    tables, key, words = WRONG[name]
    found = check_step(
        PARENTS, PREFIX, tokens=TOKENS, slots=SLOTS, raise_on_failure=False, **tables
    )
    said = [f.message for f in found if f"{f.identity}: {f.kind}" == key]
    assert any(words in message for message in said), found


def test_all_right_tables_pass_together() -> None:
    tables = {
        **RIGHT["draft_token"],
        **RIGHT["positions"],
        **mask(FULL_MASK),
        **LINKS,
        **lists(LISTS),
    }
    assert check_step(PARENTS, PREFIX, tokens=TOKENS, slots=SLOTS, **tables) == []


@pytest.mark.parametrize("hidden", [False, True])
def test_what_a_window_cuts_is_left_to_the_kernel_and_nothing_else(hidden: bool) -> None:
    """With a window of 3 keys row 3 reads rows 0, 1 and 3: a mask may name the prefix, or not."""
    rows = changed(FULL_MASK, (3, 0), int(not hidden))
    assert check_step(PARENTS, PREFIX, window=3, **mask(rows)) == []
    sibling = changed(rows, (2, 4), 1)
    found = check_step(PARENTS, PREFIX, window=3, raise_on_failure=False, **mask(sibling))
    assert [failure.kind for failure in found] == ["reads-sibling"]


def test_a_window_hides_no_ancestor_inside_it() -> None:
    rows = changed(FULL_MASK, (3, 4), 0)
    found = check_step(PARENTS, PREFIX, window=3, raise_on_failure=False, **mask(rows))
    assert [(failure.kind, failure.row) for failure in found] == [("misses-ancestor", 3)]


def test_a_leak_in_the_last_row_is_found_behind_thousands_of_keys_that_the_window_cuts() -> None:
    rows = torch.cat([torch.ones(16, 1000), torch.eye(16)], dim=1)
    rows[:, 1000] = 1
    rows[15, 1003] = 1
    found = check_step(
        [-1] + [0] * 15, 1000, window=16, custom_mask=rows.bool(), raise_on_failure=False
    )
    assert [(failure.kind, failure.row) for failure in found] == [("reads-sibling", 15)]


# Two requests: rows of the first in another order than its nodes, one padded row after each.
BATCH: dict[str, Any] = {
    "parents": [[-1, 0, 0], [-1, 0]],
    "prefix_len": [2, 0],
    "row_of_node": [[0, 2, 1], [0, 1]],
    "qo_indptr": [0, 4, 7],
    "slots": torch.tensor([[8, 9, 1, 2, 3, -1], [5, 6, -1, -1, -1, -1]]),
}


def test_a_ragged_batch_with_padded_rows_passes() -> None:
    tables = {
        "positions": [2, 3, 3, 0, 0, 1, 0],
        "retrieve_index": [[0, 1, 2, -1], [4, 5, -1, -1]],
        "retrieve_next_token": [[1, -1, -1, -1], [1, -1, -1, -1]],
        "retrieve_next_sibling": [[-1, 2, -1, -1], [-1, -1, -1, -1]],
        "out_cache_loc": [1, 2, 3, 0, 5, 6, -1],
        "custom_mask": [
            torch.tensor([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 1, 0], [0] * 6]) > 0,
            torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1]]) > 0,
        ],
        "kv_indptr": [0, 2, 2],
        "kv_indices": [8, 9],
    }
    assert check_step(**BATCH, **tables) == []


def test_a_failure_in_a_batch_names_its_request() -> None:
    found = check_step(**BATCH, positions=[2, 3, 3, 0, 1, 2, 0], raise_on_failure=False)
    assert {(f.request, f.row) for f in found} == {(1, 0), (1, 1)}


def test_padding_must_be_sent_nowhere() -> None:
    found = check_step(**BATCH, out_cache_loc=[1, 2, 3, 9, 5, 6, -1], raise_on_failure=False)
    assert [(f.kind, f.request, f.row) for f in found] == [("padding-slot", 0, 3)]


# --- numbers ---------------------------------------------------------------------------------------


def step(
    dtype: torch.dtype = torch.float32, window: int | None = None, paths: list[list[int]] = PATHS
) -> dict[str, Any]:
    """A step computed row by row with plain softmax in float64: 4 query heads, 2 key heads."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    q, k, v = draw(4, 4, 16), draw(4, 2, 16), draw(4, 2, 8)
    k_prefix, v_prefix = draw(PREFIX, 2, 16), draw(PREFIX, 2, 8)
    out, lse = torch.empty(4, 4, 8, dtype=dtype), torch.empty(4, 4)
    for row, path in enumerate(paths):
        keys, values = torch.cat([k_prefix, k[path]]), torch.cat([v_prefix, v[path]])
        if window is not None:
            keys, values = keys[-window:], values[-window:]
        for head in range(4):
            scores = keys[:, head // 2].double() @ q[row, head].double() / math.sqrt(16)
            out[row, head] = (scores.softmax(0) @ values[:, head // 2].double()).to(dtype)
            lse[row, head] = scores.logsumexp(0)
    return {
        "q": q, "k": k, "v": v, "k_prefix": k_prefix, "v_prefix": v_prefix, "out": out, "lse": lse,
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("window", [None, 2, 4])
def test_a_right_output_passes(dtype: torch.dtype, window: int | None) -> None:
    assert check_step(PARENTS, PREFIX, window=window, **step(dtype, window)) == []


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        (step(paths=[[0], [0, 1], [0, 1, 2], [0, 1, 3]]), {"outside-bound", "wrong-lse"}),
        (step(window=3), {"outside-bound", "wrong-lse"}),
        ({**step(), "lse": step()["lse"] / math.log(2)}, {"wrong-lse"}),
        ({**step(), "out": step()["out"] * (1 + 1e-4)}, {"outside-bound"}),
        ({**step(), "out": step()["out"] * math.nan}, {"not-finite"}),
        ({**step(), "out": step()["out"].double()}, {"wrong-dtype"}),
        ({**step(), "out": step()["out"][:3]}, {"wrong-shape"}),
    ],
    ids=["sibling read", "window cut", "base 2", "scaled", "NaN", "dtype", "rows missing"],
)
def test_a_wrong_output_is_found(given: dict[str, Any], keys: set[str]) -> None:
    found = check_step(PARENTS, PREFIX, raise_on_failure=False, **given)
    assert {failure.kind for failure in found} == keys


def test_the_window_counts_the_query_itself() -> None:
    found = check_step(PARENTS, PREFIX, window=3, raise_on_failure=False, **step(window=2))
    assert {failure.row for failure in found if failure.kind == "outside-bound"} == {0, 1, 2, 3}


def test_the_prefix_may_come_from_paged_caches() -> None:
    given = step()
    caches = {}
    for letter in "kv":
        cache = torch.full((8, 2, *given[f"{letter}_prefix"].shape[1:]), math.nan)
        cache.flatten(0, 1)[SLOTS[:PREFIX]] = given.pop(f"{letter}_prefix")
        caches[f"{letter}_cache"] = cache
    assert check_step(PARENTS, PREFIX, slots=SLOTS, **caches, **given) == []
    moved = [11, 10, *SLOTS[2:]]
    found = check_step(
        PARENTS, PREFIX, slots=moved, window=4, raise_on_failure=False, **caches, **given
    )
    assert "outside-bound" in {failure.kind for failure in found}


def turned(x: torch.Tensor, positions: list[int]) -> torch.Tensor:
    """Rotary embedding of base 100, half split, written with complex numbers."""
    half = x.shape[-1] // 2
    speed = 100.0 ** (-torch.arange(half).double() / half)
    angle = torch.tensor(positions).double()[:, None, None] * speed
    z = torch.complex(x[..., :half].double(), x[..., half:].double()) * torch.polar(
        torch.ones_like(angle), angle
    )
    return torch.cat((z.real, z.imag), dim=-1).to(x.dtype)


def test_keys_and_queries_are_taken_as_rotated_unless_rotary_is_given() -> None:
    plain = step()
    rotated = {
        **plain,
        "q": turned(plain["q"], [3, 4, 4, 5]),
        "k": turned(plain["k"], [3, 4, 4, 5]),
        "k_prefix": turned(plain["k_prefix"], [0, 1, 2]),
    }
    keys = [torch.cat([rotated["k_prefix"], rotated["k"][path]]) for path in PATHS]
    values = [torch.cat([plain["v_prefix"], plain["v"][path]]) for path in PATHS]
    out = torch.stack(
        [
            torch.einsum(
                "hn,nhd->hd",
                (torch.einsum("hd,nhd->hn", q, k.repeat_interleave(2, 1)) / 4).softmax(-1),
                v.repeat_interleave(2, 1),
            )
            for q, k, v in zip(rotated["q"], keys, values, strict=True)
        ]
    )
    del plain["lse"], rotated["lse"]
    assert check_step(PARENTS, PREFIX, **{**rotated, "out": out}) == []
    assert check_step(PARENTS, PREFIX, rotary=100.0, **{**plain, "out": out}) == []
    found = check_step(PARENTS, PREFIX, raise_on_failure=False, **{**plain, "out": out})
    assert {failure.kind for failure in found} == {"outside-bound"}


def written(slots: list[int]) -> dict[str, Any]:
    given = step()
    caches: dict[str, Any] = {"k": given["k"], "v": given["v"]}
    for letter in "kv":
        before = torch.randn(16, *given[letter].shape[1:], generator=torch.manual_seed(4))
        after = before.clone()
        after[slots] = given[letter]
        caches |= {f"{letter}_cache_before": before, f"{letter}_cache": after}
    return caches


def test_a_right_write_passes() -> None:
    given = written([4, 9, 2, 7])
    assert check_step(PARENTS, PREFIX, slots=SLOTS, **given) == []
    arrays = {name: tensor.numpy() for name, tensor in given.items()}
    assert check_step(PARENTS, PREFIX, slots=SLOTS, positions=None, **arrays) == []


def test_a_wrong_write_is_found() -> None:
    found = check_step(
        PARENTS, PREFIX, slots=SLOTS, raise_on_failure=False, **written([4, 9, 2, 12])
    )
    assert {(f.identity, f.kind) for f in found} == {
        ("kv", "not-written"),
        ("kv", "written-elsewhere"),
    }


# --- how it speaks ---------------------------------------------------------------------------------


def test_a_failure_raises_a_class_of_its_own_that_explains_itself() -> None:
    with pytest.raises(treeproof.TreeAttentionError) as caught:
        check_step(PARENTS, PREFIX, positions=[3, 4, 5, 6], **mask(changed(FULL_MASK, (2, 4), 1)))
    error = caught.value
    assert isinstance(error, AssertionError)
    assert type(error).__name__ == "PositionWrongDepth"
    assert {failure.kind for failure in error.failures} == {"wrong-depth", "reads-sibling"}
    assert error.case.requests[0].tree.parents == tuple(PARENTS)
    assert "row 2 (node 2, path 0→2) is given position 5, expected 4" in str(error)
    assert "in the same case: visibility: reads-sibling (1)" in str(error)


def test_two_failures_of_one_kind_are_of_one_class() -> None:
    classes = set()
    for rows in (changed(FULL_MASK, (2, 4), 1), changed(FULL_MASK, (3, 5), 1)):
        with pytest.raises(treeproof.TreeAttentionError) as caught:
            check_step(PARENTS, PREFIX, **mask(rows))
        classes.add(type(caught.value))
    assert len(classes) == 1


GIVEN = step()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "nothing to judge: give out"),
        ({"q": GIVEN["q"]}, "q is given and out is not"),
        ({"out": GIVEN["out"]}, "out needs q"),
        ({"lse": GIVEN["lse"]}, "lse needs out"),
        ({**GIVEN, "k_prefix": None}, "out needs k_prefix, or k_cache and slots"),
        ({**GIVEN, "q": GIVEN["q"].double()}, "q has dtype torch.float64: accepted are float32"),
        ({**GIVEN, "v": GIVEN["v"].half()}, "v has dtype torch.float16: q has torch.float32"),
        ({**GIVEN, "k": GIVEN["k"][:2]}, "k has shape (2, 2, 16): accepted is (rows, heads"),
        ({**GIVEN, "k_prefix": GIVEN["k_prefix"][:2]}, "k_prefix has shape (2, 2, 16)"),
        ({"draft_token": TOKENS}, "draft_token needs tokens"),
        ({"out_cache_loc": [4, 9, 2, 7]}, "out_cache_loc needs slots"),
        ({"kv_indices": [1]}, "kv_indices needs kv_indptr"),
        ({"retrieve_next_token": [[1]]}, "retrieve_next_token needs retrieve_next_sibling"),
        ({"mask_mode": "QLEN_ONLY"}, "mask_mode needs custom_mask"),
        (mask(FULL_MASK, "FULL"), "mask_mode is 'FULL': accepted are FULL_MASK, QLEN_ONLY"),
        (mask(TREE_MASK), "custom_mask has 16 cells: FULL_MASK of these requests has 28"),
        ({"custom_mask": torch.zeros(28)}, "custom_mask has dtype torch.float32: accepted are bool"),
        ({"slots": SLOTS[:5], "positions": []}, "slots[0] has 5 entries: 7 are accepted"),
        ({"slots": [*SLOTS[:6], 4], "positions": []}, "slots: slot 4 is column 6 of request 0 and"),
        ({"slots": SLOTS, "kv_indptr": [0] * 3, "kv_indices": []}, "kv_indptr has 3 entries"),
        ({"prefix_len": [3, 3], "positions": []}, "prefix_len has 2 entries for 1 trees"),
        ({"parents": [-1, 2, 0], "positions": []}, "request 0: parents[1] is 2: accepted are 0 to 0"),
        ({"parents": [-1, 0.5], "positions": []}, "parents[1] is 0.5: whole numbers are accepted"),
        ({"row_of_node": [1, 0, 2, 3], "positions": []}, "row_of_node[0] is 1: the root is row 0"),
        ({"qo_indptr": [0, 3], "positions": []}, "qo_indptr gives request 0 3 rows"),
        ({"window": 0, "positions": []}, "width is 0"),
        ({"page_size": 0, "positions": []}, "page_size is 0: accepted are 1 to 1024"),
        ({"position": [3, 4, 4, 5]}, "check_step takes no position"),
        (written([4, 9, 2, 7]) | {"slots": SLOTS, "k_cache": None}, "judging writes needs k_cache"),
        ({"v_cache_before": np.zeros((4, 2, 8))}, "judging writes needs k, which was not given"),
        (written([4, 9, 2, 7]), "judging writes needs slots"),
        ({"positions": None}, "nothing to judge"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_an_argument_that_cannot_be_used_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        check_step(**{"parents": PARENTS, "prefix_len": PREFIX, **arguments})
    assert message in str(caught.value)
