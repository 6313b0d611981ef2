"""Drafts accepted by depth, of a run: what the oracle expects beside what was seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import isclose

from treeproof.contract.event import Acceptance, Way
from treeproof.engine.figures import acceptance
from treeproof.engine.summary import Run
from treeproof.reports.text import shown

WAYS: tuple[Way, ...] = ("greedy", "sampled", "law", "rounds")
SHOWN_DEPTHS = 8


@dataclass(frozen=True)
class Accepted:
    """Walks of one way, of one backend or of several that accept as the oracle does."""

    backends: tuple[str, ...]
    way: Way
    walks: int
    expected: tuple[float, ...]
    """Share of the walks that take 1, 2, … drafts or more, at most `SHOWN_DEPTHS`."""
    observed: tuple[float, ...]

    @property
    def alike(self) -> bool:
        return _alike(self.expected, self.observed)

    @property
    def whose(self) -> str:
        alone = len(self.backends) == 1
        return shown(self.backends[0], 80) if alone else f"{len(self.backends)} backends"

    @property
    def depths(self) -> list[tuple[str, str]]:
        """Per cent observed at depths 1, 2, …, and expected where that is another number."""
        pairs = zip(self.observed, self.expected, strict=True)
        return [(share_shown(a), "" if isclose(a, b) else share_shown(b)) for a, b in pairs]


def accepted(run: Run) -> list[Accepted]:
    """By way, then backend; those of a way that are as expected together, in one line."""
    found, sums = [], acceptance(run)
    for way in WAYS:
        of_way = {name: sums[name][way] for name in run.backends if way in sums[name]}
        right = {name: one for name, one in of_way.items() if _alike(one.expected, one.observed)}
        if right:
            found.append(_together(right))
        found += [_together({name: one}) for name, one in of_way.items() if name not in right]
    return found


def acceptance_lines(run: Run) -> list[str]:
    lines: list[str] = []
    for one in accepted(run):
        said = "as the oracle" if one.alike else f"the oracle {_shares(one.expected)}"
        lines.append(
            f"{'' if lines else 'accepted':<9}{one.way}, {one.whose}: {one.walks:,} walks, "
            f"{_shares(one.observed)} to depth 1 and on, {said}"
        )
    return lines


def _shares(shares: Sequence[float]) -> str:
    """`88 64 41 %`: in whole per cent, and finer where that would be all or nothing and is not."""
    return " ".join(map(share_shown, shares)) + " %" if shares else "none"


def share_shown(share: float) -> str:
    whole = f"{100 * share:.0f}"
    return f"{100 * share:.2g}" if whole == "0" and share else whole


def _together(found: Mapping[str, Acceptance]) -> Accepted:
    ones = list(found.values())
    walks = sum(one.expected[0] for one in ones)
    # Both sides by depth, as long as the longer of them.
    sides = ([one.expected for one in ones], [one.observed for one in ones])
    sums = [[sum(counts) for counts in zip_longest(*side, fillvalue=0.0)] for side in sides]
    by_depth = list(zip_longest(*sums, fillvalue=0.0))[1 : 1 + SHOWN_DEPTHS]
    expected, observed = (tuple(pair[i] / max(1.0, walks) for pair in by_depth) for i in (0, 1))
    return Accepted(tuple(found), ones[0].way, round(walks), expected, observed)


def _alike(expected: Sequence[float], observed: Sequence[float]) -> bool:
    """As a law adds up in another order it is the same but for rounding."""
    return all(isclose(a, b) for a, b in zip_longest(expected, observed, fillvalue=0.0))
