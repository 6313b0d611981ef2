"""Where Triton is not installed its backends are listed, and say what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

BACKENDS = ("direct-mask", "cascade", "page-table", "swa-window", "topology")

WITHOUT = """
import sys
sys.modules["triton"] = None
from treeproof.contract.registry import BackendUnavailable, load
for name in sys.argv[1:]:
    try:
        load(f"treeproof.backends.triton_{name.replace('-', '_')}:triton-{name}")
    except BackendUnavailable as error:
        print(error)
"""


@pytest.fixture(scope="module")
def said() -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *BACKENDS], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_each_of_them_says_that_triton_is_missing_and_how_to_install_it(said: list[str]) -> None:
    assert len(said) == len(BACKENDS)
    for line in said:
        assert "triton is not installed" in line
        assert "pip install triton" in line
