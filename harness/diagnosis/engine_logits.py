"""The small model run again as a statement has it: rows read chosen tokens, layer after layer.

A prefix runs by itself before the rows, as it should. Under the truth this is `oracles.target`,
which a test holds it to.
"""

from __future__ import annotations

from functools import lru_cache

from torch import Tensor

from treeproof.contract.target_model import TargetModel
from treeproof.diagnosis.engine_reach import Layer, Place
from treeproof.oracles.target import held_of
from treeproof.oracles.target_steps import Memory, Steps, with_limit


@lru_cache(maxsize=1024)
def logits_of(
    model: TargetModel,
    prefixes: tuple[tuple[int, ...], ...],
    rows: tuple[Place, ...],
    tokens: tuple[int, ...],
    positions: tuple[int, ...],
    layers: tuple[Layer, ...],
) -> tuple[Tensor, Tensor]:
    """Logits (rows, vocabulary) without errors, float64, and the limit on errors (rows, 1).

    `prefixes`: tokens of each request's. `rows`: the real ones of the launch, with `tokens` and `positions`.
    """
    steps, held = Steps(model), [_kept(model, prefix) for prefix in prefixes]
    lying = [(b, c) for b, prefix in enumerate(prefixes) for c in range(len(prefix))]
    number = {place: i for i, place in enumerate((*lying, *rows))}
    x, turns = steps.embedded(tokens), steps.turns(positions)
    for n, layer in enumerate(layers):
        q, own = steps.projected(n, x, turns)
        memory = _by_query_head(sum((one[n] for one in held), steps.nothing) + own, model)
        out = q.new_zeros(*q.shape[:3], model.v_head_dim)
        for i, parts in enumerate(layer):
            for heads, line in parts:
                if line:
                    keys, values = ([number[pair[side]] for pair in line] for side in (0, 1))
                    of = slice(None) if heads is None or len(heads) == model.heads else list(heads)
                    seen = _some(memory, of, keys, values)
                    out[:, of, i : i + 1] = steps.attended(q[:, of, i : i + 1], seen)
        x = steps.carried(n, x, out)
    return with_limit(steps.logits(x))


def _some(memory: Memory, heads: slice | list[int], keys: list[int], values: list[int]) -> Memory:
    return Memory(memory.keys[:, heads][:, :, keys], memory.values[:, heads][:, :, values])


def _by_query_head(memory: Memory, model: TargetModel) -> Memory:
    """A head of keys and values for each query head."""
    group = model.heads // model.kv_heads
    return Memory(*(x.repeat_interleave(group, 1) for x in (memory.keys, memory.values)))


@lru_cache(maxsize=32)
def _kept(model: TargetModel, tokens: tuple[int, ...]) -> list[Memory]:
    """What each layer keeps of a prefix."""
    return held_of(Steps(model), tokens)
