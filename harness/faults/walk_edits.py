"""Faults inside the accept walks: what each backend's own loop gets wrong about children and parents."""

from __future__ import annotations

from collections.abc import Mapping

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.faults.attending import TRITON
from treeproof.faults.fault import Fault
from treeproof.faults.kernel_text import kernel_edited
from treeproof.faults.plant import edited
from treeproof.faults.smallest import CHAIN, FORK, case, request

Edits = Mapping[str, tuple[str, str]]
"""Backend to its text and the wrong one."""

_FIRST_CHILD_ONLY = {
    "direct-mask": (
        "                if parent >= 0:\n                    child.setdefault",
        "                if parent >= 0 and first + parent not in {above for above, _ in child}:\n"
        "                    child.setdefault",
    ),
    "cascade": (
        "if len(suffix) > 1:  # not a padded row",
        "if len(suffix) > 1 and suffix[-2] not in {above for above, _ in child}:",
    ),
    "page-table": (
        "holds = (parent >= 0) & (target_predict",
        "elder = (parent[:, None] == parent).tril(-1).any(1)\n"
        "        holds = (parent >= 0) & ~elder & (target_predict",
    ),
    "swa-window": (
        "for row in sorted(below, key=lengths.__getitem__):",
        "heads = {above[row]: row for row in reversed(below)}\n"
        "            for row in sorted(heads.values(), key=lengths.__getitem__):",
    ),
    "topology": (
        "(i for i in _children(row, down, right) if drafted",
        "(i for i in down[row : row + 1] if i >= 0 and drafted",
    ),
}

_OWN_PREDICTION = {
    "page-table": (
        "target_predict[parent.clamp(min=0)] == x.draft_token",
        "target_predict == x.draft_token",
    ),
    "swa-window": ("predicted[path[-1]] == drafted[row]", "predicted[row] == drafted[row]"),
    "topology": ("drafted[index[i]] == wanted", "drafted[index[i]] == predicted[index[i]]"),
}

_ROOT_PREDICTION = {
    "direct-mask": (
        "and (path[-1], predicted[path[-1]]) in child:\n"
        "                path.append(child[path[-1], predicted[path[-1]]])",
        "and (path[-1], predicted[first]) in child:\n"
        "                path.append(child[path[-1], predicted[first]])",
    ),
    "cascade": (
        "child.get((at, predicted[path[-1]]), -1)",
        "child.get((at, predicted[first]), -1)",
    ),
    "swa-window": ("predicted[path[-1]] == drafted[row]", "predicted[first] == drafted[row]"),
    "topology": ("wanted = predicted[path[-1]]", "wanted = predicted[path[0]]"),
}


_MATCH = "if tl.load(tokens + row, mask=row >= 0, other=-1) == wanted:"
_GREEDY = {
    "walk-first-child-only": (
        "child = tl.load(next_sibling + line + child)",
        "child = child * 0 - 1",
    ),
    "walk-own-prediction": (_MATCH, _MATCH.replace("wanted", "tl.load(predicted + row)")),
    "walk-root-prediction": (
        _MATCH,
        _MATCH.replace("wanted", "tl.load(predicted + tl.load(index + line))"),
    ),
}
"""The same in the one kernel that all Triton backends walk by."""


def _fault(
    family: str, says: str, cause: str, edits: Edits, smallest: VerifyCase, *sources: str
) -> Fault:
    def plant(backend: Backend) -> Backend:
        if backend.name in TRITON:
            return kernel_edited(backend, "greedy", _GREEDY[family])
        return edited(backend, edits[backend.name])

    return Fault(
        family=family,
        says=says,
        sources=sources,
        stage="accept",
        identity="traversal",
        evidence="measured",
        cause=cause,
        smallest=smallest,
        plant=plant,
        applies=lambda backend: backend.name in edits or backend.name in TRITON,
    )


FAULTS = (
    _fault(
        "walk-first-child-only",
        "only the first child of a row is compared, its siblings never are",
        "walk-first-child-only",
        _FIRST_CHILD_ONLY,
        case(request(FORK)),
    ),
    _fault(
        "walk-own-prediction",
        "a draft is compared with the prediction at its own row, not at its parent's",
        "walk-compares-parent",
        _OWN_PREDICTION,
        case(request((-1, 0))),
        "ohdearquant/lattice#243",
    ),
    _fault(
        "walk-root-prediction",
        "every level is compared with the prediction at the root",
        "walk-compares-parent",
        _ROOT_PREDICTION,
        case(request(CHAIN)),
        "ohdearquant/lattice#243",
    ),
)
