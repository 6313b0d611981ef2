"""Counter-based randomness: a number is a function of its address, on every machine alike.

The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) applied to a
running state; `treeproof.generate.data` holds the same function on tensors. A golden vector in
the tests keeps both where they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_MASK = (1 << 64) - 1
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB


def mix(state: int) -> int:
    """SplitMix64's finaliser: 64 bits in, 64 well-mixed bits out."""
    state = ((state ^ (state >> 30)) * MIX_1) & _MASK
    state = ((state ^ (state >> 27)) * MIX_2) & _MASK
    return state ^ (state >> 31)


def address_hash(seed: int, *address: int) -> int:
    """64 bits that depend on the seed and on every word of the address, in order."""
    state = mix((seed + GOLDEN_GAMMA) & _MASK)
    for word in address:
        state = mix((state ^ (word & _MASK)) + GOLDEN_GAMMA & _MASK)
    return state


def hash_words(
    state: int | npt.NDArray[np.uint64], words: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """`address_hash` goes on from `state` by one more word, for many words at a time."""
    import numpy as np

    mixed = (words ^ np.asarray(state, dtype=np.uint64)) + np.uint64(GOLDEN_GAMMA)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(MIX_1)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(MIX_2)
    return mixed ^ (mixed >> np.uint64(31))


def permutation(count: int, seed: int, *address: int) -> list[int]:
    """A permutation of range(count), drawn from the address."""
    order: list[int] = permuted(count, seed, *address).tolist()
    return order


def permuted(count: int, seed: int, *address: int) -> npt.NDArray[np.int64]:
    """`permutation` as an array: range(count) sorted by the hashes of its numbers."""
    import numpy as np

    keys = hash_words(address_hash(seed, *address), np.arange(count, dtype=np.uint64))
    return np.argsort(keys)  # no two are equal: every step of the hash can be undone
