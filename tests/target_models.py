"""Small language models that together have every feature there is."""

from treeproof.contract.target_model import Codes, TargetModel

MODELS = {
    "plain": TargetModel(),
    "grouped, partly turned, pairs side by side, windows": TargetModel(
        heads=4, kv_heads=2, head_dim=8, v_head_dim=4, rotary=50.0, rotary_lanes=4,
        interleaved=True, layers=3, windows=(3, None, 1), seed=2,
    ),
    "capped, scaled, biased": TargetModel(
        heads=3, kv_heads=1, scale=0.7, softcap=1.5, final_softcap=2.0, qkv_bias=True, seed=3,
        activation="gelu",
    ),
    "norms everywhere, two bases": TargetModel(
        post_norm=True, qk_norm=True, windows=(2, None), windowed_rotary=7.0, seed=4
    ),
    "nothing turned": TargetModel(rotary=None, seed=5),
}  # fmt: skip

ATTENDING = {
    "sinks and distances": TargetModel(
        heads=4, kv_heads=2, head_dim=8, v_head_dim=4, windows=(3, None), sinks=(1.5, -0.5, 3.0, 0.25),
        slopes=(0.5, 0.25, 0.125, 0.0625), softcap=2.0, seed=6,
    ),
    "codes of eight bits": TargetModel(
        codes=Codes(dtype="int8", k_scale=(0.04, 0.07), v_scale=(0.05, 0.03)), seed=7
    ),
    "codes of three bits behind the leading one": TargetModel(
        heads=2, kv_heads=1, sinks=(2.0, -1.0), seed=8,
        codes=Codes(dtype="float8_e4m3fn", k_scale=(0.06,), v_scale=(0.004,)),
    ),
}  # fmt: skip
"""Models whose attention, and whose cache, have what a decoder around somebody else's does not see."""
