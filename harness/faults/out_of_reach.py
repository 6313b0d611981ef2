"""Records of real faults that no stage reaches yet, and what would bring them within reach."""

from __future__ import annotations

from collections.abc import Mapping

_RECURRENT = "stage recur, with a state that commit restores"
_TRANSFER = "two engines, one of which hands its pages to the other"

_WHY: Mapping[str, tuple[str, str]] = {
    "B037": (
        "a launch whose lengths are shorter than its rows, as a captured graph is warmed up with",
        "rows that are aligned to the end have no key left",
    ),
    "B078": (_RECURRENT, "the next step begins from another row's state"),
    "B079": (_RECURRENT, "at a block's edge an older state is copied over the newer one"),
    "B080": (_RECURRENT, "a state is looked up for a path of no rows"),
    "B081": (_RECURRENT, "a sibling begins from its sibling's state, not from its parent's"),
    "B082": (_RECURRENT, "a state drifts from that of plain decoding, over many rounds"),
    "B087": (_TRANSFER, "lists of blocks differ between two ends of a transfer"),
}

OUT_OF_REACH: Mapping[str, str] = {
    record: f"needs {stage}: {why}" for record, (stage, why) in _WHY.items()
}
"""Record to what it needs, and what goes wrong there."""
