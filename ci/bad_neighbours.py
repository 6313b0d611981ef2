"""Backends that are bad neighbours on a CPU: each is `page-table`, and does harm behind one prefix.

    treeproof check topology ci/bad_neighbours.py:hangs --launch-timeout 5s

`tests/test_bad_neighbours.py` runs them all in one check beside right ones, and says what must come of it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time

import torch
from harm import Harm, Launch, harmful

from treeproof.backends.page_table import PageTable
from treeproof.contract.registry import register_backend

FAR = 1 << 40
FEW_FILES = (10, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def reads_far(at: Launch) -> None:
    """Where nothing is mapped."""
    ctypes.string_at(at.v_cache.data_ptr() + FAR, 2)


def reads_beyond(at: Launch) -> None:
    """The slot behind the request's last, which somebody else owns or nobody."""
    at.out[0] = 0.9 * at.out[0] + 0.1 * at.v_cache[at.neighbours_slot, 0]


def writes_neighbour(at: Launch) -> None:
    at.k_cache[at.neighbours_slot] = 1


def hangs(at: Launch) -> None:
    while True:
        time.sleep(0.05)


def exits(at: Launch) -> None:
    """As if all were well."""
    os._exit(0)


def closes_output(at: Launch) -> None:
    os.close(1)
    sys.stderr.close()


HARMS: dict[str, Harm] = {
    "reads-far": reads_far,
    "reads-beyond": reads_beyond,
    "writes-neighbour": writes_neighbour,
    "hangs": hangs,
    "raises": lambda at: 1 / 0,
    "asks-to-exit": lambda at: sys.exit(0),
    "exits": exits,
    "aborts": lambda at: os.abort(),
    "kills-its-process": lambda at: os.kill(os.getpid(), signal.SIGKILL),
    "keeps-outputs": lambda at: at.kept.append(at.out.clone()),
    "keeps-files": lambda at: at.kept.append(os.open(os.devnull, os.O_RDONLY)),
    "takes-files": lambda at: resource.setrlimit(resource.RLIMIT_NOFILE, FEW_FILES),
    "closes-output": closes_output,
    "changes-folder": lambda at: os.chdir("/"),
    "changes-dtype": lambda at: torch.set_default_dtype(torch.float64),
    "changes-device": lambda at: torch.set_default_device("meta"),
    # The last one: in the stage of a right backend.
    "exits-later": lambda at: signal.setitimer(signal.ITIMER_REAL, 0.05),
}

for _backend in harmful(PageTable, "page-table", HARMS):
    register_backend(_backend)
