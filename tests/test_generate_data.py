"""The counter-based numbers: where they must agree, and where they must differ."""

import random

import msgspec
import pytest
import torch

from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.counter import address_hash
from treeproof.contract.tree import CandidateTree
from treeproof.generate.data import hash_tensor, logical_data, normal


def case_of(prefixes, *, tokens=(), shared=0, dtype="float32", seed=3, spread=1.0, **shape):
    tree = CandidateTree((5, 6, 7), (-1, 0, 0))
    requests = tuple(
        Request(tree=tree, row_of_node=(0, 2, 1), prefix_len=p, prefix_tokens=tokens[:p])
        for p in prefixes
    )
    heads = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 32, "v_head_dim": 16} | shape
    return VerifyCase(
        requests=requests,
        shape=AttentionShape(dtype=dtype, **heads),
        layout=KVLayout(page_size=1, num_slots=4096, shared_prefix=shared),
        seed=seed,
        score_spread=spread,
    )


def test_the_first_word_is_the_published_splitmix64_stream():
    # First output of SplitMix64 seeded with 1234567, as in its reference implementation's tests.
    assert address_hash(1234567) == 6457827717110365317
    assert int(hash_tensor(1234567)) == 6457827717110365317


def test_golden_vector_of_addresses_stays_where_it_is():
    golden = {
        (0, 1, 0, 0): 0xD1C0270687984B37,
        (7, 1, 2, -3): 0x3EE40B3F03A95D55,
        (2**63 - 1, 5, 2**40, 2**64 - 1): 0x04032657A2442C11,
    }
    assert {key: address_hash(*key) for key in golden} == golden
    for (seed, *words), expected in golden.items():
        tensors = [torch.tensor(address_hash_word(word)) for word in words]
        assert int(hash_tensor(seed, *tensors)) % 2**64 == expected


def address_hash_word(word):
    return (word + 2**63) % 2**64 - 2**63


def test_the_tensor_hash_equals_the_integer_hash_bit_for_bit():
    rng = random.Random(0)
    for _ in range(200):
        seed = rng.getrandbits(63)
        fixed = rng.getrandbits(64)
        a = [rng.getrandbits(64) - 2**63 for _ in range(3)]
        b = [rng.randrange(-5, 5) for _ in range(4)]
        got = hash_tensor(seed, fixed, torch.tensor(a)[:, None], 9, torch.tensor(b))
        assert got.dtype == torch.int64
        want = [[address_hash(seed, fixed, x, 9, y) for y in b] for x in a]
        assert [[int(v) % 2**64 for v in row] for row in got] == want


def test_hashing_leaves_its_arguments_alone():
    words = torch.arange(4)
    hash_tensor(1, 2, words, words)
    assert words.tolist() == [0, 1, 2, 3]


def test_normal_numbers_are_the_sum_of_four_pieces_with_variance_one():
    got = normal(5, torch.arange(50_000))
    assert got.dtype == torch.float64
    for i in (0, 1, 49_999):
        bits = address_hash(5, i)
        pieces = sum((bits >> shift) & 0xFFFF for shift in (0, 16, 32, 48))
        # Four uniform pieces on 0 … 65535: variance 4 * (65536**2 - 1) / 12.
        want = (pieces - 131070) / (4 * (65536**2 - 1) / 12) ** 0.5
        assert float(got[i]) == pytest.approx(want, rel=1e-15, abs=1e-15)
    # Standard errors of mean and variance at 50,000 draws are 0.0045 and 0.0056: five of each.
    assert abs(float(got.mean())) < 0.0225
    assert abs(float(got.var()) - 1) < 0.028


def test_logical_data_has_the_shapes_and_dtype_of_the_case():
    data = logical_data(case_of((3, 0), dtype="bfloat16"))
    assert [tuple(t.shape) for t in data.q] == [(3, 4, 32)] * 2
    assert [tuple(t.shape) for t in data.k_prefix] == [(3, 2, 32), (0, 2, 32)]
    assert [tuple(t.shape) for t in data.v_prefix] == [(3, 2, 16), (0, 2, 16)]
    assert [tuple(t.shape) for t in data.k_tree] == [(3, 2, 32)] * 2
    assert [tuple(t.shape) for t in data.v_tree] == [(3, 2, 16)] * 2
    tensors = [t for field in vars(data).values() for t in field]
    assert {t.dtype for t in tensors} == {torch.bfloat16}


def test_each_number_is_the_one_its_address_names():
    data = logical_data(case_of((5, 4), seed=11))
    value = data.k_prefix[1][2, 1, 7]
    assert value == normal(11, 2, 1, 2, 1, 7).to(torch.float32)
    assert data.v_tree[0][1, 0, 3] == normal(11, 5, 0, 1, 0, 3).to(torch.float32)


def test_no_two_tensors_share_a_number_by_accident():
    data = logical_data(case_of((40, 40)))
    numbers = torch.cat([t.flatten() for field in vars(data).values() for t in field])
    # The 16-bit pieces give about 2**17 distinct sums: repeats are chance, whole rows are not.
    rows = numbers[: len(numbers) // 8 * 8].reshape(-1, 8)
    assert len(torch.unique(rows, dim=0)) == len(rows)


def test_a_longer_prefix_keeps_the_numbers_of_the_shorter_one():
    # 3,000 keys of 2 x 32 numbers are several hash blocks; 10 keys are one.
    long, short = logical_data(case_of((3000,))), logical_data(case_of((10,)))
    assert torch.equal(long.k_prefix[0][:10], short.k_prefix[0])
    assert torch.equal(long.v_prefix[0][:10], short.v_prefix[0])
    assert long.k_prefix[0][2999, 1, 15] == normal(3, 2, 0, 2999, 1, 15).to(torch.float32)


def test_a_shared_prefix_holds_request_0s_numbers_and_the_rest_are_its_own():
    shared = logical_data(case_of((6, 8), shared=4))
    assert torch.equal(shared.k_prefix[1][:4], shared.k_prefix[0][:4])
    assert torch.equal(shared.v_prefix[1][:4], shared.v_prefix[0][:4])
    assert not torch.equal(shared.k_prefix[1][4:6], shared.k_prefix[0][4:6])
    apart = logical_data(case_of((6, 8)))
    assert not torch.equal(apart.k_prefix[1][:4], apart.k_prefix[0][:4])


def test_prefix_tokens_decide_keys_and_values_where_they_are_given():
    same = logical_data(case_of((3, 3), tokens=(9, 8, 9)))
    assert torch.equal(same.k_prefix[0], same.k_prefix[1])
    other = logical_data(case_of((3,), tokens=(9, 7, 9)))
    equal = [torch.equal(other.k_prefix[0][i], same.k_prefix[0][i]) for i in range(3)]
    assert equal == [True, False, True]
    assert not torch.equal(same.k_prefix[0][0], same.k_prefix[0][2])


def test_a_prefix_token_is_never_taken_for_a_request():
    mixed = case_of((3, 3))
    first = msgspec.structs.replace(mixed.requests[0], prefix_tokens=(1, 1, 1))
    data = logical_data(msgspec.structs.replace(mixed, requests=(first, mixed.requests[1])))
    assert not torch.equal(data.k_prefix[0], data.k_prefix[1])


def test_the_score_spread_multiplies_queries_before_rounding():
    wide = logical_data(case_of((2,), spread=3.0, dtype="bfloat16"))
    exact = normal(3, 1, 0, 2, 3, 5) * 3.0
    assert wide.q[0][2, 3, 5] == exact.to(torch.bfloat16)
    plain = logical_data(case_of((2,), dtype="bfloat16"))
    assert torch.equal(wide.k_tree[0], plain.k_tree[0])
