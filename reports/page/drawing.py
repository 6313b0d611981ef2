"""What a page draws of one failing verify step, as JSON: numbers, and words that are safe to show.

Most of what a backend laid out or read is as it must be, of hundreds of failures; `DUE` stands for that,
and the page works it out from the drawn tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.event import Checked, Read, Shown
from treeproof.contract.failure import IDENTITIES, Failure
from treeproof.contract.ledger import SlotLedger
from treeproof.properties.expected import ancestor_rows, expected_reads
from treeproof.reports.failure_block import wrongly_read
from treeproof.reports.text import shown
from treeproof.reports.trace import verdicts

MAX_REQUESTS = 8
"""Requests of a case that are drawn: the failing one, and those before and after it."""
MAX_OTHERS = 400
"""Violated statements of one check that are marked in its drawings."""
MAX_PREFIX_SLOTS = 64
"""Slots of the prefix that are drawn, the last ones."""
DUE = 0


def drawing_of(
    case: VerifyCase, failure: Failure, checked: Checked, found: Shown | None
) -> dict[str, Any]:
    requests = _chosen(case, failure.request)
    ledger, window = SlotLedger.of(case), case.shape.window
    return {
        "case": case.id,
        "window": window,
        "page": case.layout.page_size,
        "at": [failure.request, failure.row, failure.column],
        "requests": [_request(case.requests[b], b, ledger, window) for b in requests],
        "left_out": len(case.requests) - len(requests),
        "recovered": _recovered(case, checked, requests),
        "verdicts": _verdicts(checked),
        "marks": _marks(case, checked, requests),
        "others": _others(checked, requests),
        "seen": None if found is None else _seen(case, ledger, found, requests),
    }


def _chosen(case: VerifyCase, request: int | None) -> range:
    first = max(0, min((request or 0) - MAX_REQUESTS // 2, len(case.requests) - MAX_REQUESTS))
    return range(first, min(len(case.requests), first + MAX_REQUESTS))


def _request(request: Request, b: int, ledger: SlotLedger, window: int | None) -> dict[str, Any]:
    """One request by rows; `first` and `reads` are what each row must read, DUE for its whole path."""
    reads = expected_reads(request, window)
    tree, nodes = request.tree, request.node_of_row
    return {
        "b": b,
        "prefix": request.prefix_len,
        "tokens": [tree.tokens[node] for node in nodes],
        "nodes": list(nodes),
        "parents": list(request.parent_rows),
        "depths": [tree.depth[node] for node in nodes],
        "slots": list(ledger.row_slots(b)),
        "prefix_slots": list(ledger.columns[b][: request.prefix_len][-MAX_PREFIX_SLOTS:]),
        "first": [read.first for read in reads],
        "reads": [
            DUE if window is None or read.rows == ancestor_rows(request, row) else sorted(read.rows)
            for row, read in enumerate(reads)
        ],
        "padded": request.pad_rows,
    }


def _recovered(case: VerifyCase, checked: Checked, requests: range) -> list[dict[str, Any]]:
    def values(what: str, b: int, given: Sequence[int | None]) -> Any:
        request = case.requests[b]
        tree, nodes = request.tree, request.node_of_row
        due = {
            "parents": request.parent_rows,
            "depths": [tree.depth[node] for node in nodes],
            "tokens": [tree.tokens[node] for node in nodes],
            "rows": range(request.num_nodes),
        }[what]
        return DUE if list(given) == list(due) else list(given)

    return [
        {
            "identity": found.identity,
            "witness": shown(found.witness, 80),
            "what": found.what,
            "values": [
                values(found.what, b, found.values[b]) if b < len(found.values) else []
                for b in requests
            ],
        }
        for found in checked.recovered
    ]


def _verdicts(checked: Checked) -> dict[str, list[str]]:
    """Of identities whose evidence determined nothing, what was judged of them, or why it was not."""
    recovered = {found.identity for found in checked.recovered}
    return {
        identity: [shown(words, 200) for words in verdicts(checked, identity)]
        for identity in IDENTITIES
        if identity not in recovered
    }


def _marks(case: VerifyCase, checked: Checked, requests: range) -> list[list[Any]]:
    """Wrongly read keys: request, row, logical column, a sign of `visibility.SIGNS`, evidence."""
    failures, window = checked.failures[:MAX_OTHERS], case.shape.window
    return [
        [b, row, column, sign, failure.evidence]
        for b in requests
        for row, column, sign, failure in wrongly_read(failures, b, case.requests[b], window)
    ]


def _others(checked: Checked, requests: range) -> list[list[Any]]:
    """Every violated statement of the check about these requests, for the row tracer."""
    return [
        [f.request, f.row, f.column, f.identity, f.kind, f.evidence, shown(f.message, 300)]
        for f in checked.failures[:MAX_OTHERS]
        if f.request is None or f.request in requests
    ]


def _seen(case: VerifyCase, ledger: SlotLedger, found: Shown, requests: range) -> dict[str, Any]:
    """What was seen on this case, a list a request: rows are real rows, tables hold padded ones too."""
    rows = [request.num_nodes for request in case.requests]
    padded = [request.num_rows for request in case.requests]

    def real(values: Sequence[Any], b: int) -> Sequence[Any]:
        return values[sum(rows[:b]) : sum(rows[: b + 1])]

    def every(values: Sequence[Any], b: int) -> list[Any]:
        return list(values[sum(padded[:b]) : sum(padded[:b]) + rows[b]])

    due = {b: _due(case, ledger, b) for b in requests}

    def read(reads: Sequence[Read], b: int) -> list[Any]:
        return _reads(due[b], real(reads, b))

    def field(values: Sequence[int], b: int, due: Sequence[int]) -> Any:
        own = every(values, b)
        return DUE if own == list(due) else own

    writes = [_writes(case, ledger, found, b) for b in requests]
    slots = [field(found.slots, b, ledger.row_slots(b)) for b in requests]
    reads = [read(found.reads, b) for b in requests]
    declared = {form: [read(table, b) for b in requests] for form, table in found.declared.items()}
    return {
        "errors": [[list(map(_short, heads)) for heads in real(found.errors, b)] for b in requests],
        "reads": reads,
        "shares": [
            [[round(1000 * share) for share in pair] for pair in real(found.shares, b)]
            for b in requests
        ],
        "declared": declared,
        "writes": writes,
        "positions": [
            field(found.positions, b, [r.prefix_len + r.tree.depth[n] for n in r.node_of_row])
            for b, r in ((b, case.requests[b]) for b in requests)
        ],
        "slots": slots,
        "links": {
            name: [list(table[b]) if b < len(table) else [] for b in requests]
            for name, table in found.links.items()
        },
        "owners": _owners(
            ledger,
            requests,
            [*reads, *(t for form in declared.values() for t in form)],
            {slot for one in writes for slot, _, _ in one["wrong"]}
            | {slot for own in slots if own != DUE for slot in own},
        ),
        "first": [sum(padded[:b]) for b in requests],
    }


def _short(error: float) -> float:
    """As many digits as are shown."""
    return error if error >= 10 else round(error, 2)


def _due(case: VerifyCase, ledger: SlotLedger, b: int) -> list[tuple[float, dict[int, float]]]:
    """Of each row how many prefix keys it must read, and which other slots, each once."""
    request, own = case.requests[b], ledger.row_slots(b)
    return [
        (row.prefix_len - row.first, {own[other]: 1.0 for other in row.rows})
        for row in expected_reads(request, case.shape.window)
    ]


def _reads(due: Sequence[tuple[float, dict[int, float]]], reads: Sequence[Read]) -> list[Any]:
    """Of each row the prefix keys and other slots that it read, or DUE; nothing without evidence."""
    return [
        DUE
        if read.prefix == prefix and len(read.slots) == len(slots) and dict(read.slots) == slots
        else [read.prefix, [list(pair) for pair in read.slots]]
        for read, (prefix, slots) in zip(reads, due, strict=False)
    ]


def _writes(case: VerifyCase, ledger: SlotLedger, found: Shown, b: int) -> dict[str, Any]:
    """Written slots of this request, or nobody's, that do not hold what they must; and rows that were not
    written, where any was."""
    first = sum(request.num_rows for request in case.requests[:b])
    own = {slot: row for row, slot in enumerate(ledger.row_slots(b))}
    wrong = []
    for slot, k, v in found.writes:
        row = own.get(slot)
        if row is None:
            odd = ledger.owner.get(slot, (b, 0))[0] == b
        else:
            odd = (k, v) != (first + row, first + row)
        if odd:
            wrong.append([slot, k, v])
    written = {slot for slot, _, _ in found.writes}
    missing = [row for slot, row in own.items() if slot not in written] if written else []
    return {"wrong": wrong, "missing": missing, "any": bool(written)}


def _owners(
    ledger: SlotLedger,
    requests: range,
    tables: Iterable[Sequence[Any]],
    named: Iterable[int],
) -> dict[int, list[int]]:
    """Slots that are named and hold no row that is drawn, to the request and column that live there;
    absent: nobody's."""
    slots = set(named)
    slots |= {slot for reads in tables for read in reads if read != DUE for slot, _ in read[1]}
    slots -= {slot for b in requests for slot in ledger.row_slots(b)}
    owner = ledger.owner if slots else {}
    return {slot: list(owner[slot]) for slot in sorted(slots) if slot in owner}
