"""Has a backend changed? What a digest of its source notices, and what it leaves alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from treeproof.contract.registry import load
from treeproof.engine import source_digest as digests
from treeproof.engine.source_digest import Digests, source_digest

FILES = {
    "adapter.py": "import helper\n\ndef attend():\n    from engine.kernels import tree\n",
    "helper.py": "SCALE = 1\n",
    "bystander.py": "SCALE = 1\n",
    "engine/__init__.py": "",
    "engine/kernels/__init__.py": "from . import shared\n",
    "engine/kernels/tree.py": "from .shared import block\nfrom ..limits import MOST\nimport engine\n",
    "engine/kernels/shared.py": "def block(): ...\n",
    "engine/kernels/other.py": "def block(): ...\n",
    "engine/limits.py": "MOST = 1\n",
    "engine/old.py": "print 'for another Python'\n",
}
"""Of an engine, and of an adapter beside it; where each name leads is written down in the tests."""


@pytest.fixture
def digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Digests]:
    """Writes the files, and reads the digest of adapter.py anew each time it is called."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda: source_digest(f"{tmp_path / 'adapter.py'}:mine")


@pytest.mark.parametrize(
    "name",
    [
        "adapter.py", "helper.py", "engine/__init__.py", "engine/kernels/__init__.py",
        "engine/kernels/tree.py", "engine/kernels/shared.py", "engine/limits.py",
    ],
)  # fmt: skip
def test_a_change_of_anything_that_is_imported_is_noticed(
    digest: Callable[[], Digests], tmp_path: Path, name: str
) -> None:
    before = digest()
    text = (tmp_path / name).read_text()
    (tmp_path / name).write_text(text + "# another\n")
    assert digest() != before
    (tmp_path / name).write_text(text)
    assert digest() == before


@pytest.mark.parametrize("name", ["bystander.py", "engine/kernels/other.py", "engine/old.py"])
def test_a_change_of_what_is_not_imported_is_none(
    digest: Callable[[], Digests], tmp_path: Path, name: str
) -> None:
    before = digest()
    (tmp_path / name).write_text("# another\n")
    assert digest() == before


def test_nothing_of_it_is_imported_and_a_file_for_another_python_is_no_error(
    digest: Callable[[], Digests], tmp_path: Path
) -> None:
    before = digest()
    (tmp_path / "helper.py").write_text("import engine.old\nraise SystemExit\n")
    assert digest() != before
    assert "helper" not in sys.modules
    assert "engine" not in sys.modules


def test_folders_that_are_no_packages_and_finders_that_raise_are_left_out(
    digest: Callable[[], Digests], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spaces" / "inner").mkdir(parents=True)
    (tmp_path / "spaces" / "inner" / "deep.py").write_text("")
    (tmp_path / "spaces" / "near.py").write_text("")
    (tmp_path / "helper.py").write_text("import spaces.near\nimport spaces.inner.deep\n")
    before = digest()
    (tmp_path / "spaces" / "near.py").write_text("# another\n")
    assert digest() != before

    class Broken:
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            raise KeyError(name)

    before = digest()
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    assert digest() == before


def test_another_checkout_of_the_same_files_is_the_same_source(
    digest: Callable[[], Digests], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest()
    elsewhere = tmp_path / "elsewhere"
    for name, text in FILES.items():
        (elsewhere / name).parent.mkdir(parents=True, exist_ok=True)
        (elsewhere / name).write_text(text)
    monkeypatch.syspath_prepend(elsewhere)
    assert source_digest(f"{elsewhere / 'adapter.py'}:mine") == before


def test_of_an_installed_package_the_list_of_the_installer_counts(
    digest: Callable[[], Digests], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    about = site / "fastkernels-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "fastkernels.py").write_text("")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fastkernels\nVersion: 1.0\n")

    def listed(record: str) -> Digests:
        (about / "RECORD").write_text(record)
        digests._record.cache_clear()
        return digest()

    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(digests, "_installed_places", lambda: (site,))
    (tmp_path / "helper.py").write_text("import fastkernels\n")
    files = "fastkernels/_C.so,sha256=aaa,10\nfastkernels/api.py,sha256=bbb,10\n"
    before = listed(f"{files}fastkernels-1.0.dist-info/RECORD,,\n")
    rebuilt = listed(files.replace("aaa", "ccc"))
    assert rebuilt.source == before.source
    assert rebuilt.compiled != before.compiled
    edited = listed(files.replace("bbb", "ccc"))
    assert edited.source != before.source
    assert edited.compiled == before.compiled
    # Who installed it, from where and for which interpreter, is no part of it.
    about_it = "fastkernels-1.0.dist-info/INSTALLER,sha256=ddd,4\nfastkernels-1.0.dist-info/direct_url.json,sha256=d,9\n"
    scripts = "../../../bin/fast,sha256=eee,225\n../../../bin/fast.py,sha256=fff,99\n"
    assert listed(f"{about_it}{files}fastkernels/_C.pyc,,\n{scripts}") == before


def test_a_kernel_that_is_compiled_anew_beside_its_adapter_is_the_same_source(
    digest: Callable[[], Digests], tmp_path: Path
) -> None:
    (tmp_path / "helper.py").write_text("import built\n")
    library = tmp_path / f"built{EXTENSION_SUFFIXES[0]}"
    library.write_bytes(b"one")
    before = digest()
    library.write_bytes(b"two")
    assert digest().source == before.source
    assert digest().compiled != before.compiled


@pytest.mark.parametrize("name", ["direct-mask", "topology", "flex-attention"])
def test_each_of_our_own_backends_has_one_that_stays(name: str) -> None:
    source = load(name).source
    assert source_digest(source) == source_digest(source)
    others = {source_digest(load(o).source) for o in ("cascade", "page-table", "swa-window")}
    assert len(others) == 3
    assert source_digest(source) not in others
