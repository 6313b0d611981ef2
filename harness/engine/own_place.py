"""Parts of a campaign on this machine, one after another, each with all of the run's workers."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from treeproof.engine.campaign import run_part
from treeproof.engine.settings import RunSettings


class OwnPlace:
    """A thread that begins one part when the last has come to its end."""

    count = 1

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)

    def submit(self, settings: RunSettings, checker: str) -> Future[bytes]:
        return self._thread.submit(run_part, settings, checker)

    def stop(self) -> None:
        self._thread.shutdown(cancel_futures=True)
