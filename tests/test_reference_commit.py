"""KV commit and the reference write: which rows move where, and where the boundary lands."""

import pytest
import torch

from treeproof.backends.reference.commit import bonus_tokens, commit, source_slots, target_slots
from treeproof.backends.reference.store import store_kv
from treeproof.backends.reference.used import used
from treeproof.contract.case import AttentionShape, KVLayout
from treeproof.contract.inputs import Accepted, VerifyInput

SHAPE = AttentionShape(num_q_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16)


def placed(out_cache_loc, prefixes, rows):
    """A verify input with nothing but where rows live."""
    starts = torch.tensor([0, *rows]).cumsum(0)
    return VerifyInput(
        draft_token=torch.zeros(sum(rows)),
        positions=torch.zeros(sum(rows)),
        seq_lens=torch.tensor(prefixes),
        qo_indptr=starts,
        out_cache_loc=torch.tensor(out_cache_loc),
        request_slots=torch.zeros(len(rows)),
        req_to_token=torch.zeros(len(rows), 1),
        topk=2,
        spec_steps=3,
        shape=SHAPE,
        kv=KVLayout(page_size=1, num_slots=64),
    )


def accepted(paths, tokens, width=4):
    def padded(rows):
        return torch.tensor([row + [-1] * (width - len(row)) for row in rows])

    return Accepted(
        accept_index=padded(paths),
        accept_len=torch.tensor([len(path) for path in paths]),
        tokens=padded(tokens),
    )


def caches(slots=64, heads=2):
    k = torch.arange(slots, dtype=torch.float32)[:, None, None].repeat(1, heads, 3)
    return k, -k.clone()


def test_the_recorded_sources_are_the_slots_of_the_accepted_rows():
    index = torch.tensor([[0, 1, -1, -1], [16, 18, 21, -1], [32, -1, -1, -1]])
    sources = source_slots(torch.arange(1000, 1048), index)
    assert sources.tolist() == [1000, 1001, 1016, 1018, 1021, 1032]


def test_the_recorded_targets_are_the_first_slots_of_each_window():
    targets = target_slots(
        torch.arange(1000, 1048), torch.tensor([0, 16, 32, 48]), torch.tensor([2, 3, 1])
    )
    assert targets.tolist() == [1000, 1001, 1016, 1017, 1018, 1032]


def test_the_recorded_bonus_is_the_last_emitted_token():
    tokens = torch.arange(12).view(3, 4)
    assert bonus_tokens(tokens, torch.tensor([2, 3, 1])).tolist() == [1, 6, 8]


def test_the_boundary_shifts_over_root_and_accepted_drafts_and_the_bonus_waits_outside():
    # R, D1, D2, D3 are rows 0 to 3 after a prefix of P = 6; all drafts accepted, B = 99 emitted.
    x = placed([20, 21, 22, 23], [6], [4])
    k, v = caches()
    before = k.clone(), v.clone()
    c = commit(x, accepted([[0, 1, 2, 3]], [[11, 12, 13, 99]]), k, v)
    assert c.seq_lens.tolist() == [10]  # R, D1, D2, D3 are inside [0, 10); B's position is 10
    assert c.next_root.tolist() == [99]
    assert torch.equal(k, before[0])
    assert torch.equal(v, before[1])


def test_accepted_rows_move_to_the_front_even_where_sources_and_targets_overlap():
    # Request 0 keeps rows 0, 2, 3: row 2 goes to slot 8, whence row 3 goes to slot 3 it left.
    x = placed([9, 8, 3, 5, 40, 41, 42], [4, 0], [4, 3])
    k, v = caches()
    c = commit(x, accepted([[0, 2, 3], [4, 6]], [[7, 8, 9], [5, 6]]), k, v)
    assert [k[slot, 0, 0].item() for slot in (9, 8, 3)] == [9.0, 3.0, 5.0]
    assert [k[slot, 0, 0].item() for slot in (40, 41)] == [40.0, 42.0]
    assert torch.equal(v, -k)
    assert c.seq_lens.tolist() == [7, 2]
    assert c.next_root.tolist() == [9, 6]


def test_slots_outside_the_committed_columns_keep_their_contents():
    x = placed([9, 8, 3, 5], [4], [4])
    k, v = caches()
    commit(x, accepted([[0, 3]], [[7, 9]]), k, v)
    changed = (k[:, 0, 0] != torch.arange(64)).nonzero().flatten().tolist()
    assert changed == [8]


def test_a_wrong_accept_index_moves_the_wrong_row():
    x = placed([9, 8, 3, 5], [4], [4])
    k, v = caches()
    commit(x, accepted([[0, 2]], [[7, 9]]), k, v)
    assert k[8, 0, 0].item() != 5.0


def test_store_writes_rows_at_their_slots_and_nowhere_else():
    x = placed([5, 2, 9], [0], [3])
    k_cache, v_cache = torch.zeros(12, 1, 3), torch.zeros(12, 1, 2)
    k, v = torch.arange(1.0, 10.0).view(3, 1, 3), torch.arange(1.0, 7.0).view(3, 1, 2)
    store_kv(x, k, v, k_cache, v_cache)
    assert torch.equal(k_cache[[5, 2, 9]], k)
    assert torch.equal(v_cache[[5, 2, 9]], v)
    rest = [slot for slot in range(12) if slot not in (5, 2, 9)]
    assert not k_cache[rest].any()
    assert not v_cache[rest].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_store_leaves_padding_without_a_slot_unwritten(dtype):
    x = placed([3, -1, -1], [0], [3])
    k_cache = torch.zeros(4, 1, 2, dtype=dtype)
    rows = torch.tensor([1.0, 2.0, 3.0], dtype=dtype)[:, None, None].expand(3, 1, 2)
    store_kv(x, rows, rows, k_cache, k_cache.clone())
    assert k_cache[:, 0, 0].tolist() == [0, 0, 0, 1]


def test_store_tells_that_it_was_used():
    token = used.set(frozenset())
    try:
        x = placed([1], [0], [1])
        cache = torch.zeros(2, 1, 2)
        store_kv(x, cache[:1], cache[:1], cache, cache.clone())
        assert used.get() == {"store"}
    finally:
        used.reset(token)
