"""The stages of the mask backend, for tests that change one of them."""

from typing import Any

from treeproof.contract.inputs import VerifyInput
from treeproof.contract.registry import load


class MaskStages:
    """Right as it stands."""

    def __init__(self) -> None:
        self.stages: Any = load("direct-mask").make()

    def build(self, c: Any) -> VerifyInput:
        x: VerifyInput = self.stages.build(c)
        return x

    def attend(self, x: VerifyInput, *tensors: Any) -> Any:
        return self.stages.attend(x, *tensors)

    def accept(self, x: VerifyInput, target: Any) -> Any:
        return self.stages.accept(x, target)

    def commit(self, x: VerifyInput, accepted: Any, k: Any, v: Any) -> Any:
        return self.stages.commit(x, accepted, k, v)
