"""Flags of the build, as the wheel of 0.0.3 tells them."""

CONFIG = {
    "build_flags": {
        "FLASHATTENTION_DISABLE_PAGEDKV": True,
        "FLASHATTENTION_DISABLE_LOCAL": True,
        "FLASHATTENTION_DISABLE_SOFTCAP": False,
        "FLASHATTENTION_DISABLE_FP16": True,
        "FLASHATTENTION_DISABLE_HDIM64": False,
        "FLASHATTENTION_DISABLE_HDIM96": False,
        "FLASHATTENTION_DISABLE_HDIM128": False,
        "FLASHATTENTION_DISABLE_HDIM192": False,
        "FLASHATTENTION_DISABLE_HDIM256": False,
        "FLASHATTENTION_DISABLE_SM8x": False,
    }
}
