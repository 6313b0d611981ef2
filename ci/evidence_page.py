"""The page of what was seen on a GPU machine, out of what `gpu_evidence.py` keeps."""

from __future__ import annotations

from typing import Any

from treeproof.contract.failure import IDENTITIES


def cell_of(counts: dict[str, int]) -> str:
    said = [str(counts["pass"])] if counts["pass"] else []
    said += [f"**{counts['fail']} failed**"] if counts["fail"] else []
    said += [f"{counts['known']} known"] if counts.get("known") else []
    return ", ".join(said) or "–"


def markdown(evidence: dict[str, Any]) -> str:
    """The tables, for people."""
    columns = (*IDENTITIES, "output", "contract")
    lines = [
        f"# Seen on {evidence['device']}, {evidence['date']}",
        "",
        ", ".join(f"{name} {version}" for name, version in evidence["versions"].items()),
        "",
        f"Seed {evidence['seed']}, profile gpu; {evidence['wall_s']:.0f} s in all. A cell counts verdicts of "
        "both kinds of evidence that passed, that failed, and that failed as docs/findings.md says; a dash "
        "is no verdict.",
        "",
    ]
    for title, part in (
        ("Drawn cases", "drawn"),
        ("Published tree shapes, prefix 63 and 1,000", "trees"),
    ):
        if not evidence[part]:
            continue
        lines += [
            f"## {title}", "",
            f"| backend | {' | '.join(columns)} | checks | trees | rows p50/p90 | prefix p50/p90 | margin |",
            "|---" * (len(columns) + 6) + "|",
        ]  # fmt: skip
        for one in evidence[part]:
            if one.get("state") != "checked":
                reason = str(one.get("state", "")).replace("|", "/").replace("\n", " ")
                lines.append(f"| {one['backend']} | {reason} |" + " |" * (len(columns) + 4))
                continue
            cells = [cell_of(one["cells"][column]) for column in columns]
            sizes = [
                f"{one[what]['p50']:.0f} / {one[what]['p90']:.0f}" for what in ("rows", "prefix")
            ]
            margin = ", ".join(f"{k} {v}" for k, v in one["margins"].items())
            lines.append(
                f"| {one['backend']} | {' | '.join(cells)} | {one['checks']} | {one['trees']} | "
                f"{' | '.join(sizes)} | {margin or '–'} |"
            )
        lines.append("")
    failing = [one for part in ("drawn", "trees") for one in evidence[part] if one.get("failures")]
    if failing:
        lines += ["## What failed", ""]
        for one in failing:
            for failure in one["failures"]:
                lines.append(
                    f"- `{one['backend']}` {failure['identity']} {failure['kind']}: {failure['message']}; "
                    f"likely cause: {failure['cause'] or 'unknown'}"
                )
        lines.append("")
    lines += ["## Which kernels ran", ""]
    lines += [f"- `{one['backend']}`: " + ", ".join(f"`{k}`" for k in one["kernels"]) for one in evidence["drawn"] if one.get("kernels")]  # fmt: skip
    lines += [
        "", "## Trees a minute, without compilation", "",
        "| backend | trees a minute | allclose loop | times | rows p50/p90 | prefix p50/p90 | oracle | kernels | treeproof, µs a tree |",
        "|---" * 9 + "|",
    ]  # fmt: skip
    for one in evidence["throughput"]:
        if "trees_a_minute" not in one:
            reason = (
                str(one.get("state") or one.get("refused")).replace("|", "/").replace("\n", " ")
            )
            lines.append(f"| {one['backend']} | {reason} |" + " |" * 7)
            continue
        lines.append(
            f"| {one['backend']} | {one['trees_a_minute']:,.0f} | {one['allclose_trees_a_minute']:,.0f} | "
            f"{one['trees_a_minute'] / one['allclose_trees_a_minute']:.0f} | "
            f"{one['rows_p50']:.0f} / {one['rows_p90']:.0f} | {one['prefix_p50']:.0f} / {one['prefix_p90']:.0f} | "
            f"{one['oracle_share']:.0%} | {one['backend_share']:.0%} | {one['own_us_a_tree']:.0f} |"
        )
    lines += ["", "## The oracle", "", "```", evidence["roofline"].strip(), "```", ""]
    return "\n".join(lines)
