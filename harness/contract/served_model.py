"""The small language model that serves a script: its layers have the shape of the case."""

from __future__ import annotations

from treeproof.contract.case import VerifyCase
from treeproof.contract.target_model import TargetModel


def served_model(case: VerifyCase) -> TargetModel:
    """Raises ValueError naming the field that no such model has."""
    shape = case.shape
    uncut = shape.window is None or shape.window >= case.layout.num_slots
    for right, name, accepted in (
        (shape.num_kv_heads == shape.num_q_heads, "num_kv_heads", f"{shape.num_q_heads}"),
        (shape.v_head_dim == shape.head_dim, "v_head_dim", f"{shape.head_dim}"),
        (shape.rotary is not None, "rotary", "a base"),
        (shape.score_scale == shape.head_dim**-0.5, "scale", "None"),
        (uncut, "visibility", f"full, and windows of {case.layout.num_slots} keys or more"),
        (shape.softcap is None, "softcap", "None"),
        (not shape.sinks, "sinks", "false"),
        (not shape.alibi, "alibi", "false"),
        (shape.kv_dtype is None, "kv_dtype", "None"),
    ):
        if not right:
            raise ValueError(
                f"shape.{name} is {getattr(shape, name)}: a script is served with {accepted}"
            )
    assert shape.rotary is not None
    heads, lanes = shape.num_q_heads, shape.head_dim
    return TargetModel(
        width=heads * lanes, heads=heads, kv_heads=heads, head_dim=lanes, v_head_dim=lanes,
        rotary=shape.rotary,
    )  # fmt: skip
