"""A broken contract stops a probe: the failure travels in the exception."""

from __future__ import annotations

import traceback

from treeproof.contract.failure import Failure


class Violation(Exception):
    """The backend broke the contract; `failure` says how."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def contract_failure(
    kind: str, stage: str, message: str, *, expected: str = "", actual: str = ""
) -> Failure:
    return Failure(
        identity="contract",
        kind=kind,
        evidence="measured",
        stage=stage,
        message=message,
        expected=expected,
        actual=actual,
    )


def raised(stage: str, error: BaseException) -> Violation:
    """The violation of a stage that raised: type, message and the deepest frame."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].name}, line {frames[-1].lineno})" if frames else ""
    text = str(error).strip().splitlines()
    first = text[0][:300] if text else ""
    return Violation(
        contract_failure("raises", stage, f"{stage} raised {type(error).__name__}: {first}{where}")
    )
