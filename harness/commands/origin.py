"""Where this treeproof came from, as pip installs it again elsewhere."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import dataclass

import treeproof


@dataclass(frozen=True)
class Origin:
    """`known` False: it came from this machine, and `requirement` is a guess: a release of its version."""

    requirement: str
    known: bool


def origin() -> Origin:
    """From what the installer wrote down (`direct_url.json`, PEP 610); nothing where it asked an index."""
    release = f"treeproof=={treeproof.__version__}"
    try:
        written = importlib.metadata.distribution("treeproof").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:  # a source tree in PYTHONPATH
        return Origin(release, known=False)
    if written is None:
        return Origin(release, known=True)
    found = json.loads(written)
    url = str(found["url"])
    if url.startswith("file:"):
        return Origin(release, known=False)
    commit = found.get("vcs_info")
    if commit is not None:
        return Origin(f"treeproof @ {commit['vcs']}+{url}@{commit['commit_id']}", known=True)
    return Origin(f"treeproof @ {url}", known=True)
