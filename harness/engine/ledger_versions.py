"""Which releases an entry of a ledger speaks of, and whether they are the ones that are installed."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidName, canonicalize_name

Versions = tuple[tuple[str, str], ...]
"""Distribution and the releases of it that are meant, as `pip` writes them: (("sglang", ">=0.5,<0.6"),)."""


def read_versions(value: object) -> Versions:
    """Of a TOML table. Raises ValueError naming what is accepted."""
    if not isinstance(value, dict) or not value:
        raise ValueError('a table such as { sglang = ">=0.5.20,<0.6" } is expected')
    for package, releases in value.items():
        try:
            canonicalize_name(package, validate=True)
        except InvalidName:
            raise ValueError(f"{package!r} is no name of a distribution") from None
        try:
            meant = SpecifierSet(releases) if isinstance(releases, str) else None
        except InvalidSpecifier:
            meant = None
        if not meant:
            raise ValueError(
                f"{package} is {releases!r}: releases such as >=0.5.20,<0.6 are expected"
            )
    return tuple(value.items())


def elsewhere(
    versions: Versions, installed: Callable[[str], str] = importlib.metadata.version
) -> str:
    """Why an entry does not hold here, in words; empty where every release is one that it means.

    Pre-releases and builds of a release count as that release does in order.
    """
    for package, releases in versions:
        try:
            version = installed(package)
        except importlib.metadata.PackageNotFoundError:
            return f"{package} is not installed"
        if not SpecifierSet(releases).contains(version, prereleases=True):
            return f"{package} is {version}, not {releases}"
    return ""
