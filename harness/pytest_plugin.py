"""The pytest plug-in. Importing it imports neither torch nor Hypothesis."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "treeproof: checks tree attention; a session in which all of these are skipped fails",
    )
