"""The small language model that serves a script: its layers have the shape of the case."""

from __future__ import annotations

from treeproof.contract.case import VerifyCase
from treeproof.contract.target_model import TargetModel

LAYERS = 2


def served_model(case: VerifyCase) -> TargetModel:
    """Sinks, slopes and the scales of a quantised cache are left to who draws them. Raises ValueError
    naming the field that no such model has."""
    shape = case.shape
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
