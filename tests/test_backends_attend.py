"""The five backends against dense attention over key lists written out from the drawn tree."""

from dataclasses import replace

import pytest
import torch
from backend_scene import BACKENDS, CHAIN, ROOT, SITUATIONS, Scene, Situation, case_of

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.inputs import TENSOR_FIELDS
from treeproof.contract.layout import KVLayout
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.registry import load
from treeproof.contract.shape import AttentionShape
from treeproof.contract.tree import CandidateTree
from treeproof.generate.pool import candidates


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Tensors this small are slower on more threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def able(name, scene):
    return load(name).capabilities.refusal(scene.case, "cpu") is None


PAIRS = [
    pytest.param(name, situation, id=f"{name}-{label}")
    for name in BACKENDS
    for label, situation in SITUATIONS.items()
    if load(name).capabilities.refusal(case_of(situation), "cpu") is None
]


def test_every_backend_takes_full_attention_and_four_take_windows_at_least():
    windows = sum(load(name).capabilities.windows for name in BACKENDS)
    assert windows >= 4
    assert all(load(name).capabilities.full for name in BACKENDS)


@pytest.mark.parametrize(("name", "situation"), PAIRS)
def test_every_row_is_attention_over_its_own_path(name, situation):
    scene, backend = Scene(situation), load(name).make()
    attended = scene.attend(backend, scene.built(backend))
    assert attended.out.dtype == getattr(torch, situation.dtype)
    assert attended.out.shape == (scene.case.num_rows, situation.heads[0], situation.dims[1])
    assert attended.lse.dtype == torch.float32
    with_sink = load(name).capabilities.lse_includes_sink
    assert scene.wrong_rows(attended, with_sink) == set()


PARTS = {
    "softcap": {"softcap": None},
    "sinks": {"sinks": False},
    "alibi": {"alibi": False},
    "scale": {"scale": None},
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", BACKENDS)
def test_leaving_one_thing_out_of_a_logit_shows_in_every_row(name, part):
    """The comparison above is no comparison of things too small to see."""
    scene, backend = Scene(SITUATIONS["everything"]), load(name).make()
    without = Scene(replace(SITUATIONS["everything"], **PARTS[part]))
    # As a backend that does not know the part would compute it.
    attended = scene.attend(backend, without.built(backend))
    wrong = scene.wrong_rows(attended, load(name).capabilities.lse_includes_sink)
    rows = {row for _, node, row in scene.real_rows() if part != "softcap" or node}
    assert rows <= wrong | {0} if part in ("alibi", "softcap") else rows <= wrong


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(
    "label",
    [
        "full-mask", "bit-packed", "padded-rows-without-a-slot", "evicted-pages", "root-alone",
        "everything",
    ],
)  # fmt: skip
def test_fields_that_are_not_consumed_do_not_matter(name, label):
    scene, backend, info = Scene(SITUATIONS[label]), load(name).make(), load(name)
    x = scene.built(backend)
    garbage = {}
    for field in TENSOR_FIELDS:
        tensor = getattr(x, field)
        if field not in info.consumes and tensor is not None:
            garbage[field] = torch.full_like(tensor, 1 if tensor.dtype is torch.bool else 77777)
    spoiled = replace(x, **garbage)
    clean, other = scene.attend(backend, x), scene.attend(backend, spoiled)
    rows = [row for *_, row in scene.real_rows()]
    assert torch.equal(clean.out[rows], other.out[rows])
    assert torch.equal(clean.lse[rows], other.lse[rows])
    predicted = torch.arange(scene.case.num_rows) % 7 + 1
    a, other_a = backend.accept(x, predicted), backend.accept(spoiled, predicted)
    assert torch.equal(a.accept_index, other_a.accept_index)
    assert torch.equal(a.tokens, other_a.tokens)
    caches = [scene.k_cache.clone() for _ in range(4)]
    c, other_c = backend.commit(x, a, *caches[:2]), backend.commit(spoiled, a, *caches[2:])
    assert torch.equal(c.seq_lens, other_c.seq_lens)
    assert torch.equal(caches[0].view(torch.uint8), caches[2].view(torch.uint8))


@pytest.mark.parametrize("name", BACKENDS)
def test_each_consumed_field_is_needed(name):
    """Spoiling any field of `consumes` breaks a stage or changes what it gives: none is idle."""
    scene, backend = Scene(SITUATIONS["everything"]), load(name).make()
    x = scene.built(backend)

    def everything(given):
        k_cache, v_cache = scene.k_cache.clone(), scene.v_cache.clone()
        attended = backend.attend(given, scene.rows_q, scene.rows_k, scene.rows_v, k_cache, v_cache)
        a = backend.accept(
            given, torch.tensor([2, 0, 0, 0, 0, 4, 0, 101, 102, 0, 0, 0, 0, 204, 0, 0, 0, 0])
        )
        c = backend.commit(given, a, k_cache, v_cache)
        caches = [k_cache.view(torch.uint8), v_cache.view(torch.uint8)]
        return [attended.out, attended.lse, *caches, a.accept_index, a.tokens, c.seq_lens]

    clean = everything(x)
    for field in load(name).consumes:
        tensor = getattr(x, field)
        spoiled = ~tensor if tensor.dtype is torch.bool else tensor.roll(1) + (tensor.numel() < 6)
        try:
            same = all(map(torch.equal, clean, everything(replace(x, **{field: spoiled}))))
        except (IndexError, ValueError, RuntimeError):
            same = False
        assert not same, field


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_large_hidden_keys_and_values_have_no_influence_at_all(name, dtype):
    scene, backend = Scene(replace(SITUATIONS["ragged-batch"], dtype=dtype)), load(name).make()
    x = backend.build(scene.candidates())
    quiet = scene.attend(backend, x)
    hidden = 2  # row of node 2 in the first tree: only nodes 2, 4 and 6 see it
    k, v = scene.rows_k.clone(), scene.rows_v.clone()
    k[hidden], v[hidden] = 1e4, -1e4
    loud = scene.attend(backend, x, k, v)
    seers = [2, 6, 4]
    others = [row for row in range(scene.case.num_rows) if row not in seers]
    assert torch.equal(quiet.out[others], loud.out[others])
    assert torch.equal(quiet.lse[others], loud.lse[others])
    assert not torch.equal(quiet.out[seers], loud.out[seers])


@pytest.mark.parametrize(
    "name", [name for name in BACKENDS if load(name).capabilities.nan_safe], ids=str
)
@pytest.mark.parametrize("label", ["ragged-batch", "window-inside-the-prefix", "evicted-pages"])
def test_nan_in_what_a_row_must_not_read_stays_out_where_that_is_promised(name, label):
    scene, backend = Scene(SITUATIONS[label], nobody=float("nan")), load(name).make()
    if not able(name, scene):
        return
    x = backend.build(scene.candidates())
    quiet = scene.attend(backend, x)
    assert scene.wrong_rows(quiet) == set()
    k, v = scene.rows_k.clone(), scene.rows_v.clone()
    k[2], v[2] = float("nan"), float("nan")
    loud = scene.attend(backend, x, k, v)
    others = [row for *_, row in scene.real_rows() if row not in (2, 6, 4)]
    assert torch.equal(quiet.out[others], loud.out[others])


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("prefixes", [(30, 17, 40), (30, 2, 40), (30, 0, 40)], ids=str)
def test_a_slot_of_nobody_is_not_read_to_fill_up_a_request_beside_longer_ones(name, prefixes):
    """Not even at weight 0: 0 times NaN is NaN, whether or not a backend promises anything of hidden rows."""
    situation = replace(SITUATIONS["evicted-pages"], prefixes=prefixes, table_pad=-1, pad_slot=-1)
    scene, backend = Scene(situation, nobody=float("nan")), load(name).make()
    assert scene.wrong_rows(scene.attend(backend, scene.built(backend))) == set()


@pytest.mark.parametrize(
    "name", [name for name in BACKENDS if load(name).capabilities.nan_safe], ids=str
)
def test_a_root_that_is_outside_a_window_stays_out_beside_a_request_with_keys_for_all_rows(name):
    """All rows of ROOT share keys of the prefix, and those of CHAIN share none, not even the root."""
    situation = Situation(trees=(CHAIN, ROOT), prefixes=(9, 7), pads=(0, 0), window=4)
    scene, backend = Scene(situation), load(name).make()
    x = backend.build(scene.candidates())
    v = scene.rows_v.clone()
    v[0] = float("nan")
    loud = scene.attend(backend, x, v=v)
    assert loud.out[:4].isnan().all()
    assert scene.wrong_rows(loud) == {0, 1, 2, 3}


def test_cells_past_the_end_of_a_line_are_not_read():
    scene, backend = Scene(SITUATIONS["ragged-batch"]), load("page-table").make()
    x = backend.build(scene.candidates())
    past = torch.arange(x.page_table.shape[1]) >= x.cache_seqlens[:, None]
    spoiled = replace(x, page_table=x.page_table.masked_fill(past, 77777))
    assert past.any()
    assert scene.wrong_rows(scene.attend(backend, spoiled)) == set()


def test_direct_mask_does_not_promise_what_it_cannot_hold():
    assert not load("direct-mask").capabilities.nan_safe


@pytest.mark.parametrize("name", BACKENDS)
def test_a_chain_of_a_thousand_rows_is_taken(name):
    nodes = 1024
    tree = CandidateTree(tuple(range(nodes)), tuple(range(-1, nodes - 1)))
    case = VerifyCase(
        requests=(Request(tree=tree, row_of_node=tuple(range(nodes)), prefix_len=3),),
        shape=AttentionShape(num_q_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16),
        layout=KVLayout(page_size=1, num_slots=2048),
    )
    ledger, backend = SlotLedger.of(case), load(name).make()
    x = backend.build(candidates(case, ledger))
    # Uniform weights over values that count: row i averages the three zeros and its i + 1 ones.
    q, v = torch.zeros(nodes, 1, 16), torch.ones(nodes, 1, 16)
    attended = backend.attend(x, q, v, v, torch.zeros(2048, 1, 16), torch.zeros(2048, 1, 16))
    seen = torch.arange(1, nodes + 1)
    assert torch.allclose(attended.out[:, 0, 0], seen / (seen + 3), atol=1e-5)
    assert torch.allclose(attended.lse[:, 0], (seen + 3.0).log(), atol=1e-5)
