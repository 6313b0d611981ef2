"""Small language models that together have every feature there is."""

from treeproof.contract.target_model import TargetModel

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
