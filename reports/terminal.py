"""A run in the terminal: the summary, one block a distinct failure, and the last word."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from treeproof.contract.case import VerifyCase
from treeproof.contract.wire import FileError
from treeproof.engine.failure_group import FailureGroup
from treeproof.engine.figures import distinct_trees, margins_by_dtype
from treeproof.engine.summary import Run, percentile
from treeproof.reports.acceptance import acceptance_lines
from treeproof.reports.case_sheet import count
from treeproof.reports.cause import shared_causes
from treeproof.reports.console import command, prose, write
from treeproof.reports.ending import last_words
from treeproof.reports.failure_block import Explained, failure_block
from treeproof.reports.ledger_lines import ledger_lines
from treeproof.reports.left_lines import left_lines
from treeproof.reports.matrix import matrix_lines, reason_lines
from treeproof.reports.show_again import from_here, replay_command
from treeproof.reports.varies import varies_freely

PARTS = ("generate", "oracle", "build", "backend", "probe", "check")
FEW = 5
"""Cases below which an event class counts as hardly tried."""
FEW_NAMED = 12
"""Such classes named in the warning."""
MAX_BLOCKS = 20
"""Failures shown as blocks; of more, the replay commands."""


def report(console: Console, run: Run) -> None:
    """Print all of it."""
    write(console, summary_lines(run))
    groups = run.failures
    for group in groups[:MAX_BLOCKS]:
        write(console, ["", *failure_block(explained(run, group))])
    if groups[MAX_BLOCKS:]:
        write(console, ["", f"{count(len(groups) - MAX_BLOCKS, 'more failure')}:"])
        write(console, (command(replay_command(run, group)) for group in groups[MAX_BLOCKS:]))
    shared = shared_causes(groups)
    if shared:
        write(console, ["", *map(prose, shared)])
    write(console, ["", *last_words(run)])


def summary_lines(run: Run) -> list[Text]:
    """Matrix, reasons, and the figures of the run."""
    reasons = reason_lines(run)
    lines = [*matrix_lines(run), Text("")]
    if reasons:
        lines += [Text("not judged", style="bold"), *reasons, Text("")]
    if run.ledger:
        lines += [Text("known failures", style="bold"), *ledger_lines(run), Text("")]
    left = left_lines(run)
    if left:
        lines += [Text("left unchecked", style="bold"), *(prose(f"  {x}") for x in left), Text("")]
    return [*lines, *map(prose, figures(run)), *_hardly_tried(run)]


def figures(run: Run) -> list[str]:
    """What makes the counts mean something: sizes, event classes, time, seed, versions and folder."""
    rows, prefixes = run.rows, run.prefixes
    checks = sum(run.completed_checks(name) for name in run.backends)
    split = run.time_split
    parts = " ".join(f"{part} {split[part]:.1f}" for part in PARTS if part in split)
    seconds = f"{run.finished.seconds:.1f} s" if run.finished else "cut short"
    if run.meta.parts:
        seconds += f" in {count(len(run.meta.parts), 'run')}"
    lines = [
        f"cases    {len(run.cases):,} distinct, {count(checks, 'check')}; "
        f"{count(distinct_trees(run), 'tree')}, {count(sum(rows), 'row')}",
        f"sizes    rows p50 {percentile(rows, 50)}, p90 {percentile(rows, 90)}; "
        f"prefix p50 {percentile(prefixes, 50)}, p90 {percentile(prefixes, 90)}",
        f"events   {_event_classes(run)}",
        f"time     {seconds}; in all workers: {parts}",
        *_rate(run, checks),
        *_margins(run),
        *_rounds(run),
        *acceptance_lines(run),
        *_kernels(run),
        f"seed     {run.meta.seed}, profile {run.meta.settings.get('profile', '')}, "
        f"device {run.meta.device}",
        *_environment(run),
        f"run      {from_here(run.folder.path)}",
    ]
    if run.meta.parts:
        lines.append(f"merged   {', '.join(run.meta.parts)}")
    if run.folder.printed:
        where = from_here(run.folder.path) / "output"
        lines.append(f"printed  {count(run.folder.printed, 'byte')} by backends, in {where}")
    if run.halved:
        most, times = max(one.requests for one in run.halved), len(run.halved)
        lines.append(
            f"memory   ran out {count(times, 'time')}, on launches of up to {most} requests: halves were "
            "checked instead"
        )
    if run.losses:
        lines.append(f"workers  {len(run.losses)} lost; the run went on")
    return lines


def _rate(run: Run, checks: int) -> list[str]:
    """Checks a second; start, imports and first compilation stand apart, and so does reduction."""
    if run.finished is None or not run.finished.checking or checks < 2:
        return []
    checking, rest = run.finished.checking, run.finished.seconds - run.finished.checking
    rate = (checks - 1) / checking
    return [f"rate     {rate:,.1f} checks a second in {checking:.1f} s; {rest:.1f} s beside them"]


def _margins(run: Run) -> list[str]:
    worst = [f"{dtype} {margin:.2g}" for dtype, margin in margins_by_dtype(run).items()]
    return [f"margins  {', '.join(worst)}"] if worst else []


def _rounds(run: Run) -> list[str]:
    """What scripts came to, all backends together."""
    found = [check.generated for check in run.checks if check.generated is not None]
    if not found:
        return []
    requests, rounds, tokens, ties = (
        sum(getattr(one, name) for one in found)
        for name in ("requests", "rounds", "tokens", "ties")
    )
    return [
        f"rounds   {count(requests, 'generation')} in {count(rounds, 'round')}, "
        f"{count(tokens, 'token')}, of which {count(ties, 'tie')} that rounding leaves open"
    ]


def _kernels(run: Run) -> list[str]:
    """What was seen to run, a line a backend that names its kernels, and how it ran."""
    lines: list[str] = []
    for meta in run.meta.backends:
        if not meta.kernels or meta.unavailable:
            continue
        found = run.kernels.get(meta.name, ())
        ways = dict.fromkeys((kernel.mode, kernel.on) for kernel in found)
        said = [
            f"{', '.join(k.shown for k in found if (k.mode, k.on) == way)} ({', '.join(way)})"
            for way in ways
        ]
        words = ", ".join(said) or f"{', '.join(meta.kernels)} not seen"
        lines.append(f"{'' if lines else 'kernels':<9}{meta.name}: {words}")
    return lines


def _environment(run: Run) -> list[str]:
    """Machine and versions that decide a verdict: a failure that is sent on is read elsewhere."""
    versions = ", ".join(f"{name} {version}" for name, version in run.meta.versions.items())
    machine = ", ".join(filter(None, (run.meta.device_name, run.meta.platform)))
    return [
        *([f"machine  {machine}"] if run.meta.platform else []),
        *([f"versions {versions}"] if versions else []),
    ]


def _event_classes(run: Run) -> str:
    """`tree: chain=40 star=31; rows: …`."""
    from treeproof.generate.tags import EVENT_CLASSES

    groups: dict[str, list[str]] = {}
    for name in sorted(run.event_classes, key=(*EVENT_CLASSES, *run.event_classes).index):
        family, _, member = name.partition(":")
        groups.setdefault(family, []).append(f"{member}={run.event_classes[name]}")
    return "; ".join(f"{family}: {' '.join(names)}" for family, names in groups.items())


def _hardly_tried(run: Run) -> list[Text]:
    """A warning about event classes of few cases; given shapes are as they are."""
    if run.meta.settings.get("trees") or not run.cases:
        return []
    from treeproof.generate.tags import EVENT_CLASSES

    few = [f"{name}={n}" for name in EVENT_CLASSES if (n := run.event_classes[name]) < FEW]
    if not few:
        return []
    text = f"fewer than {FEW} cases in {len(few)} of {len(EVENT_CLASSES)} event classes:"
    more = f" … {len(few) - FEW_NAMED} more" if few[FEW_NAMED:] else ""
    return [prose(f"! {text} {' '.join(few[:FEW_NAMED])}{more}", "yellow")]


def explained(run: Run, group: FailureGroup) -> Explained:
    """What the block of a failure shows."""
    return Explained(
        backend=group.backend,
        failure=group.failure,
        case=_case(run, group.case),
        checked=group.checked,
        checks=group.checks,
        replay=replay_command(run, group),
        reduction=reduction(run, group),
        varies=varies(run, group),
        diagnosed=group.diagnosed,
        sanitized=group.sanitized,
    )


def varies(run: Run, group: FailureGroup) -> str:
    """What a reduced failure does not need, in words; empty where it was not reduced."""
    if group.reduced is None or group.case != group.reduced.reduced:
        return ""
    drawn, reduced = _case(run, group.reduced.original), _case(run, group.reduced.reduced)
    return "" if drawn is None or reduced is None else varies_freely(drawn, reduced)


def _case(run: Run, case_id: str) -> VerifyCase | None:
    try:
        return run.folder.read_case(case_id)
    except FileError:
        return None


def reduction(run: Run, group: FailureGroup) -> str:
    """How its case was made smaller, in words."""
    reduced = group.reduced
    if reduced is None:
        return "not reduced"
    drawn = run.found.cases
    tries = count(reduced.evaluations, "try").replace("trys", "tries")
    rest = "" if reduced.complete else ", not yet the smallest"
    if reduced.original not in drawn or group.case != reduced.reduced:
        return f"reduced in {tries}{rest}"
    before = drawn[reduced.original]
    was = f"{count(len(before.rows), 'request')}, {count(sum(before.rows), 'row')}"
    return f"reduced from {was} in {tries}{rest}"
