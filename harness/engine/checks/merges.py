"""What the merge of two partial results gives, judged by itself."""

from __future__ import annotations

from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.trial import Trial
from treeproof.properties import contract
from treeproof.properties.merging import judge_merge, kept_dtype, parts
from treeproof.properties.violation import Violation


def judge_merges(trial: Trial) -> None:
    """One call of the stage on drawn parts; no other stage of the backend has a part in it."""
    if not (trial.has("merge") and trial.runs("merge") and trial.wants("output", "measured")):
        return
    with trial.probing("merge"):
        try:
            _judge(trial)
        except Violation as violation:
            trial.broke(violation)


def _judge(trial: Trial) -> None:
    backend, case = trial.backend, trial.case
    given = parts(case, backend.numerics, backend.capabilities, trial.options.device)
    handed = copied(given)
    result = trial.call(
        "merge", trial.instance.merge, handed.out_a, handed.lse_a, handed.out_b, handed.lse_b
    )
    trial.unchanged("merge", given, handed)
    kept = {kept_dtype(case, backend.numerics), case.shape.dtype}
    out, lse = contract.valid_merged(result, given.out_a, kept)
    failures = judge_merge(given, out, lse, case, backend.numerics, backend.capabilities)
    trial.judged("output", "measured", "merge", failures)
