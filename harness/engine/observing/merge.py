"""What a merge of two partial results gave."""

from __future__ import annotations

from typing import Any

from treeproof.diagnosis.evidence import Group, Merged
from treeproof.engine.checks.trial import Trial
from treeproof.properties import contract
from treeproof.properties.bound import natural
from treeproof.properties.merging import kept_dtype, parts


def observe_merge(trial: Trial, found: dict[Group, Any]) -> None:
    if not trial.has("merge"):
        return
    backend = trial.backend
    given = parts(trial.case, backend.numerics, backend.capabilities, trial.options.device)
    merge = trial.instance.merge
    result = trial.call("merge", merge, given.out_a, given.lse_a, given.out_b, given.lse_b)
    kept = {kept_dtype(trial.case, backend.numerics), trial.case.shape.dtype}
    out, lse = contract.valid_merged(result, given.out_a, kept)
    found["merge"] = Merged(out.double().cpu(), natural(lse, backend.capabilities).cpu())
