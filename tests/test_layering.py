"""The floors of the package, as import-linter reads them from pyproject.toml."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINT = "from importlinter.cli import lint_imports_command as lint; lint(['--no-cache'])"


@pytest.fixture
def project(tmp_path):
    """A copy of the package as it is installed, with the contracts beside it."""
    package = tmp_path / "treeproof"
    shutil.copytree(ROOT / "harness", package)
    for room in ("oracles", "backends", "properties", "reports"):
        shutil.copytree(ROOT / room, package / room)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(project):
    """Run import-linter on a project folder; returns its exit code and its words."""
    done = subprocess.run([sys.executable, "-c", LINT], cwd=project, capture_output=True, text=True)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_every_room_imports_only_from_the_floors_below_it(project):
    code, words = lint(project)
    assert code == 0, words
    assert "3 kept, 0 broken" in words


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("oracles/path.py", "treeproof.backends.direct_mask"),
        ("backends/direct_mask.py", "treeproof.oracles.path"),
        ("backends/direct_mask.py", "treeproof.generate.pool"),
        ("generate/pool.py", "treeproof.oracles.path"),
        ("contract/tree.py", "treeproof.generate.pool"),
        ("properties/visibility.py", "treeproof.engine.check"),
        ("engine/runner.py", "treeproof.reports.drawing"),
        ("diagnosis/diagnose.py", "treeproof.faults.fault"),
        ("faults/fault.py", "treeproof.diagnosis.diagnose"),
        ("diagnosis/diagnose.py", "treeproof.engine.check"),
        ("reports/drawing.py", "treeproof.cli"),
        ("pytest_plugin.py", "treeproof.cli"),
        ("properties/visibility.py", "treeproof.backends.direct_mask"),
        ("reports/drawing.py", "torch"),
        ("contract/tree.py", "torch"),
    ],
)
def test_an_import_against_the_floors_is_caught(project, where, what):
    module = project / "treeproof" / where
    module.write_text(f"{module.read_text('utf-8')}\nimport {what}\n", "utf-8")
    code, words = lint(project)
    importer = "treeproof." + where.removesuffix(".py").replace("/", ".")
    assert code == 1
    assert "broken" in words
    assert f"{importer} -> {what}" in words


def test_an_import_that_only_annotates_is_caught_too(project):
    module = project / "treeproof" / "oracles" / "path.py"
    annotating = "if TYPE_CHECKING:\n    import treeproof.backends.cascade\n"
    module.write_text(f"{module.read_text('utf-8')}\n{annotating}", "utf-8")
    code, words = lint(project)
    assert code == 1
    assert "treeproof.oracles.path -> treeproof.backends.cascade" in words


def test_a_room_without_a_floor_is_caught(project):
    (project / "treeproof" / "attic").mkdir()
    (project / "treeproof" / "attic" / "__init__.py").write_text("")
    code, words = lint(project)
    assert code == 1
    assert "treeproof.attic" in words
