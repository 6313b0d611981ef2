"""What a release tells: its section of CHANGELOG.md, where tag, version and section agree.

    python ci/release_notes.py v0.1.0

Exit code 2, and what is to be done, where they do not.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def notes(tag: str, version: str, changelog: str) -> str:
    """The entries of the version that is tagged. Raises ValueError saying what does not fit."""
    if tag != f"v{version}":
        raise ValueError(
            f"the tag is {tag}, and harness/__init__.py says {version}: v{version} is expected"
        )
    sections = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    for section in sections:
        head, _, entries = section.partition("\n")
        if not head.startswith(f"[{version}]"):
            continue
        if re.fullmatch(r"\[.+?\] - \d{4}-\d\d-\d\d", head.strip()) is None:
            raise ValueError(
                f"CHANGELOG.md: `## {head}` has no day; `## [{version}] - YYYY-MM-DD` is expected"
            )
        if re.search(r"^- ", entries, re.MULTILINE) is None:
            raise ValueError(f"CHANGELOG.md: `## {head}` has no entry")
        return entries.strip() + "\n"
    raise ValueError(f"CHANGELOG.md has no section `## [{version}] - YYYY-MM-DD`")


def version() -> str:
    """As it stands in the one place where it is written."""
    text = (ROOT / "harness" / "__init__.py").read_text("utf-8")
    (found,) = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return str(found)


def main() -> int:
    (tag,) = sys.argv[1:]
    try:
        sys.stdout.write(notes(tag, version(), (ROOT / "CHANGELOG.md").read_text("utf-8")))
    except ValueError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
