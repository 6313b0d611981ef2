"""A broken contract stops a probe: the failure travels in the exception."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from treeproof.contract.failure import Failure
from treeproof.properties.exception_text import in_one_line, where

T = TypeVar("T")


class Violation(Exception):
    """The backend broke the contract; `failure` says how."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def held(run: Callable[[], T]) -> Callable[[], T]:
    """Run it now; what it gives, or the violation that it raises, comes when the result is called."""
    try:
        result = run()
    except Violation as violation:
        broken = violation

        def again() -> T:
            raise broken

        return again
    return lambda: result


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
    """The violation of a stage that raised: what it says, and the line of code it came from."""
    text = f"{stage} raised {in_one_line(error)}{where(error)}"
    if isinstance(error, NotImplementedError):
        text += "; Capabilities can say which cases the backend does not take"
    return Violation(contract_failure("raises", stage, text))
