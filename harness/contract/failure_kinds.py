"""Every kind of failure there is, so that whoever names one can be told of a slip."""

from __future__ import annotations

KINDS = frozenset({
    "captured-links", "captured-lengths", "captured-mask", "captured-positions", "captured-slots",
    "captured-tables", "captured-tokens", "changes-when-replayed", "not-capturable",
    "caches-unserved", "runs-too-early", "wrong-draft-input",
    "changes-process", "changes-with-batch", "changes-with-branch", "changes-with-company", "changes-with-layout",
    "changes-with-padding", "changes-with-row-count", "changes-with-rows", "changes-with-siblings",
    "changes-with-stream", "commit-writes-elsewhere", "crash", "dangling-link",
    "dependent-draws", "depends-on-tail",
    "finds-hidden-key", "hang", "heads-differ", "leaks-memory", "leaks-slots", "links-to-other-request", "malformed-table",
    "merged-nothing", "misses-ancestor", "misses-prefix", "misses-self", "mutates-input",
    "nondeterministic", "not-finite", "not-refused", "not-repeatable", "not-written", "orphaned-row", "owned-twice",
    "other-kernel", "other-layer-written", "outside-bound", "padding-link", "padding-position",
    "padding-slot",
    "path-not-compacted", "raises", "reaches-other-request", "reads-descendant",
    "reads-other-request", "reads-outside-window", "reads-sibling", "reads-twice",
    "reads-undeclared-input", "reads-unowned", "refused-late", "remembers-earlier-call", "stale-commit",
    "stale-link", "stale-position", "stale-prefix", "stale-slot", "stale-table", "stale-token", "stale-walk",
    "stale-write", "table", "tokens-past-the-bonus", "unknown-field", "unlinked-row",
    "unordered-selection", "unowned-influences", "writes-past-the-end", "written-elsewhere",
    "wrong-acceptance", "wrong-batch", "wrong-bonus", "wrong-boundary", "wrong-contents",
    "wrong-continuation", "wrong-count", "wrong-depth", "wrong-draw", "wrong-dtype",
    "wrong-key", "wrong-law", "wrong-layer",
    "wrong-logits", "wrong-lse", "wrong-merge", "wrong-merged-lse", "wrong-next-root", "wrong-pages",
    "wrong-processing", "wrong-reason", "wrong-served",
    "wrong-parent", "wrong-prefix-sum", "wrong-retrieve-index", "wrong-rotation", "wrong-selection",
    "wrong-shape", "wrong-sibling-order", "wrong-slot", "wrong-table-length", "wrong-table-slot", "wrong-token",
    "wrong-type", "wrong-walk", "wrong-weight", "withholds-pages",
    "drafted-key-kept", "tail-not-copied", "wrong-draft-position", "wrong-draft-slot",
    "wrong-hidden-row", "wrong-next-token",
})  # fmt: skip

_SEEN_ELSEWHERE = ("stale-", "malformed-")
"""Before a kind of the contract: seen on an object that has run before, or on two chains of which one
is malformed."""


def is_kind(kind: str) -> bool:
    return kind in KINDS or any(
        kind.startswith(before) and kind.removeprefix(before) in KINDS for before in _SEEN_ELSEWHERE
    )
