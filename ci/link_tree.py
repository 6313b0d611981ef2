"""Link build/typing/treeproof to the folders that make up the package.

    python ci/link_tree.py && mypy -p treeproof

An editable install finds `treeproof` by an import hook, which neither mypy nor an editor runs; both
follow links. Run it again after adding a file to harness/.
"""

import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def link_tree(root: Path) -> Path:
    """Make the links anew under `root`; returns the folder to put on the import path."""
    typing = root / "build" / "typing"
    shutil.rmtree(typing, ignore_errors=True)
    package = typing / "treeproof"
    package.mkdir(parents=True)
    pyproject = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    folders = dict(pyproject["tool"]["setuptools"]["package-dir"])
    for entry in (root / folders.pop("treeproof")).iterdir():
        (package / entry.name).symlink_to(entry)
    for name, folder in folders.items():
        (typing / name.replace(".", "/")).symlink_to(root / folder)
    return typing


if __name__ == "__main__":
    print(link_tree(ROOT))
