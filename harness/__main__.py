"""`python -m treeproof`, and the command `treeproof`."""

from __future__ import annotations

import traceback
from typing import NoReturn

from treeproof.commands.exit_codes import USAGE, leave


def main() -> NoReturn:
    """As `treeproof.cli.main`; where a package that it needs cannot be imported, that is no violation."""
    try:
        from treeproof.cli import main as main_of_cli
    except Exception:
        try:
            traceback.print_exc()
        finally:
            leave(USAGE)
    main_of_cli()


if __name__ == "__main__":
    main()
