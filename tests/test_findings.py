"""The findings that are published: told as they are kept, and no longer where they are mended."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from sglang_worker import Check, Look, case_of, optional, request, workers

from treeproof.contract.case import MaskLayout, VerifyCase
from treeproof.contract.failure import OTHER_CASES
from treeproof.contract.tree import CandidateTree
from treeproof.contract.wire import FileError
from treeproof.engine.findings_file import Finding, read_findings
from treeproof.engine.ledger_file import read_entries
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "docs" / "findings.toml"
FINDINGS = read_findings(SOURCE)
ENTRIES = read_entries(SOURCE)
INSTALLED = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"][
    "treeproof.backends"
]
EACH = pytest.mark.parametrize("finding", FINDINGS, ids=[f.name for f in FINDINGS])
HERE = [f for f in FINDINGS if f.device == "cpu"]
EACH_HERE = pytest.mark.parametrize("finding", HERE, ids=[f.name for f in HERE])
"""Those that need no GPU."""


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("findings", ROOT / "ci" / "findings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def smallest(finding: Finding) -> VerifyCase:
    return windowed(finding, finding.parents, finding.prefix)


def windowed(finding: Finding, parents: tuple[int, ...], prefix: int) -> VerifyCase:
    window = finding.window or None
    lanes = finding.head_dim or 16
    return case_of(
        request([*parents], prefix),
        window=window,
        mask=MaskLayout(),
        head_dim=lanes,
        v_head_dim=lanes,
    )


def test_the_page_is_what_the_generator_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert generator().main(["--check"]) == 0, capsys.readouterr().out


def test_a_page_that_is_not_as_written_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = generator()
    changed = tmp_path / "findings.md"
    changed.write_text(module.PAGE.read_text("utf-8") + "more\n", "utf-8")
    monkeypatch.setattr(module, "PAGE", changed)
    assert module.main(["--check"]) == 1


@EACH
def test_a_finding_is_whole(finding: Finding) -> None:
    own = [entry for entry in ENTRIES if entry.finding == finding.name]
    assert own, "nothing in the ledger is about it"
    assert finding.backend in {entry.backend for entry in own} <= set(INSTALLED)
    assert finding.shows.split()[:3] == ["treeproof", "check", finding.backend]
    CandidateTree(tuple(range(len(finding.parents))), finding.parents)
    assert all(entry.when.covers(smallest(finding), finding.device) for entry in own)


def test_every_entry_is_a_finding() -> None:
    assert {entry.finding for entry in ENTRIES} == {finding.name for finding in FINDINGS}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[finding]]\nname = "a"\n', "finding 1: Object missing required field `title`"),
        (SOURCE.read_text("utf-8") * 2, "finding 7: the name 'sglang-extend-window' is taken"),
    ],
    ids=["not-whole", "twice"],
)
def test_what_is_no_finding_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "findings.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(FileError) as caught:
        read_findings(path)
    assert str(caught.value).startswith(f"{path}: {words}")


def test_a_release_that_has_mended_a_finding_fails_the_run(tmp_path: Path) -> None:
    """A right backend in the place of the one that the finding is about."""
    (finding, *_) = FINDINGS
    mended = tmp_path / "mended.toml"
    _, first, *_ = SOURCE.read_text("utf-8").split("[[finding]]")
    first = first.replace(f'"{finding.backend}"', '"direct-mask"')
    # Of a release that is installed, as the package of the finding may not be.
    first = re.sub(r"versions = .*", 'versions = { treeproof = ">=0" }', first)
    mended.write_text(f"[[finding]]{first}", "utf-8")
    settings = RunSettings(
        backends=("direct-mask",), ledger=mended, workers=0, store=None, run_dir=tmp_path / "run"
    )
    found = run(settings, cases=[smallest(finding)])
    assert found.exit_code == 1
    assert {state.entry.finding for state in found.unexpected_passes} == {finding.name}


# --- shown by the kernels themselves ---------------------------------------------------------------


@pytest.fixture(scope="module")
def asked() -> Iterator[tuple[Check, Look]]:
    with workers() as both:
        yield both


def reference(finding: Finding) -> str:
    return f"{INSTALLED[finding.backend]}:{finding.backend}"


@optional
@EACH_HERE
def test_the_smallest_case_shows_the_finding_and_its_cause(
    asked: tuple[Check, Look], finding: Finding
) -> None:
    check, look = asked
    own = [entry for entry in ENTRIES if entry.finding == finding.name]
    failures = check(reference(finding), smallest(finding)).failures

    assert failures, "it is mended: take it out of docs/findings.toml"
    assert not [f.key for f in failures if not any(entry.is_about(f.key) for entry in own)]
    causes = {entry.cause for entry in own if entry.cause}
    found = {one.cause for one in look(reference(finding), smallest(finding)) if not one.identity}
    assert found >= causes


@optional
@pytest.mark.long
@EACH_HERE
def test_nothing_smaller_shows_it(asked: tuple[Check, Look], finding: Finding) -> None:
    check, _ = asked
    parents, prefix = finding.parents, finding.prefix
    smaller = [windowed(finding, parents, prefix - 1)] if prefix else []
    if len(parents) > 1:
        smaller.append(windowed(finding, parents[:-1], prefix))

    # Probes that run further cases, larger ones among them, are not about this one.
    found = [f for case in smaller for f in check(reference(finding), case).failures]
    assert [f.key for f in found if f.probe not in OTHER_CASES] == []


@optional
@pytest.mark.long
def test_padded_rows_do_not_hide_the_cause(asked: tuple[Check, Look]) -> None:
    """Cells that are misread lead to columns of padded rows, which lie in the pad slot."""
    _, look = asked
    unified = next(f for f in FINDINGS if f.name == "sglang-unified-window")
    case = case_of(request([-1, 0, 0], 1, pad_rows=1), window=2, mask=MaskLayout())

    assert {one.cause for one in look(reference(unified), case)} == {"mask-lines-clipped"}
