"""Traversal: links describe the drawn tree, and acceptance walks it as the oracle does."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from treeproof.contract.case import VerifyCase
from treeproof.contract.counter import address_hash
from treeproof.contract.failure import Failure
from treeproof.oracles.traversal import greedy_walk
from treeproof.properties.naming import row_name

_OFF_PATH, _STOP = 307, 311  # address words of the drawn predictions
VOCABULARY = 2**31

Parents = tuple[tuple[int | None, ...], ...]


def recover_links(
    next_token: Sequence[Sequence[int]], next_sibling: Sequence[Sequence[int]], rows: Sequence[int]
) -> Parents:
    """Declared: parent row of each row, by following links from the root.

    None: not reached, or reached twice (then the links are no tree).
    """
    recovered = []
    for b, count in enumerate(rows):
        parents: list[int | None] = [None] * count
        parents[0] = -1
        twice: set[int] = set()
        queue = [0]
        for row in queue:
            child, steps = next_token[b][row], 0
            while 0 <= child < count and steps <= count:
                if parents[child] is not None:
                    twice.add(child)
                    break
                parents[child] = row
                queue.append(child)
                child, steps = next_sibling[b][child], steps + 1
        recovered.append(tuple(None if r in twice else p for r, p in enumerate(parents)))
    return tuple(recovered)


def recover_walked(
    walks: Sequence[tuple[int, Sequence[int], Sequence[int]]], rows: Sequence[int]
) -> Parents:
    """Measured: parent row of each row from the accepted paths (request, local rows, tokens)."""
    recovered: list[list[int | None]] = [[None] * n for n in rows]
    for request, accepted, _ in walks:
        parents = recovered[request]
        for parent, row in zip((-1, *accepted), accepted, strict=False):
            if 0 <= row < len(parents):
                parents[row] = parent
    return tuple(map(tuple, recovered))


def judge_parents(case: VerifyCase, parents: Parents, stage: str) -> list[Failure]:
    """Declared links against the drawn tree: every row reached once, under its own parent."""
    failures = []
    for b, request in enumerate(case.requests):
        for row, true in enumerate(request.parent_rows):
            found = parents[b][row]
            if found == true:
                continue
            kind = "unlinked-row" if found is None else "wrong-parent"
            says = (
                "is not reached exactly once by the links"
                if found is None
                else f"hangs under row {found} by the links, expected under row {true}"
            )
            failures.append(
                Failure(
                    identity="traversal", kind=kind, evidence="declared", stage=stage,
                    request=b, row=row, expected=str(true), actual=str(found),
                    message=f"{row_name(request, row)} {says}",
                )
            )  # fmt: skip
    return failures


def judge_retrieve_index(
    case: VerifyCase, index: Sequence[Sequence[int]], stage: str
) -> list[Failure]:
    """retrieve_index[b][i] is the batch-global row qo_indptr[b] + i, and -1 past the last node."""
    failures = []
    for b, request in enumerate(case.requests):
        for row, found in enumerate(index[b]):
            true = case.qo_indptr[b] + row if row < request.num_nodes else -1
            if found != true:
                failures.append(
                    Failure(
                        identity="traversal", kind="wrong-retrieve-index", evidence="declared",
                        stage=stage, request=b, row=row, expected=str(true), actual=str(found),
                        message=f"retrieve_index of row {row} is {found}, expected {true}",
                    )
                )  # fmt: skip
    return failures


def judge_link_cells(
    case: VerifyCase, name: str, table: Sequence[Sequence[int]], stage: str
) -> list[Failure]:
    """Every cell is -1 or a row of the request other than its root; on padding it is -1.

    Recovery ends a chain at any cell that names no row; a walk would go on from there.
    """
    failures = []
    for b, request in enumerate(case.requests):
        for row, found in enumerate(table[b]):
            padded = row >= request.num_nodes
            if found != -1 and (padded or not 0 < found < request.num_nodes):
                what = "padding" if padded else "a real row"
                failures.append(
                    Failure(
                        identity="traversal", evidence="declared",
                        kind="padding-link" if padded else "dangling-link",
                        stage=stage, request=b, row=row, expected="-1", actual=str(found),
                        message=f"{name} of row {row} ({what}) is {found}, expected -1"
                        + ("" if padded else f" or a row from 1 to {request.num_nodes - 1}"),
                    )
                )  # fmt: skip
        root = table[b][0]
        if name == "retrieve_next_sibling" and 0 < root < request.num_nodes:
            failures.append(
                Failure(
                    identity="traversal", kind="dangling-link", evidence="declared", stage=stage,
                    request=b, row=0, expected="-1", actual=str(root),
                    message=f"{name} of row 0 (the root) is {root}, expected -1",
                )
            )  # fmt: skip
    return failures


def judge_parent_table(
    case: VerifyCase, table: Sequence[Sequence[int]], stage: str
) -> list[Failure]:
    """retrieve_parent_token[b][i] is the parent's row; -1 on the root and past the last node."""
    failures = []
    for b, request in enumerate(case.requests):
        true = [*request.parent_rows, *[-1] * (len(table[b]) - request.num_nodes)]
        for row, (found, parent) in enumerate(zip(table[b], true, strict=True)):
            if found != parent:
                failures.append(
                    Failure(
                        identity="traversal", kind="wrong-parent", evidence="declared",
                        stage=stage, request=b, row=row, expected=str(parent), actual=str(found),
                        message=f"retrieve_parent_token of row {row} is {found}, expected {parent}",
                    )
                )  # fmt: skip
    return failures


@dataclass(frozen=True)
class Prediction:
    """What the target predicts at every row of the launch, and the walk that must follow.

    `tokens` (T,); `rows[b]` local rows accepted; `emitted[b]` tokens emitted, the bonus last.
    """

    tokens: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    emitted: tuple[tuple[int, ...], ...]


def predictions(case: VerifyCase, limit: int | None) -> list[Prediction]:
    """One prediction a leaf (every request takes its next one), and one that stops on the way.

    At most `limit` leaves, evenly spread over the tree; None: every leaf.
    """
    leaves = [request.tree.leaves for request in case.requests]
    most = max(map(len, leaves))
    rounds = most if limit is None else min(limit, most)
    found = []
    strangers = [
        [_stranger(case, b, node) for node in range(len(request.tree))]
        for b, request in enumerate(case.requests)
    ]
    for turn in range(rounds + 1):
        tokens: list[int] = []
        rows, emitted = [], []
        for b, request in enumerate(case.requests):
            tree = request.tree
            own = leaves[b]
            leaf = own[turn * len(own) // rounds if turn < rounds <= len(own) else turn % len(own)]
            path = tree.path(leaf)
            if turn == rounds:
                path = path[: 1 + address_hash(case.seed, _STOP, b) % len(path)]
            wanted = dict(itertools.pairwise(path))
            of_node = [
                tree.tokens[wanted[n]] if n in wanted else strangers[b][n] for n in range(len(tree))
            ]
            walk = greedy_walk(tree, of_node, max_len=len(tree))
            rows.append(tuple(request.row_of_node[n] for n in walk.nodes))
            emitted.append(tuple(walk.tokens))
            tokens += [of_node[n] for n in request.node_of_row]
            tokens += [0] * request.pad_rows
        found.append(Prediction(tuple(tokens), tuple(rows), tuple(emitted)))
    # Where nothing is to be stopped at, the last is another one again.
    return list(dict.fromkeys(found))


def _stranger(case: VerifyCase, b: int, node: int) -> int:
    """A token that none of the node's children carries."""
    tree = case.requests[b].tree
    taken = {tree.tokens[child] for child in tree.children(node)}
    drawn = address_hash(case.seed, _OFF_PATH, b, node)
    if case.requests[b].pad_rows and drawn % 2:
        token = 0  # padded rows mostly carry it: an acceptance that walks into them shows
    elif taken and drawn % 4 < 3:
        # One bit from a child's token: a comparison in a narrower type takes it for the child's.
        token = min(taken) ^ (1 << drawn // 4 % 31)
    else:
        token = drawn % VOCABULARY
    while token in taken:
        token = (token + 1) % VOCABULARY
    return token


def judge_walk(
    case: VerifyCase, prediction: Prediction, accepted: Sequence[Sequence[int]],
    lengths: Sequence[int],
) -> list[Failure]:  # fmt: skip
    """accept_index (batch-global rows) and accept_len against the oracle's walk."""
    failures = []
    for b, request in enumerate(case.requests):
        want = [case.qo_indptr[b] + row for row in prediction.rows[b]]
        padded = [*want, *[-1] * (len(accepted[b]) - len(want))]
        if lengths[b] != len(want) or list(accepted[b]) != padded:
            got = list(accepted[b])
            while got and got[-1] == -1:
                got.pop()
            # A hole is shown as it stands; all else as rows of the request.
            local = [i if i == -1 else i - case.qo_indptr[b] for i in got]
            failures.append(
                Failure(
                    identity="traversal", kind="wrong-walk", evidence="measured", stage="accept",
                    request=b, row=prediction.rows[b][-1], expected=str(list(prediction.rows[b])),
                    actual=str(local),
                    message=f"acceptance takes rows {local} with accept_len {lengths[b]}, expected "
                    f"{list(prediction.rows[b])}, the path to {row_name(request, prediction.rows[b][-1])}",
                )
            )  # fmt: skip
    return failures


def judge_bonus(
    case: VerifyCase, prediction: Prediction, tokens: Sequence[Sequence[int]],
    lengths: Sequence[int],
) -> list[Failure]:  # fmt: skip
    """The last emitted token is what the target predicts at the last accepted row; then -1."""
    failures = []
    for b, want in enumerate(prediction.emitted):
        last = len(want) - 1
        after = [token for token in tokens[b][max(0, lengths[b]) :] if token != -1]
        if after:
            failures.append(
                Failure(
                    identity="traversal", kind="tokens-past-the-bonus", evidence="measured",
                    stage="accept", request=b, row=prediction.rows[b][-1],
                    expected="-1", actual=str(after[0]),
                    message=f"tokens holds {after[0]} past the accept_len of {lengths[b]} of request "
                    f"{b}, expected -1",
                )
            )  # fmt: skip
        if tokens[b][last] != want[last]:
            failures.append(
                Failure(
                    identity="traversal", kind="wrong-bonus", evidence="measured", stage="accept",
                    request=b, row=prediction.rows[b][-1],
                    expected=str(want[last]), actual=str(tokens[b][last]),
                    message=f"the bonus token is {tokens[b][last]}, expected {want[last]}, the "
                    f"prediction at {row_name(case.requests[b], prediction.rows[b][-1])}",
                )
            )  # fmt: skip
    return failures
