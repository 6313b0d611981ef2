"""A drafter that is right for exactly as long as it is told to be."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from treeproof.contract.case import Request
from treeproof.contract.counter import address_hash
from treeproof.contract.script import Turn
from treeproof.contract.tree import CandidateTree
from treeproof.engine.serving.request import Served
from treeproof.engine.simplify import keep_nodes

_WORD = 701  # address word of the draw


def drafted_request(
    request: Request, served: Served, turn: Turn, seed: int, *, sampled: bool = False
) -> Request:
    """The request with its tree filled in, behind what is ready of it. Where the round is `sampled`, beside
    the path there is what is likely."""
    if turn.nodes is not None and turn.nodes < request.num_nodes:
        request = keep_nodes(request, range(turn.nodes))
    depth = max(request.tree.depth)
    truth = served.truth
    truth.grow(served.ready + depth + 1)
    likely = [
        truth.logits(position).argsort(descending=True).tolist()
        for position in range(served.ready, served.ready + (depth if sampled else 0))
    ]
    tree = drafted(
        request.tree.parents,
        turn.accept,
        truth.tokens[served.ready : served.ready + depth + 1],
        truth.model.vocab_size,
        seed,
        likely,
    )
    return replace(request, tree=tree, prefix_len=served.ready, prefix_tokens=())


def idle_request() -> Request:
    """One row that nobody asked for."""
    return Request(tree=drafted((-1,), 0, (0,), 1, 0), row_of_node=(0,), prefix_len=0)


def drafted(
    parents: Sequence[int],
    accept: int,
    truth: Sequence[int],
    vocab: int,
    seed: int,
    likely: Sequence[Sequence[int]] = (),
) -> CandidateTree:
    """The tree with tokens: those on the path to node `accept` are `truth`, and nothing else is.

    `truth[d]` is what plain decoding has at depth d, the root's own token first. A node beside the path may
    carry what is right elsewhere, and never what is right where it stands. `likely[d]`, where it is
    given: tokens by falling probability after the path's node at depth d, which its children carry.
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
        if likely and parent in path:
            token = next(one for one in likely[depth[parent]] if one not in barred)
        while token in barred:
            token = (token + 1) % vocab
        taken[parent].add(token)
        tokens.append(token)
    return CandidateTree(tuple(tokens), tuple(parents))
