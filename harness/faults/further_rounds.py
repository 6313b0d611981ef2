"""Defects of accept and commit: of how a tree is walked, and of what a walk leaves in the cache."""

from __future__ import annotations

from treeproof.faults.fault import Fault
from treeproof.faults.further_edits import defect
from treeproof.faults.smallest import CHAIN, FORK, case, request

_CHILD_FIRST = request(CHAIN, rows=(0, 2, 1))

_BONUS_OF_A_COUNT = (
    "tokens.append([predicted[row] for row in path] +",
    "bonus = predicted[first + len(path) - 1]\n"
    "            tokens.append([predicted[row] for row in path[:-1]] + [bonus] +",
)
_BOUNDARY_OF_ROWS = (
    "seq_lens=x.seq_lens + accepted.accept_len",
    "seq_lens=x.seq_lens + x.qo_indptr.diff()",
)

_WALKS: tuple[Fault, ...] = (
    defect(
        "bonus-of-the-row-so-many-down",
        "accept",
        ("traversal", "measured"),
        cause="bonus-from-row",
        says="the bonus is predicted by the row whose number is how many were accepted",
        smallest=case(request(FORK)),
        edits=dict.fromkeys(("direct-mask", "cascade"), (_BONUS_OF_A_COUNT,)),
    ),
    defect(
        "as-wide-as-topk",
        "accept",
        ("contract", "measured"),
        cause="wrong-shape",
        says="accepted paths are as wide as the tree is, not as it is deep",
        smallest=case(request(FORK)),
        edits={
            "cascade": (
                (
                    "rows, width = x.qo_indptr.tolist(), x.spec_steps + 1",
                    "rows, width = x.qo_indptr.tolist(), x.topk + 1",
                ),
            ),
            "topology": (("width, paths = x.spec_steps + 1", "width, paths = x.topk + 1"),),
        },
    ),
    defect(
        "length-of-drafts",
        "accept",
        ("traversal", "measured"),
        cause="accept-len-off-by-one",
        says="accept_len counts accepted drafts, without the root",
        smallest=case(request()),
        edits={
            "page-table": (("accept_len=taken.sum(1)", "accept_len=taken[:, 1:].sum(1)"),),
        },
    ),
    defect(
        "edge-above-no-parent",
        "accept",
        ("traversal", "measured"),
        says="a row without a parent that carries what row 0 predicts follows the launch's last row",
        # By this seed row 0 predicts the token of the roots.
        smallest=case(request(pad_rows=1), request(), seed=2),
        edits={"page-table": (("holds = (parent >= 0) & (", "holds = ("),)},
    ),
    defect(
        "walk-in-row-order",
        "accept",
        ("traversal", "measured"),
        says="rows are asked once, in their order, so one that comes before its parent is lost",
        # More than the last row is lost.
        smallest=case(request((-1, 0, 1, 2), rows=(0, 2, 1, 3))),
        edits={
            "swa-window": (("in sorted(below, key=lengths.__getitem__):", "in below:"),),
        },
    ),
    defect(
        "drafts-of-the-first-request",
        "accept",
        ("traversal", "measured"),
        cause="tokens-of-neighbour",
        says="predictions of every request are compared with the tokens of the first request's rows",
        smallest=case(request((-1, 0)), request((-1, 0), tokens=(2, 3))),
        edits={"topology": (("if drafted[index[i]] == wanted", "if drafted[i] == wanted"),)},
    ),
)

_COMMITS: tuple[Fault, ...] = (
    defect(
        "onto-the-first-request",
        "commit",
        ("kv", "measured"),
        cause="slot-of-neighbour",
        says="accepted rows of every request are moved onto the first rows of the batch",
        smallest=case(request(), request()),
        edits={
            "direct-mask": (
                ("(x.qo_indptr[:-1, None] + step)[taken]", "step.expand_as(taken)[taken]"),
            ),
        },
    ),
    defect(
        "root-left-out-and-its-slot-not",
        "commit",
        ("kv", "measured"),
        cause="slot-off-by-one",
        says="the root stays where it is, and the rows after it are moved to one slot before theirs",
        smallest=case(request((-1, 0))),
        edits={"cascade": (("for row in path if row >= 0]", "for row in path if row > first]"),)},
    ),
    defect(
        "row-0-for-padding",
        "commit",
        ("kv", "measured"),
        cause="boundary-off-by-one",
        says="row 0 of the launch counts as padding, so the first boundary is one short",
        smallest=case(request()),
        edits={
            "page-table": (
                ("taken = accepted.accept_index >= 0", "taken = accepted.accept_index > 0"),
            ),
        },
    ),
    defect(
        "moved-one-by-one",
        "commit",
        ("kv", "measured"),
        cause="moved-in-place",
        says="accepted rows are moved one after the other, some onto rows that are still to be moved",
        smallest=case(_CHILD_FIRST),
        edits={
            "swa-window": (
                (
                    "cache[targets] = cache.index_select(0, sources)",
                    "for target, source in zip(targets.tolist(), sources.tolist(), strict=True):\n"
                    "                    cache[target] = cache[source]",
                ),
            ),
        },
    ),
    defect(
        "boundary-past-all-rows",
        "commit",
        ("kv", "measured"),
        cause="boundary-optimistic",
        says="the new boundary counts every row, accepted or not",
        smallest=case(request((-1, 0))),
        edits=dict.fromkeys(("cascade", "swa-window"), (_BOUNDARY_OF_ROWS,)),
    ),
    defect(
        "next-root-in-the-last-column",
        "commit",
        ("kv", "measured"),
        cause="next-root-not-bonus",
        says="the next root is the last column of the emitted tokens, the bonus of a full path only",
        smallest=case(request((-1, 0))),
        edits={
            "direct-mask": (("accepted.tokens.gather(1, last)[:, 0]", "accepted.tokens[:, -1]"),),
            "swa-window": (
                (
                    "accepted.tokens[requests, accepted.accept_len - 1]",
                    "accepted.tokens[:, -1]",
                ),
            ),
        },
    ),
    defect(
        "step-not-begun-anew",
        "commit",
        ("kv", "measured"),
        says="target columns are counted on from one request to the next",
        # Two columns too far, and onto one that is looked at.
        smallest=case(request((-1, 0)), _CHILD_FIRST),
        edits={
            "topology": (
                (
                    "x.seq_lens[request] + step]",
                    "x.seq_lens[request] + torch.arange(len(request), device=lengths.device)]",
                ),
            ),
        },
    ),
)

DEFECTS: tuple[Fault, ...] = (*_WALKS, *_COMMITS)
