"""A case in full, for reading: its trees, rows, layout and what each row must read."""

from __future__ import annotations

from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.ledger import SlotLedger
from treeproof.reports.drawing import draw_request
from treeproof.reports.script_lines import script_lines
from treeproof.reports.visibility import ranges, visibility_lines

MAX_ROWS = 40
"""Rows listed one by one; of more, the first so many and the number of the others."""


def case_lines(case: VerifyCase) -> list[str]:
    """The whole sheet."""
    lines = [f"case {case.id}: {summary(case)}", *_settings(case)]
    if case.script:
        return [*lines, "", *script_lines(case), *_drafted_trees(case)]
    ledger = SlotLedger.of(case)
    for b in range(len(case.requests)):
        lines += ["", *request_lines(case, ledger, b)]
    return lines


def _drafted_trees(case: VerifyCase) -> list[str]:
    """What is drafted for each request, in every round, without the tokens that it gets there."""
    lines = []
    for b, request in enumerate(case.requests):
        padded = f", {count(request.pad_rows, 'padded row')}" if request.pad_rows else ""
        lines += ["", f"request {b}: {count(request.num_nodes, 'node')}{padded}"]
        lines += [f"  {line.text}" for line in draw_request(request)]
    return lines


def count(number: int, thing: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def summary(case: VerifyCase) -> str:
    """Size and prefixes in a few words."""
    rows = sum(request.num_nodes for request in case.requests)
    lengths = " ".join(str(request.prefix_len) for request in case.requests[:6])
    prefixes = "prefix" if len(case.requests) == 1 else "prefixes"
    more = " …" if len(case.requests) > 6 else ""
    steps = f", script of {count(len(case.script), 'step')}" if case.script else ""
    return (
        f"{count(len(case.requests), 'request')}, {count(rows, 'row')}, {prefixes} {lengths}{more}"
        f"{steps}"
    )


def _settings(case: VerifyCase) -> list[str]:
    shape, layout, mask = case.shape, case.layout, case.mask
    visible = "full visibility" if shape.window is None else f"window of {shape.window} keys"
    rotary = "" if shape.rotary is None else f", rotary base {shape.rotary:g}"
    pages = f"{layout.num_slots // layout.page_size} pages of {layout.page_size}, {layout.order}"
    shared = f", first {layout.shared_prefix} columns shared" if layout.shared_prefix else ""
    storage = "" if layout.storage == "NHD" else f", caches {layout.storage}"
    evicted = ", pages behind the window evicted" if layout.evicted else ""
    slack = f", {mask.slack} spare cells" if mask.slack else ""
    undefined = "" if mask.fill_prefix else ", prefix cells undefined"
    spread = "" if case.score_spread == 1 else f", queries times {case.score_spread:g}"
    return [
        f"  attention  {shape.num_q_heads} query and {shape.num_kv_heads} key heads, head dim "
        f"{shape.head_dim}, values {shape.v_head_dim}, {shape.dtype}, {visible}{rotary}",
        f"  cache      {pages}, pad slot {layout.pad_slot}, table padded with "
        f"{layout.page_table_pad}{shared}{evicted}{storage}",
        f"  mask       {mask.mode.name}{slack}{undefined}",
        f"  data       seed {case.seed}{spread}",
    ]


def request_lines(case: VerifyCase, ledger: SlotLedger, b: int) -> list[str]:
    """Tree, row table and expected reads of one request."""
    request = case.requests[b]
    padded = f" and {count(request.pad_rows, 'padded row')}" if request.pad_rows else ""
    head = f"request {b}: prefix {request.prefix_len}, {count(request.num_nodes, 'row')}{padded}"
    rows = range(min(request.num_nodes, MAX_ROWS))
    return [
        head,
        *(f"  {line.text}" for line in draw_request(request)),
        "",
        *(f"  {line}" for line in _table(request, ledger.row_slots(b), rows)),
        *_prefix_slots(request, ledger, b),
        "",
        "  must read (•)",
        *(f"  {line}" for line in visibility_lines(request, case.shape.window, rows)),
        *_left_out(request, rows),
    ]


def _table(request: Request, slots: tuple[int, ...], rows: range) -> list[str]:
    head = ("row", "node", "token", "depth", "position", "parent row", "children", "slot")
    body = []
    for row in rows:
        node = request.node_of_row[row]
        depth, parent = request.tree.depth[node], request.parent_rows[row]
        children = ranges(request.row_of_node[child] for child in request.tree.children(node))
        body.append(
            (
                *map(str, (row, node, request.tree.tokens[node], depth)),
                str(request.prefix_len + depth),
                "-" if parent < 0 else str(parent),
                children if len(children) <= 24 else children[:23] + "…",
                str(slots[row]),
            )
        )
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    return [
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        for line in (head, *body)
    ]


def _prefix_slots(request: Request, ledger: SlotLedger, b: int) -> list[str]:
    held = [slot for slot in ledger.columns[b][: request.prefix_len] if slot >= 0]
    gone = request.prefix_len - len(held)
    if not request.prefix_len:
        return []
    text = _in_order(held)
    evicted = f"; the first {gone} columns evicted" if gone else ""
    return [f"  prefix slots  {text}{evicted}"]


def _in_order(slots: list[int], most: int = 8) -> str:
    """Slots in logical order, runs folded; `…` after the first few runs."""
    runs: list[list[int]] = []
    for slot in slots:
        if runs and slot == runs[-1][-1] + 1:
            runs[-1].append(slot)
        else:
            runs.append([slot])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return " ".join(texts[:most]) + (f" … ({len(slots)} slots)" if len(texts) > most else "")


def _left_out(request: Request, rows: range) -> list[str]:
    more = request.num_nodes - len(rows)
    return [f"  … {count(more, 'more row')} not listed"] if more else []
