"""A drafter that is right for exactly as long as it is told to be."""

from __future__ import annotations

from collections.abc import Sequence

from treeproof.contract.counter import address_hash
from treeproof.contract.tree import CandidateTree

_WORD = 701  # address word of the draw


def drafted(
    parents: Sequence[int], accept: int, truth: Sequence[int], vocab: int, seed: int
) -> CandidateTree:
    """The tree with tokens: those on the path to node `accept` are `truth`, and nothing else is.

    `truth[d]` is what plain decoding has at depth d, the root's own token first. A node beside the path may carry what is right elsewhere, and never what is right
    where it stands.
    """
    depth, path = [0] * len(parents), {accept}
    for node, parent in enumerate(parents[1:], start=1):
        depth[node] = depth[parent] + 1
    node = accept
    while node > 0:
        node = parents[node]
        path.add(node)
    tokens = [truth[0]]
    taken: list[set[int]] = [set() for _ in parents]
    for node in sorted(path - {0}):
        taken[parents[node]].add(truth[depth[node]])
    for node, parent in enumerate(parents[1:], start=1):
        if node in path:
            tokens.append(truth[depth[node]])
            continue
        # The right token continues the path, and elsewhere it tempts as others do.
        barred = taken[parent] | ({truth[depth[node]]} if parent in path else set())
        token = address_hash(seed, _WORD, node) % vocab
        while token in barred:
            token = (token + 1) % vocab
        taken[parent].add(token)
        tokens.append(token)
    return CandidateTree(tuple(tokens), tuple(parents))
