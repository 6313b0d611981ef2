"""What the command line leaves with."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

CLEAN, VIOLATED, USAGE, OWN_FAULT, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 4, 130, 141

EXIT_CODES = """\b
Exit codes:
    0  clean
    1  identities violated
    2  usage or environment: a wrong option, file, backend name or package
    3  a backend or identity that was asked for has no completed check, or nothing ran
    4  treeproof itself failed
  130  interrupted; what was found until then is kept and reported
"""


def leave(code: int) -> NoReturn:
    """With this exit code, also where what was said cannot be written."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # None: closed by whoever called
                stream.flush()
    except (OSError, ValueError):  # a full disk, no reader; at its end Python would try again
        os._exit(code)
    sys.exit(code)
