"""What a drafting phase laid out, in slots."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from treeproof.diagnosis.evidence import STRANGE, Group
from treeproof.diagnosis.laid_out import Grid, Phase, as_allotted, ways_of
from treeproof.engine.checks.drafts import LaidOut, lay_out
from treeproof.engine.checks.trial import Trial
from treeproof.engine.observing.contents import bits, rows_by_bits
from treeproof.properties.contract import same_rows


def observe_draft(trial: Trial, found: dict[Group, Any]) -> None:
    """As it is where anything is wrong with it; a right one may choose other slots."""
    if not trial.has("draft"):
        return
    laid = lay_out(trial)
    if trial.borrows("draft"):
        return
    phase = _phase(laid)
    wrong = any(failures for *_, failures in laid.verdicts())
    found["draft"] = phase if wrong else as_allotted(ways_of(trial.case)).as_far_as(phase)


def _phase(laid: LaidOut) -> Phase:
    tables = {
        table.form: tuple(tuple(tuple(own.tolist()) for own in line) for line in table.lists)
        for table in laid.tables
    }
    return Phase(
        positions=_grid(laid.made.get("positions")),
        slots=_grid(laid.made.get("out_cache_loc")),
        lists=tables.get("lists"),
        pages=tables.get("page tables"),
        held=_held(laid),
    )


def _grid(cells: Tensor | None) -> Grid | None:
    return None if cells is None else tuple(map(tuple, cells.tolist()))


def _held(laid: LaidOut) -> frozenset[tuple[int, int, int]]:
    """Slots whose K or V changed, and whose K and V they hold now."""
    pairs = list(zip(laid.after, laid.scene.before, strict=True))
    known = [(rows_by_bits(was), (now, was)) for now, was in pairs]
    changed = ~(same_rows(*pairs[0]) & same_rows(*pairs[1]))
    return frozenset(
        (slot, *(of.get(bits(now[slot].cpu()), STRANGE) for of, (now, _) in known))
        for slot in changed.nonzero()[:, 0].tolist()
    )
