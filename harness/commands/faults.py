"""`treeproof faults`; what it does is in `planting`, which loads torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from treeproof.commands.options import PATH
from treeproof.contract.failure import PROBES


@click.command()
@click.argument("names", nargs=-1, metavar="[FAULT|RECORD]...")
@click.option("--list", "listed", is_flag=True, help="List the faults and what is out of reach.")
@click.option("--backend", "subjects", metavar="NAME", multiple=True, help="Plant into this one.")
@click.option("--every-backend", is_flag=True, help="Plant each fault wherever it can be planted.")
@click.option("--no-reduce", is_flag=True, help="Do not look for the smallest cases.")
@click.option(
    "--smallest-first", is_flag=True, help="Begin with the smallest case known to show the fault."
)
@click.option(
    "--without",
    metavar="PROBE",
    multiple=True,
    type=click.Choice(PROBES),
    help="Leave a probe out.",
)
@click.option("--json", "json_file", type=PATH, help="Write the results here.")
@click.option("--markdown", "markdown_file", type=PATH, help="Write the matrix here.")
@click.option("--keep", "keep_in", type=PATH, help="Keep the smallest cases in this folder.")
@click.option("--diagnosis", is_flag=True, help="Score the causes named, further defects apart.")
@click.option("--corpus", type=PATH, help="Replay the cases kept in this folder, and nothing else.")
@click.option("--write", "folder", type=PATH, help="Write backends with a fault into this folder.")
@click.option("-n", "--workers", type=click.IntRange(1, 512), help="Processes; default one a core.")
def faults(
    names: tuple[str, ...], listed: bool, corpus: Path | None, folder: Path | None, **options: Any
) -> int:
    """Prove that the harness can fail.

    Plants faults taken from real reports into the built-in backends and says which check killed
    each, after how many drawn cases, and on how small a case. A fault that survives, or that only
    the wrong identity sees, is a hole in the harness: exit code 1.

    \b
    treeproof faults                              each fault in one backend
    treeproof faults --every-backend              in all that can have it
    treeproof faults window-by-row B031           some of them
    treeproof faults --without spike              what does this probe alone see?
    treeproof faults --diagnosis                  is the cause named right?
    treeproof faults --corpus FOLDER              are the kept cases as they were?
    treeproof faults window-by-row --write .      as a file: treeproof check FILE
    """
    from treeproof.commands.planting import list_faults, replay_corpus, score, write_files

    if listed:
        return list_faults(names)
    if corpus is not None:
        return replay_corpus(corpus)
    if folder is not None:
        return write_files(names, options["subjects"], folder)
    return score(names, **options)
