"""Two runs beside each other: what is new, what is fixed, and whose margin moved."""

from __future__ import annotations

from dataclasses import dataclass

from treeproof.engine.failure_group import FailureGroup
from treeproof.engine.gathered import Key
from treeproof.engine.summary import Run
from treeproof.reports.ending import last_words
from treeproof.reports.run_names import of_run, run_names

NOTABLE = 1.25
"""Margins whose quotient is above this, either way, have moved."""


@dataclass(frozen=True)
class Comparison:
    """`new`, `fixed` and `still` are distinct failures; a failure is `fixed` only where the later run
    judged its backend and column, else it is `unseen`."""

    new: tuple[FailureGroup, ...]
    still: tuple[FailureGroup, ...]
    fixed: tuple[FailureGroup, ...]
    unseen: tuple[FailureGroup, ...]
    margins: tuple[tuple[str, float, float], ...]
    """Backend, margin before, margin after, where it moved."""
    differing: tuple[str, ...]
    """What else is not the same, in words: versions, seed, profile, device."""
    incomplete: tuple[str, ...]
    """What one of the runs lacks, by its name: it was cut short, is damaged, or left a gap."""


def compare(before: Run, after: Run) -> Comparison:
    """Failures are the same where backend, identity and kind are."""
    old: dict[Key, FailureGroup] = {group.key: group for group in before.failures}
    now: dict[Key, FailureGroup] = {group.key: group for group in after.failures}
    gone = [group for key, group in old.items() if key not in now]
    judged = [group for group in gone if _judged(after, group)]
    return Comparison(
        new=tuple(group for key, group in now.items() if key not in old),
        still=tuple(group for key, group in now.items() if key in old),
        fixed=tuple(judged),
        unseen=tuple(group for group in gone if group not in judged),
        margins=tuple(_moved(before, after)),
        differing=tuple(_differing(before, after)),
        incomplete=tuple(
            of_run(name, line.plain.removeprefix("! "))
            for run, name in zip((before, after), run_names((before, after)), strict=True)
            for line in last_words(run)[:-1]
        ),
    )


def _judged(run: Run, group: FailureGroup) -> bool:
    if group.backend not in run.matrix:
        return False
    cells = run.matrix[group.backend][group.identity]
    return any(cells[status] for status in ("pass", "tie", "fail", "known"))


def _moved(before: Run, after: Run) -> list[tuple[str, float, float]]:
    found = []
    for backend, margin in after.margins.items():
        was = before.margins.get(backend)
        if was is None or was == margin:
            continue
        low, high = sorted((was, margin))
        if low <= 0 or high / low > NOTABLE:
            found.append((backend, was, margin))
    return found


def _differing(before: Run, after: Run) -> list[str]:
    lines = []
    for name in sorted({*before.meta.versions, *after.meta.versions}):
        pair = [run.meta.versions.get(name, "none") for run in (before, after)]
        if pair[0] != pair[1]:
            lines.append(f"{name} {pair[0]} → {pair[1]}")
    for name in ("seed", "device", "device_name", "platform"):
        pair = [str(getattr(run.meta, name)) for run in (before, after)]
        if pair[0] != pair[1]:
            lines.append(f"{name.replace('_', ' ')} {pair[0]} → {pair[1]}")
    profiles = [str(run.meta.settings.get("profile", "")) for run in (before, after)]
    if profiles[0] != profiles[1]:
        lines.append(f"profile {profiles[0]} → {profiles[1]}")
    return lines
