"""A backend in a package that somebody else installed: found by its entry point, checked, harmless."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "third_party_backend.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install tiny-kernel` leaves behind."""
    site = tmp_path_factory.mktemp("site")
    source = EXAMPLE.read_text().replace('"dense"', '"tiny"')
    (site / "tiny_kernel.py").write_text(f"A_CONSTANT = 61\n{source}")
    info = site / "tiny_kernel-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-kernel\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[treeproof.backends]\ntiny = tiny_kernel\n")
    return site


def treeproof(site: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "treeproof", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )


def verdicts(run: Path, backend: str) -> dict[str, list[dict[str, str]]]:
    """Case to the cells of a backend."""
    lines = [line for file in run.glob("events-*.ndjson") for line in file.read_text().splitlines()]
    events = map(json.loads, lines)
    return {
        event["case"]: event["cells"]
        for event in events
        if event["type"] == "checked" and event["backend"] == backend
    }


def test_it_is_listed_and_a_wrong_name_is_told_of_it(site: Path, tmp_path: Path) -> None:
    assert (
        "\ntiny  (tiny_kernel)\n  stages  attend\n" in treeproof(site, tmp_path, "backends").stdout
    )
    asked = treeproof(site, tmp_path, "check", "tinny")
    assert asked.returncode == 2
    assert "did you mean tiny?" in asked.stderr


def test_it_is_checked_by_name_and_changes_nothing_for_the_others(
    site: Path, tmp_path: Path
) -> None:
    often = ("--seed", "4", "--examples", "16", "--run-dir", "run")
    alone = treeproof(site, tmp_path / "alone", "check", "cascade", "-n", "1", *often)
    both = treeproof(site, tmp_path / "both", "check", "tiny", "cascade", "-n", "2", *often)
    assert (alone.returncode, both.returncode) == (0, 0), both.stdout + both.stderr
    tiny = verdicts(tmp_path / "both" / "run", "tiny").values()
    visible = [cell for cells in tiny for cell in cells if cell["identity"] == "visibility"]
    assert {"pass"} <= {cell["status"] for cell in visible if cell["evidence"] == "measured"}
    cascade = verdicts(tmp_path / "both" / "run", "cascade")
    assert len(cascade) == 16
    assert cascade == verdicts(tmp_path / "alone" / "run", "cascade")
