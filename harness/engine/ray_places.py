"""Parts of a campaign on a Ray cluster: a part is a task, a GPU is a resource of it.

Ray runs a task again whose worker or machine is gone; what it gives up on is lost.
"""

from __future__ import annotations

import re
import signal
import socket
import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from treeproof.engine.campaign import MOST_TRIES, PartLost, run_part
from treeproof.engine.settings import RunSettings, SettingsError

_CONNECT = 10.0
"""Seconds to wait for a connection."""
LOCAL = "local"
"""The address that stands for a cluster of this machine alone, made for the campaign."""


class RayPlaces:
    """As many places as the cluster has GPUs, or CPUs where the run is on those."""

    def __init__(self, address: str, device_kind: str, cpus: int | None = None) -> None:
        """`cpus`: of a local cluster. Raises SettingsError where there is no Ray, or nobody answers."""
        try:
            import ray
        except ModuleNotFoundError:
            raise SettingsError(
                "--ray: Ray is not installed: pip install 'treeproof[ray]'"
            ) from None
        _require_answer(address)
        self._ray: Any = ray
        given: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address == LOCAL:
            given |= {"num_cpus": cpus, "include_dashboard": False}
        else:
            given["address"] = address
        told_to_end = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(**given)
        except Exception as error:  # Ray has one class for each way not to be there
            said = str(error).strip().partition("\n")[0]
            raise SettingsError(f"--ray {address}: no cluster answers there: {said}") from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(
                signal.SIGTERM, told_to_end
            )  # Ray's own ends the process without a report
        what = "CPU" if device_kind == "cpu" else "GPU"
        self.count = int(ray.cluster_resources().get(what, 0))
        if not self.count:
            ray.shutdown()
            raise SettingsError(f"--ray {address}: the cluster has no {what}")
        wants = {"num_cpus": 1} if what == "CPU" else {"num_cpus": 1, "num_gpus": 1}
        self._task = ray.remote(max_retries=MOST_TRIES, **wants)(run_part)

    def submit(self, settings: RunSettings, checker: str) -> Future[bytes]:
        # Ray shows a task no GPU but its own.
        own = replace(settings, workers=1, device=settings.device_kind)
        answer: Future[bytes] = Future()

        def told(future: Future[bytes]) -> None:
            error = future.exception()
            if error is None:
                answer.set_result(future.result())
            elif isinstance(error, self._ray.exceptions.RayTaskError):
                answer.set_exception(error.cause if isinstance(error.cause, Exception) else error)
            else:
                answer.set_exception(PartLost(str(error).partition("\n")[0]))

        self._task.remote(own, checker).future().add_done_callback(told)
        return answer

    def stop(self) -> None:
        self._ray.shutdown()


def _require_answer(address: str) -> None:
    """Ray itself tries for minutes. Raises SettingsError where an address has a port and nobody is there."""
    match = re.fullmatch(r"(?:ray://)?(.+):(\d{1,5})", address, re.ASCII)
    if match is None:
        return
    try:
        socket.create_connection((match[1], int(match[2])), _CONNECT).close()
    except OSError as error:
        raise SettingsError(f"--ray {address}: no cluster answers there: {error}") from error
