"""Counter-based randomness: held to published numbers and to literals of its own."""

import numpy as np
import pytest

from treeproof.contract.counter import GOLDEN_GAMMA, address_hash, hash_words, mix, permutation

# The first outputs of SplitMix64 seeded with 0 (Vigna's reference implementation): each is the
# finaliser of the next multiple of the golden gamma.
SPLITMIX64 = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC)


def test_mix_is_the_finaliser_of_splitmix64() -> None:
    states = [(i * GOLDEN_GAMMA) % 2**64 for i in (1, 2, 3, 4)]
    assert tuple(map(mix, states)) == SPLITMIX64


def test_an_address_steps_as_splitmix64_does() -> None:
    assert address_hash(0) == SPLITMIX64[0]
    # The word that turns the state back into one gamma makes the next state two of them.
    assert address_hash(0, SPLITMIX64[0] ^ GOLDEN_GAMMA) == SPLITMIX64[1]
    second = SPLITMIX64[1] ^ (2 * GOLDEN_GAMMA) % 2**64
    assert address_hash(0, SPLITMIX64[0] ^ GOLDEN_GAMMA, second) == SPLITMIX64[2]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((0, 0), 0xA706DD2F4D197E6F),
        ((0, 1), 0x08B4FDA8C892B50E),
        ((1, 0), 0x5E41AB087439611E),
        ((7, 101, 0, 3), 0x9066EDDE0D82136B),
        ((9223372036854775807, 9223372036854775807), 0x966A83359A5398B2),
        ((5, -1), 0xB6C39F51AF8B94F6),
    ],
)
def test_golden_hashes_stay_what_they_are(words: tuple[int, ...], expected: int) -> None:
    assert address_hash(*words) == expected


def test_every_word_and_their_order_matter() -> None:
    hashes = [
        address_hash(*words)
        for words in ((1, 2, 3), (1, 3, 2), (2, 1, 3), (1, 2), (1, 2, 3, 0), (1, 2, 4), (0, 2, 3))
    ]
    assert len(set(hashes)) == len(hashes)


def test_words_count_modulo_64_bits() -> None:
    assert address_hash(3, -1) == address_hash(3, 2**64 - 1)
    assert address_hash(3, -1) != address_hash(3, 2**63 - 1)
    assert 0 <= address_hash(2**63 - 1, 2**63 - 1) < 2**64


def test_golden_permutations_stay_what_they_are() -> None:
    assert permutation(8, 0) == [1, 4, 5, 7, 6, 0, 3, 2]
    assert permutation(8, 1, 101) == [5, 6, 1, 7, 2, 4, 3, 0]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 17, 1000])
def test_a_permutation_holds_every_number_once(count: int) -> None:
    for seed in range(5):
        assert sorted(permutation(count, seed, 7)) == list(range(count))


def test_permutations_reach_every_order() -> None:
    orders = {tuple(permutation(4, seed)) for seed in range(400)}
    assert len(orders) == 24


def test_many_words_hash_as_each_of_them_alone() -> None:
    words = np.array([0, 1, 2**32, 2**63, 2**64 - 1], dtype=np.uint64)

    hashed = hash_words(address_hash(7, 101), words)

    assert hashed.tolist() == [address_hash(7, 101, int(word)) for word in words]


def test_a_permutation_is_the_order_of_the_hashes() -> None:
    hashes = [address_hash(5, 101, i) for i in range(300)]

    assert permutation(300, 5, 101) == sorted(range(300), key=lambda i: hashes[i])
