"""The process under compute-sanitizer: one case on one backend, by the probes that saw it fail.

    python -m treeproof.engine.sanitized_case CASE.json BACKEND [PROBE...]

What the check finds is known already. Exits 1 where the backend cannot be loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from treeproof.contract.failure import PROBES
from treeproof.contract.registry import load
from treeproof.contract.wire import decode_case, read_bytes
from treeproof.engine.check import CheckOptions, check_case


def main(arguments: Sequence[str], device: str = "cuda") -> None:
    path, reference, *probes = arguments
    case = decode_case(read_bytes(Path(path)), path)
    options = CheckOptions(device=device, probes=frozenset(probes or PROBES))
    check_case(case, load(reference), options)


if __name__ == "__main__":
    main(sys.argv[1:])
