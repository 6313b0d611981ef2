"""`treeproof schema`: the JSON Schema of case files."""

from __future__ import annotations

import click

from treeproof.commands.exit_codes import CLEAN


@click.command()
def schema() -> int:
    """Print the JSON Schema of case files.

    \b
    treeproof schema > treeproof.schema.json
    """
    import json

    from treeproof.contract.wire import json_schema
    from treeproof.reports.console import command, open_console, write

    write(open_console(), map(command, json.dumps(json_schema(), indent=2).splitlines()))
    return CLEAN
