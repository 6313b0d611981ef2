"""The layers of the model that a script is served with: what each may see, and who serves it.

Engines have an object a kind of layer, each with tables and a plan of its own. A windowed case whose
pages are all kept has full layers among its windowed ones; who takes no full layers serves windows alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace
from torch import Tensor

from treeproof.contract.case import VerifyCase
from treeproof.contract.inputs import LayerParameters
from treeproof.contract.served_model import served_model
from treeproof.contract.shape import AttentionShape, Full
from treeproof.contract.target_model import Codes, TargetModel
from treeproof.engine.checks.stages import close
from treeproof.engine.checks.trial import Trial
from treeproof.generate.layer import layer_parameters


@dataclass
class Kind:
    """Layers of one shape, and the object that serves them: None, where it is the one of all stages."""

    shape: AttentionShape
    instance: Any = None


@dataclass
class Layers:
    """`kinds`: the first is that of the case itself. `of_layer`: the number of each layer's kind."""

    model: TargetModel
    parameters: LayerParameters
    of_layer: tuple[int, ...]
    kinds: list[Kind] = field(default_factory=list)

    @classmethod
    def of(cls, case: VerifyCase, trial: Trial) -> Layers:
        """Raises ValueError naming the field of the case that no model has, and Violation."""
        plain = served_model(case)
        shapes = [case.shape]
        full = replace(case.shape, visibility=Full())
        whole = replace(case, shape=full, layout=replace(case.layout, evicted=False))
        refused = trial.backend.capabilities.refusal(whole, trial.options.device)
        if case.shape.window is not None and not case.layout.evicted and refused is None:
            shapes.append(full)
        of_layer = tuple(layer % len(shapes) for layer in range(plain.layers))
        parameters = layer_parameters(case, trial.options.device)
        model = replace(
            plain,
            windows=tuple(shapes[kind].window for kind in of_layer),
            sinks=_numbers(parameters.sinks),
            slopes=_numbers(parameters.alibi_slopes),
            codes=_codes(case.shape, parameters),
        )
        found = cls(model, parameters, of_layer)
        found.kinds = [Kind(case.shape)]
        for shape in shapes[1:]:
            found.kinds.append(Kind(shape, trial.call("plan", trial.backend.make)))
        return found

    def shape(self, layer: int) -> AttentionShape:
        return self.kinds[self.of_layer[layer]].shape

    def close(self, trial: Trial) -> None:
        for kind in self.kinds[1:]:
            close(trial, kind.instance)


def _numbers(values: Tensor | None) -> tuple[float, ...]:
    return () if values is None else tuple(values.tolist())


def _codes(shape: AttentionShape, layer: LayerParameters) -> Codes | None:
    if shape.kv_dtype is None:
        return None
    return Codes(
        dtype=shape.kv_dtype,  # type: ignore[arg-type]
        k_scale=_numbers(layer.k_scale),
        v_scale=_numbers(layer.v_scale),
    )
