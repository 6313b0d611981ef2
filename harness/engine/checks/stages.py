"""Running a backend's stages on any case: its build completed by the reference, its attend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from treeproof.backends import reference
from treeproof.backends.reference.store import store_kv
from treeproof.contract.inputs import Candidates, VerifyInput
from treeproof.contract.registry import BackendUnavailable
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.trial import Trial
from treeproof.engine.mend import mended, of_groups
from treeproof.properties import contract
from treeproof.properties.probes.launch import AttendCall
from treeproof.properties.scene import Scene
from treeproof.properties.violation import Violation, raised


@dataclass(frozen=True)
class Built:
    """A verify input, and the fields of it that are the backend's own making."""

    x: VerifyInput
    produced: Mapping[str, Any]


def build(trial: Trial, instance: Any, scene: Scene, made: Candidates) -> Built:
    """The backend's own build, completed by the reference where it has none or a part of one."""
    produced: Mapping[str, Any] = {}
    if trial.has("build"):
        fresh = copied(made)
        result = trial.call("build", instance.build, fresh)
        trial.unchanged("build", made, fresh, free={"mask_buffer"})
        produced = contract.valid_built(result, scene)
        if trial.borrows("build"):
            produced = {}
        if isinstance(result, VerifyInput):
            built = Built(replace(result, **vars(scene.layer)), produced)
            return _repaired(trial, scene, made, built)
    x = replace(reference.build(copied(made)), **produced)
    return _repaired(trial, scene, made, Built(replace(x, **vars(scene.layer)), produced))


def _repaired(trial: Trial, scene: Scene, made: Candidates, built: Built) -> Built:
    """With right fields in the groups that are to be right."""
    chosen = of_groups(built.produced, trial.options.repaired)
    if not chosen:
        return built
    x = mended(scene, built.x, reference.build(copied(made)), chosen)
    return Built(x, {name: getattr(x, name) for name in built.produced})


def attend_call(trial: Trial, instance: Any, true_x: VerifyInput) -> AttendCall:
    """Plan and attend as one call; where attend does not store, the reference does by `true_x`."""
    plan = getattr(instance, "plan", None)

    def attend(x: VerifyInput, *tensors: Tensor) -> Any:
        if not trial.backend.capabilities.stores_kv:
            # `x` may be garbage where the backend does not look; the scales are those of the launch.
            store_kv(replace(true_x, k_scale=x.k_scale, v_scale=x.v_scale), *tensors[1:])
        state = x if plan is None else trial.call("plan", plan, x)
        return trial.call("attend", instance.attend, state, *tensors)

    return attend


def close(trial: Trial, instance: Any) -> None:
    """Let the object go, if it wants to be told."""
    end = getattr(instance, "close", None)
    if callable(end):
        try:
            trial.call("close", end)
        except Violation as violation:
            trial.broke(violation)
        except BackendUnavailable as error:
            trial.broke(raised("close", error))
