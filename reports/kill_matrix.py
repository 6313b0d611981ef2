"""The kill matrix: which check killed which fault, how fast, on how small a case."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from treeproof.faults.fault import Fault
from treeproof.reports.case_sheet import count
from treeproof.reports.console import prose
from treeproof.scoring.result import Kill


def kill_table(kills: Sequence[Kill]) -> Table:
    """A line a fault: the check that it names, then what came of it in each backend."""
    backends = list(dict.fromkeys(kill.backend for kill in kills))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("fault", no_wrap=True)
    table.add_column("must be seen by", no_wrap=True)
    for backend in backends:
        table.add_column(backend, no_wrap=True)
    table.add_column("smallest", no_wrap=True)
    by_fault: dict[str, dict[str, Kill]] = {}
    for kill in kills:
        by_fault.setdefault(kill.fault, {})[kill.backend] = kill
    for fault, found in by_fault.items():
        one = next(iter(found.values()))
        cells = [_cell(found[b]) if b in found else Text("") for b in backends]
        table.add_row(fault, f"{one.identity} ({one.evidence})", *cells, _sizes(found.values()))
    return table


def _cell(kill: Kill) -> Text:
    if kill.status != "killed":
        return Text(f"✗ {kill.status}", style="bold red")
    return Text(f"✓ {kill.cases} in {kill.seconds:.1f}s", style="green")


def _sizes(kills: Iterable[Kill]) -> Text:
    """The largest of the reduced cases, beside the smallest known."""
    found = [(kill.reduced.tokens, kill) for kill in kills if kill.reduced is not None]
    if not found:
        return Text("")
    _, worst = max(found, key=lambda one: one[0])
    style = "" if worst.as_small_as_known else "yellow"
    return Text(f"{worst.reduced} (known {worst.known})", style=style)


def kill_lines(
    kills: Sequence[Kill],
    faults: Sequence[Fault],
    records: Sequence[str],
    out_of_reach: Mapping[str, str],
) -> list[Text]:
    """Survivors first, then the figures."""
    larger = {fault.name: fault.larger for fault in faults}
    lines: list[Text] = []
    for kill in kills:
        if kill.status == "survived":
            words = f"✗ {kill.fault} in {kill.backend} survived {count(kill.cases, 'case')}"
            lines.append(prose(words, "bold red"))
        elif kill.status == "elsewhere":
            lines.append(
                prose(
                    f"✗ {kill.fault} in {kill.backend} is for {kill.identity} ({kill.evidence}) to "
                    f"see, and only {', '.join(kill.seen)} did",
                    "bold red",
                )
            )
        elif kill.reduced is not None and not kill.as_small_as_known:
            reason = larger.get(kill.fault, "")
            words = (
                f"{kill.fault} in {kill.backend}: reduced to {kill.reduced}, and {kill.known} is "
            )
            words += f"known to show it{': ' if reason else ''}{reason}"
            lines.append(prose(f"  {words}") if reason else prose(f"! {words}", "yellow"))
    killed = [kill for kill in kills if kill.status == "killed"]
    lines.append(
        Text(
            f"{len(killed)} of {count(len(kills), 'pair')} killed: "
            f"{count(len({k.fault for k in kills}), 'fault')}, "
            f"{count(len({k.backend for k in kills}), 'backend')}"
        )
    )
    if killed:
        lines.append(prose(f"time to kill {_spread([k.seconds for k in killed])}"))
        shrunk = [k for k in killed if k.reduced is not None]
        if shrunk:
            seconds = _spread([k.reduction_seconds for k in shrunk])
            asked = max(k.evaluations for k in shrunk)
            small = sum(k.as_small_as_known for k in shrunk)
            lines.append(prose(f"reduction    {seconds}; at most {asked} evaluations"))
            lines.append(
                prose(f"{small} of {len(shrunk)} reduced cases are as small as the smallest known")
            )
    planted = {source for fault in faults for source in fault.sources} & set(records)
    lines.append(
        prose(
            f"{len(planted)} of {len(records)} records of real faults are planted, "
            f"{len(out_of_reach)} are out of reach of the stages there are"
        )
    )
    return lines


def _spread(seconds: Sequence[float]) -> str:
    ranked = sorted(seconds)
    late = ranked[min(len(ranked) - 1, int(0.95 * len(ranked)))]
    return f"p50 {statistics.median(ranked):.2f} s, p95 {late:.2f} s, longest {ranked[-1]:.2f} s"


def kill_markdown(
    kills: Sequence[Kill],
    faults: Sequence[Fault],
    records: Sequence[str],
    out_of_reach: Mapping[str, str],
) -> str:
    """The matrix as a file to keep: nothing in it depends on the machine or on the time."""
    by_name = {fault.name: fault for fault in faults}
    lines = [
        "# Kill matrix",
        "",
        "What treeproof's own faults are caught by. Written by `treeproof faults --markdown FILE`, and",
        "compared in CI. Each fault is planted into one of the backends that can have it, in turn;",
        "`treeproof faults --every-backend` plants it into all of them. Cases: how many drawn cases it",
        "took. Smallest: nodes (n), prefix keys (p) and padded rows (pad) of the reduced case, and of the",
        "smallest case known by hand.",
        "",
        "| fault | what is wrong | seen in | must be seen by | probe | backend | cases | also seen by | smallest | known |",
        "|---|---|---|---|---|---|---:|---|---|---|",
    ]
    for kill in kills:
        fault = by_name[kill.fault]
        must = f"{kill.identity} ({kill.evidence})"
        also = ", ".join(seen for seen in kill.seen if seen != must)
        cases = str(kill.cases) if kill.status == "killed" else f"**{kill.status}**"
        lines.append(
            f"| `{kill.fault}` | {fault.says} | {', '.join(fault.sources)} | {must} | {kill.probe} "
            f"| {kill.backend} "
            f"| {cases} | {also} | {kill.reduced or ''} | {kill.known} |"
        )
    lines += _larger_lines(kills, by_name)
    planted = sorted({s for fault in faults for s in fault.sources} & set(records))
    lines += [
        "",
        f"## Records of real faults: {len(planted)} of {len(records)} planted",
        "",
        ", ".join(planted),
        "",
        f"## Out of reach: {len(out_of_reach)}",
        "",
        "| record | what would bring it within reach |",
        "|---|---|",
    ]
    lines += [f"| {record} | {reason} |" for record, reason in sorted(out_of_reach.items())]
    return "\n".join(lines) + "\n"


def _larger_lines(kills: Iterable[Kill], by_name: Mapping[str, Fault]) -> list[str]:
    """Why a case that could not be reduced to the smallest known one could not."""
    found = [kill for kill in kills if kill.reduced is not None and not kill.as_small_as_known]
    if not found:
        return []
    return [
        "",
        f"## Reduced to more than the smallest known: {len(found)}",
        "",
        "| fault | backend | smallest | known | why |",
        "|---|---|---|---|---|",
        *(
            f"| `{kill.fault}` | {kill.backend} | {kill.reduced} | {kill.known} "
            f"| {by_name[kill.fault].larger or '**not explained**'} |"
            for kill in found
        ),
    ]
