"""Visibility in some heads only: they follow another statement, the others the truth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from treeproof.diagnosis.hypothesis import Hypothesis, hypothesis
from treeproof.diagnosis.keys import KEYS
from treeproof.diagnosis.masks import MASKS
from treeproof.diagnosis.pages import PAGES
from treeproof.diagnosis.prefix_length import PREFIX_LENGTH
from treeproof.diagnosis.visibility import VISIBILITY
from treeproof.diagnosis.window import WINDOW
from treeproof.diagnosis.world import World

_BASES = (*VISIBILITY, *MASKS, *WINDOW, *PREFIX_LENGTH, *KEYS, *PAGES)


@hypothesis("one-head-only", "some heads read other keys than the others do", "attend", narrow="no")
def one_head_only(right: World) -> Iterator[tuple[str, World]]:
    count, group = right.ground.case.shape.num_q_heads, right.ground.case.shape.group_size
    if count == 1:
        return
    choices = {
        "the first head": {0},
        "all heads but the first": set(range(1, count)),
        "the last head": {count - 1},
        "all heads but the last": set(range(count - 1)),
        "heads of the first KV head": set(range(group)),
        "heads past the first KV head": set(range(group, count)),
        "heads of the last KV head": set(range(count - group, count)),
        "odd heads": set(range(1, count, 2)),
        "even heads": set(range(0, count, 2)),
        "the first half of the heads": set(range(count // 2)),
        "the second half of the heads": set(range(count // 2, count)),
    }
    for base in _BASES:
        for detail, world in base.states(right):
            if world.seen == right.seen or world.written is not right.written:
                continue
            for name, some in choices.items():
                heads = frozenset(some)
                if 0 < len(heads) < count:
                    way = f" ({detail})" if detail else ""
                    yield (
                        f"{name}: {base.name}{way}",
                        replace(world, heads=heads, others=right.seen),
                    )


HEADS: tuple[Hypothesis, ...] = (one_head_only,)
