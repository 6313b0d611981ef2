"""Records of real faults that no stage reaches yet, and what would bring them within reach."""

from __future__ import annotations

from collections.abc import Mapping

OUT_OF_REACH: Mapping[str, str] = {}
