"""Write docs/findings.md from docs/findings.toml; with --check, say whether it is as written.

python ci/findings.py
"""

import sys
from pathlib import Path

from treeproof.engine.findings_file import Finding, read_findings
from treeproof.engine.ledger_file import read_entries

ROOT = Path(__file__).resolve().parent.parent
SOURCE, PAGE = ROOT / "docs" / "findings.toml", ROOT / "docs" / "findings.md"

HEAD = """\
<!-- Written by `python ci/findings.py` from findings.toml. -->

# Findings

What treeproof found in kernels of others: each by cases that were drawn, reduced to the smallest that
shows it, with the cause that reproduces all that was seen. [findings.toml](findings.toml) is a ledger,
too, which tolerates them and fails the run once a release has mended one:

```bash
treeproof check sglang-extend --seed 0 --ledger docs/findings.toml
```

On the CPU the Triton kernels are interpreted. A failure whose reduction ran out of time may lack its
cause; an entry that asks for one does not tolerate it then."""


def page(source: Path) -> str:
    """The page, in Markdown."""
    entries = read_entries(source)
    parts = [HEAD]
    for finding in read_findings(source):
        own = [entry for entry in entries if entry.finding == finding.name]
        causes = ", ".join(dict.fromkeys(f"`{e.cause}`" for e in own if e.cause))
        broken = ", ".join(dict.fromkeys(e.identity for e in own))
        releases = ", ".join(dict.fromkeys(f"{p} {v}" for e in own for p, v in e.versions))
        parts.append(_section(finding, broken, causes, releases))
    return "".join(parts) + "\n"


def _section(finding: Finding, broken: str, causes: str, releases: str) -> str:
    window = f", window {finding.window}" if finding.window else ""
    window += f", head dim {finding.head_dim}" if finding.head_dim else ""
    lines = {
        "backend": f"`{finding.backend}`",
        "seen in": finding.seen_in,
        "tolerated for": releases,
        "reported": finding.reported,
        "breaks": broken,
        "cause": causes or "told by the failure itself",
        "smallest case": f"parents `{list(finding.parents)}`, prefix {finding.prefix}{window}",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in lines.items())
    return (
        f"\n\n## {finding.title}\n\n| | |\n|---|---|\n{table}\n\n{finding.says.strip()}\n\n"
        f"```bash\n{finding.shows}\n```"
    )


def main(arguments: list[str]) -> int:
    wanted = page(SOURCE)
    if arguments == ["--check"]:
        same = PAGE.is_file() and PAGE.read_text("utf-8") == wanted
        print(f"{PAGE}: {'as written' if same else 'not as written: run python ci/findings.py'}")
        return 0 if same else 1
    PAGE.write_text(wanted, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
