"""A small language model as plain data: what an engine of ours and its oracle both run.

Token embeddings x of `width` lanes. In each layer, norm(x) = x / sqrt(mean(x^2) + 2^-20):
x += attention(norm(x) Q, norm(x) K, norm(x) V) O, then x += silu(norm(x) U) D. Attention has `heads`
heads of width / heads lanes, scores scaled by lanes ** -0.5; queries and keys are turned to their
logical index, lane i of a head with lane i + lanes/2, by index * rotary ** (-2i / lanes) radians, an
angle that is taken in float64. Logits are norm(x) H. No biases; rows are multiplied from the left.
"""

from __future__ import annotations

import math
from functools import lru_cache

from treeproof.contract.counter import address_hash
from treeproof.contract.typed import Typed

NORM_FLOOR = 2.0**-20


class TargetModel(Typed, frozen=True, kw_only=True):
    """Sizes and the seed of the weights; every weight is a float32 number."""

    vocab_size: int = 61
    width: int = 32
    heads: int = 2
    layers: int = 2
    hidden: int = 48
    rotary: float = 100.0
    seed: int = 1

    @property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """(rows, columns) of each matrix: `embed`, `head`, and `q0`, `k0`, ... of each layer."""
        wide = (self.width, self.width)
        found = {"embed": (self.vocab_size, self.width), "head": (self.width, self.vocab_size)}
        for layer in range(self.layers):
            found |= {f"{name}{layer}": wide for name in "qkvo"}
            found |= {f"up{layer}": (self.width, self.hidden)}
            found |= {f"down{layer}": (self.hidden, self.width)}
        return found


@lru_cache(maxsize=4)
def weights(model: TargetModel) -> dict[str, tuple[tuple[float, ...], ...]]:
    """Every matrix by name, as rows. Uniform, with a variance of about 1 / rows; embeddings of 1/3."""
    found = {}
    for number, (name, (rows, columns)) in enumerate(model.shapes.items()):
        # A power of two, so that 16 random bits stay exact.
        size = 1.0 if name == "embed" else 2.0 ** round(math.log2(math.sqrt(3 / rows)))
        found[name] = tuple(
            tuple(
                size * ((address_hash(model.seed, number, i, j) & 0xFFFF) - 32767.5) / 32768
                for j in range(columns)
            )
            for i in range(rows)
        )
    return found
