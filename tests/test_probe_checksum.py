"""The checksum screen: what it sees at 131,072 keys in bfloat16, and what it leaves to others.

The kernel here adds up the values of explicit slot lists, which is all that attention with equal
weights is; it keeps sums in float32 and rounds its output to bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast

import pytest
import torch

from treeproof.contract.capabilities import Numerics
from treeproof.contract.case import AttentionShape, Full, KVLayout, Request, VerifyCase, Window
from treeproof.contract.failure import Failure
from treeproof.contract.registry import load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.properties.probes.checksum import Sums, sum_up
from treeproof.properties.probes.launch import AttendCall
from treeproof.properties.reading import Measured, judge_screened, prefix_edges, screen
from treeproof.properties.scene import Scene

FORK = CandidateTree(tokens=(1, 2, 3), parents=(-1, 0, 0))
SHORT = 100  # the second request's prefix


@lru_cache(maxsize=2)
def scene_of(prefix: int) -> Scene:
    return _scene(prefix, Full(), KVLayout(page_size=16, num_slots=prefix + 512, order="shuffled"))


def _scene(
    prefix: int, visibility: Full | Window, layout: KVLayout, dims: tuple[int, int] = (1, 64)
) -> Scene:
    requests = tuple(
        Request(tree=FORK, row_of_node=(0, 1, 2), prefix_len=length) for length in (prefix, SHORT)
    )
    shape = AttentionShape(
        num_q_heads=dims[0], num_kv_heads=dims[0], head_dim=dims[1], v_head_dim=dims[1],
        dtype="bfloat16", visibility=visibility,
    )  # fmt: skip
    return Scene.of(VerifyCase(requests=requests, shape=shape, layout=layout, seed=5))


Columns = list[list[tuple[int, int]]]
"""[row of the launch] -> (request, column) of every key that it reads."""


def right(scene: Scene) -> Columns:
    """Prefix and path, cut by the window in logical index."""
    found = []
    for b, request in enumerate(scene.case.requests):
        for node in range(3):
            path = [*range(request.prefix_len), *(request.prefix_len + n for n in FORK.path(node))]
            found.append([(b, c) for c in path[-(scene.case.shape.window or len(path)) :]])
    return found


def kernel(scene: Scene, reads: Columns, chunk: int = 0) -> AttendCall:
    """`chunk`: partial results of so many keys each are rounded to bfloat16, and merged."""
    lists = [torch.tensor([scene.ledger.columns[b][c] for b, c in row]) for row in reads]

    def attend(x: Any, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any) -> Any:
        v_cache[scene.tree_slots] = v
        out = torch.zeros(len(lists), *v_cache.shape[1:])
        for row, slots in enumerate(lists):
            if not chunk:
                out[row] = v_cache[slots].float().mean(0)
                continue
            for part in slots.split(chunk):
                out[row] += v_cache[part].float().mean(0).bfloat16() * (len(part) / len(slots))
        return out.bfloat16()

    return attend


def screened(scene: Scene, reads: Columns, chunk: int = 0, merges: int = 0) -> list[Failure]:
    nothing = unread(scene, reads)
    numerics = Numerics(partial="bfloat16", merges=merges)
    done = screen(kernel(scene, reads, chunk), scene, cast(Any, None), nothing, numerics)
    return judge_screened(scene, done)


def summed(
    scene: Scene, reads: Columns, chunk: int = 0, numerics: Numerics | None = None, **more: Any
) -> Sums:
    """Sums over the prefix, or (`lit=None`) over the whole cache."""
    lit = torch.zeros(scene.case.layout.num_slots, dtype=torch.bool)
    lit[scene.prefix.slot] = True
    attend, numerics = kernel(scene, reads, chunk), numerics or Numerics()
    return sum_up(attend, scene, cast(Any, None), numerics, **{"lit": lit, **more})


def missing(reads: Columns) -> None:
    reads[1].remove((0, 20_001))


def doubled(reads: Columns) -> None:
    reads[2].append((0, 12_345))


def leaked(reads: Columns) -> None:
    reads[0].append((1, 37))


def page_missing(reads: Columns) -> None:
    del reads[1][16 * 900 : 16 * 901]


def neighbours_missing(reads: Columns) -> None:
    del reads[1][700:702]


FAULTS: dict[Callable[[Columns], None], tuple[str, int, set[int | None]]] = {
    missing: ("misses-prefix", 1, {20_001}),
    doubled: ("reads-twice", 2, {12_345}),
    leaked: ("reads-other-request", 0, {None}),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_one_wrong_key_among_32768_is_found_and_named(fault: Callable[[Columns], None]) -> None:
    scene = scene_of(32_768)
    reads = right(scene)
    fault(reads)
    kind, row, columns = FAULTS[fault]
    failures = screened(scene, reads)
    assert {(f.request, f.row, f.kind) for f in failures} == {(0, row, kind)}
    assert {f.column for f in failures} == columns
    assert {f.probe for f in failures} == {"checksum"}


def unread(scene: Scene, reads: Sequence[Any]) -> Measured:
    """A measurement of nothing but how many keys each row reads."""
    count = torch.tensor([float(len(row)) for row in reads], dtype=torch.float64)
    nothing = torch.zeros(len(count), 0, dtype=torch.float64)
    return Measured(scene, (), nothing, nothing, count, torch.zeros(len(count), dtype=torch.bool))


def test_one_wrong_key_among_131072_moves_a_sum_by_one_and_rounding_by_a_hundredth() -> None:
    scene = scene_of(131_072)
    assert float(summed(scene, right(scene)).off.max()) < 0.02
    for fault in (*FAULTS, page_missing, neighbours_missing):
        reads = right(scene)
        fault(reads)
        assert float(summed(scene, reads).off.max()) > 0.99, fault.__name__


def test_partial_results_in_bfloat16_stay_inside_what_their_declaration_allows() -> None:
    scene = scene_of(32_768)
    found = summed(scene, right(scene), chunk=1024)
    assert float(found.off.max()) < float(found.limit.max())
    # Even the widest declaration leaves a missing key outside.
    wide = summed(scene, right(scene), numerics=Numerics(partial="bfloat16", merges=32))
    assert float(wide.limit.max()) < 1
    reads = right(scene)
    missing(reads)
    assert screened(scene, reads, chunk=1024, merges=32)


def test_a_missing_page_is_found_by_the_keys_at_its_ends() -> None:
    scene = scene_of(32_768)
    reads = right(scene)
    page_missing(reads)
    failures = screened(scene, reads)
    assert failures
    assert {f.column for f in failures} <= set(range(16 * 900, 16 * 901))


LAYOUTS = [
    (Window(width=300), KVLayout(page_size=16, num_slots=1024, order="shuffled", evicted=True)),
    (Window(width=399), KVLayout(page_size=2, num_slots=1024, order="reversed")),
    (Full(), KVLayout(page_size=4, num_slots=1024, shared_prefix=96)),
]


@pytest.mark.parametrize(("visibility", "layout"), LAYOUTS, ids=["evicted", "window", "shared"])
@pytest.mark.parametrize("dims", [(2, 16), (1, 128)])
def test_windows_evicted_pages_and_shared_prefixes_change_what_must_add_up(
    visibility: Full | Window, layout: KVLayout, dims: tuple[int, int]
) -> None:
    scene = _scene(400, visibility, layout, dims)
    assert screened(scene, right(scene)) == []
    for row, (b, column) in enumerate([(0, 333), (0, 334), (0, 350), (1, 41), (1, 62), (1, 75)]):
        assert column not in prefix_edges(scene.case, b)
        reads = right(scene)
        reads[row].remove((b, column))
        (failure,) = screened(scene, reads)
        assert (failure.request, failure.row, failure.column) == (b, row % 3, column)


def test_sums_that_are_off_without_any_key_being_so_are_still_a_failure() -> None:
    """Every far key read with a weight of its own, none far enough from 1 to be named."""
    scene = _scene(400, Full(), KVLayout(page_size=4, num_slots=1024))
    right_kernel = kernel(scene, right(scene))

    def attend(x: Any, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any) -> Any:
        slot = torch.arange(len(v_cache))[:, None, None]
        uneven = v_cache * (1 + 0.2 * ((slot * 2654435761 >> 7) % 2 * 2 - 1))
        return right_kernel(x, q, k, v, k_cache, uneven.bfloat16())

    nothing = unread(scene, right(scene))
    done = screen(attend, scene, cast(Any, None), nothing, Numerics())
    failures = judge_screened(scene, done)
    assert {f.kind for f in failures} == {"wrong-prefix-sum"}
    # Each is read once: what is wrong is its weight.
    assert all("does not give each far prefix key its weight" in f.message for f in failures)


def test_which_key_was_scored_is_not_asked_here_and_left_to_chorus_and_spike() -> None:
    """All keys are equal, so K of one slot in place of another's moves no sum at all."""
    scene = _scene(400, Full(), KVLayout(page_size=4, num_slots=1024))
    right_kernel = kernel(scene, right(scene))

    def attend(x: Any, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any) -> Any:
        assert bool((k_cache[scene.owned] == 1).all())
        return right_kernel(x, q, k, v, k_cache.roll(1, 0), v_cache)

    nothing = unread(scene, right(scene))
    assert screen(attend, scene, cast(Any, None), nothing, Numerics()).off == ()


def to_sibling(reads: Columns) -> None:
    reads[2].append((0, 400 + 1))


def to_descendant(reads: Columns) -> None:
    reads[0].append((0, 400 + 2))


def without_self(reads: Columns) -> None:
    reads[1].pop()


def sibling_for_self(reads: Columns) -> None:
    reads[1][-1] = (0, 400 + 2)


def to_another_request(reads: Columns) -> None:
    reads[1].append((1, 3))


def own_twice(reads: Columns) -> None:
    reads[2].append(reads[2][-1])


@pytest.mark.parametrize(
    "fault",
    [to_sibling, to_descendant, without_self, sibling_for_self, to_another_request, own_twice],
    ids=lambda fault: fault.__name__,
)
def test_sums_over_the_whole_cache_settle_what_is_right_and_nothing_that_is_wrong(
    fault: Callable[[Columns], None],
) -> None:
    scene = _scene(400, Full(), KVLayout(page_size=4, num_slots=1024))
    reads = right(scene)
    assert bool(summed(scene, reads, lit=None).settled)
    fault(reads)

    found = summed(scene, reads, lit=None)

    assert not bool(found.settled)
    assert float(found.off.max()) > 0.5


def test_memory_that_nobody_holds_is_loud_in_sums_over_the_whole_cache() -> None:
    scene = _scene(400, Full(), KVLayout(page_size=4, num_slots=1024))
    stray = scene.ledger.unowned[-1]
    lists = [[scene.ledger.columns[b][c] for b, c in row] for row in right(scene)]
    lists[1].append(stray)

    def attend(x: Any, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any) -> Any:
        own = scene.row_slot
        v_cache[own], k_cache[own] = v, k
        means = [v_cache[row].float().mean(0) for row in lists]
        return torch.stack(means).repeat_interleave(scene.case.shape.group_size, dim=1).to(q.dtype)

    found = sum_up(attend, scene, cast(Any, None), Numerics())

    assert found.wrong.tolist() == [i == 1 for i in range(len(lists))]


def test_sums_too_large_to_tell_settle_nothing() -> None:
    scene = _scene(400, Full(), KVLayout(page_size=4, num_slots=1024))
    rough = Numerics(partial="bfloat16", merges=32)

    found = summed(scene, right(scene), numerics=rough, lit=None)

    assert not bool(found.wrong.any())
    assert not bool(found.settled)


def _deep() -> tuple[Scene, list[list[int]]]:
    """A chain of 60 behind 100 keys, with the slots that each of its rows reads."""
    chain = CandidateTree(tokens=tuple(range(60)), parents=tuple(range(-1, 59)))
    request = Request(tree=chain, row_of_node=tuple(range(60)), prefix_len=SHORT)
    shape = AttentionShape(
        num_q_heads=2, num_kv_heads=2, head_dim=16, v_head_dim=128, dtype="bfloat16"
    )
    layout = KVLayout(page_size=4, num_slots=256, order="shuffled")
    scene = Scene.of(VerifyCase(requests=(request,), shape=shape, layout=layout, seed=5))
    columns = list(scene.ledger.columns[0])
    reads = [columns[: SHORT + row + 1] for row in range(60)]
    return scene, reads


def _two_parts(scene: Scene, reads: list[list[int]]) -> AttendCall:
    """Prefix and path by themselves, rounded to bfloat16 and merged, as a cascade does."""

    def attend(x: Any, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any) -> Any:
        v_cache[scene.row_slot] = v
        out = torch.zeros(len(reads), *v_cache.shape[1:])
        for row, slots in enumerate(reads):
            for part in (slots[:SHORT], slots[SHORT:]):
                mean = v_cache[torch.tensor(part)].float().mean(0).bfloat16()
                out[row] += mean * (len(part) / len(slots))
        return out.bfloat16()

    return attend


def test_lanes_that_add_up_to_little_settle_a_deep_path_whose_parts_are_rounded() -> None:
    """Its largest sum alone would leave nothing settled."""
    (scene, reads), numerics = _deep(), Numerics(partial="input", merges=1)
    right = sum_up(_two_parts(scene, reads), scene, cast(Any, None), numerics)
    assert float(right.limit.max()) > 0.45
    assert bool(right.settled)
    for row in range(2, 59, 7):
        for other in (row - 1, row + 1):  # a key of its parent or its child in place of its own
            seen = [list(slots) for slots in reads]
            seen[row][-1] = reads[-1][SHORT + other]
            found = sum_up(_two_parts(scene, seen), scene, cast(Any, None), numerics)
            assert not bool(found.settled)
            assert found.wrong.nonzero().flatten().tolist() == [row]


@pytest.mark.parametrize(("heads", "lanes"), [(1, 16), (1, 64), (2, 64)])
def test_codes_are_made_where_no_request_has_a_prefix(heads: int, lanes: int) -> None:
    """Of no rows, and of one word a row: such tensors have strides of 0."""
    request = Request(tree=FORK, row_of_node=(0, 1, 2), prefix_len=0)
    shape = AttentionShape(
        num_q_heads=heads, num_kv_heads=heads, head_dim=16, v_head_dim=lanes, dtype="float32"
    )
    layout = KVLayout(page_size=1, num_slots=16)
    case = VerifyCase(requests=(request,), shape=shape, layout=layout, seed=3)
    checked = check_case(case, load("direct-mask"), CheckOptions(profile="soak"))
    assert checked.failures == ()
    assert "pass" in {cell.status for cell in checked.cells if cell.identity == "visibility"}


def test_a_prefix_of_one_key_has_a_code_as_well() -> None:
    layout = KVLayout(page_size=4, num_slots=64)
    request = Request(
        tree=CandidateTree(tokens=(1,), parents=(-1,)), row_of_node=(0,), prefix_len=1
    )
    shape = AttentionShape(
        num_q_heads=1, num_kv_heads=1, head_dim=64, v_head_dim=64, dtype="bfloat16"
    )
    scene = Scene.of(VerifyCase(requests=(request,), shape=shape, layout=layout, seed=5))

    assert bool(summed(scene, [[(0, 0), (0, 1)]], lit=None).settled)
    assert not bool(summed(scene, [[(0, 1)]], lit=None).settled)
