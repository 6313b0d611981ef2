"""The small language model that serves a script: its layers have the shape of the case."""

from __future__ import annotations

from treeproof.contract.case import VerifyCase
from treeproof.contract.target_model import TargetModel

LAYERS = 2


def served_model(case: VerifyCase) -> TargetModel:
    """Raises ValueError naming the field that no such model has."""
    shape = case.shape
    for right, name, accepted in (
        (not shape.sinks, "sinks", "false"),
        (not shape.alibi, "alibi", "false"),
        (shape.kv_dtype is None, "kv_dtype", "None"),
    ):
        if not right:
            raise ValueError(
                f"shape.{name} is {getattr(shape, name)}: a script is served with {accepted}"
            )
    return TargetModel(
        width=shape.num_q_heads * shape.head_dim,
        heads=shape.num_q_heads,
        kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        v_head_dim=shape.v_head_dim,
        layers=LAYERS,
        rotary=shape.rotary,
        windows=() if shape.window is None else (shape.window,) * LAYERS,
        scale=shape.scale,
        softcap=shape.softcap,
    )
