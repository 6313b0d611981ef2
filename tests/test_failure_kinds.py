"""The list of kinds of failures against those that checks note and that planted faults have shown."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from treeproof.contract.failure_kinds import KINDS, is_kind

ROOT = Path(__file__).resolve().parent.parent
NO_KINDS = {"not-checked"}
"""Words with a dash where failures are noted that are not a kind: a status."""


def words_with_a_dash() -> Iterator[str]:
    """Of the modules that note failures."""
    checks = ROOT / "harness" / "engine"
    for file in (*(ROOT / "properties").rglob("*.py"), *(checks / "checks").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and re.fullmatch(r"[a-z]+(-[a-z]+)+", text):
                yield text


def test_every_kind_that_a_check_notes_is_listed_and_no_other() -> None:
    written = set(words_with_a_dash()) - NO_KINDS
    assert {kind for kind in written if not is_kind(kind)} == set()
    plain = {"crash", "hang", "nondeterministic", "raises", "table"}
    assert KINDS - written == plain


def test_every_kind_that_a_planted_fault_has_shown_is_one() -> None:
    files = sorted((ROOT / "tests" / "corpus").glob("*.json"))
    shown = {json.loads(file.read_text("utf-8"))["failure"]["kind"] for file in files}
    assert len(shown) > 30
    assert {kind for kind in shown if not is_kind(kind)} == set()


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("reads-sibling", True),
        ("stale-raises", True),
        ("malformed-wrong-shape", True),
        ("stale-nothing", False),
        ("reads-siblings", False),
        ("", False),
    ],
)
def test_a_kind_is_known_as_it_is_shown(kind: str, known: bool) -> None:
    assert is_kind(kind) == known
