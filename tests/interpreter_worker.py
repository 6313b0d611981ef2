"""A process in which Triton interprets: the one that asks may have imported it compiled already."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.wire import encode_case

Check = Callable[[str, VerifyCase], Checked]
"""(how to load a backend, a case) -> verdicts."""

_WORKER = """
import sys
import msgspec
import torch
from treeproof.contract.registry import load
from treeproof.contract.wire import decode_case
from treeproof.engine.check import CheckOptions, check_case

torch.set_num_threads(1)
for line in sys.stdin:
    reference, _, case = line.partition(" ")
    checked = check_case(decode_case(case.encode()), load(reference), CheckOptions())
    print(msgspec.json.encode(checked).decode(), flush=True)
"""


@contextmanager
def interpreter() -> Iterator[Check]:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    worker = subprocess.Popen(
        [sys.executable, "-c", _WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    stdin, stdout = worker.stdin, worker.stdout

    def check(reference: str, case: VerifyCase) -> Checked:
        stdin.write(f"{reference} {encode_case(case).decode().strip()}\n")
        stdin.flush()
        return msgspec.json.decode(stdout.readline(), type=Checked)

    yield check
    stdin.close()
    assert worker.wait(60) == 0
    stdout.close()
