"""What a release needs to agree on before it is built: the tag, the version, the changelog."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import treeproof

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "ci" / "release_notes.py"
spec = importlib.util.spec_from_file_location("release_notes", SCRIPT)
assert spec is not None
assert spec.loader is not None
release_notes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(release_notes)

CHANGELOG = """# Changelog

## [1.2.0] - 2030-01-31

### Added

- A thing.

## [1.1.0] - 2029-12-01

- An older thing.
"""


def test_the_notes_are_the_entries_of_the_version() -> None:
    assert release_notes.notes("v1.2.0", "1.2.0", CHANGELOG) == "### Added\n\n- A thing.\n"
    assert release_notes.notes("v1.1.0", "1.1.0", CHANGELOG) == "- An older thing.\n"


@pytest.mark.parametrize(
    ("tag", "version", "old", "new", "said"),
    [
        ("v1.3.0", "1.2.0", "", "", r"the tag is v1\.3\.0.*v1\.2\.0 is expected"),
        ("1.2.0", "1.2.0", "", "", r"the tag is 1\.2\.0.*v1\.2\.0 is expected"),
        ("v1.3.0", "1.3.0", "", "", r"no section `## \[1\.3\.0\] - YYYY-MM-DD`"),
        ("v1.2.0", "1.2.0", "2030-01-31", "unreleased", r"\[1\.2\.0\] - unreleased` has no day"),
        ("v1.2.0", "1.2.0", "- A thing.", "", r"\[1\.2\.0\] - 2030-01-31` has no entry"),
    ],
)
def test_what_does_not_fit_is_named(tag: str, version: str, old: str, new: str, said: str) -> None:
    changelog = CHANGELOG.replace(old, new, 1) if old else CHANGELOG
    with pytest.raises(ValueError, match=said):
        release_notes.notes(tag, version, changelog)


def test_a_tag_of_another_version_stops_the_release() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "v9.9.9"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"Error: the tag is v9.9.9, and harness/__init__.py says {treeproof.__version__}" in (
        done.stderr
    )
