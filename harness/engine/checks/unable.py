"""Exceptions that say nothing of a kernel's rightness: a package, or the device, does not have it.

All others are findings. So are these once the stage has run on the same case: what has run here is
here. But there may be too little memory at any time.
"""

from __future__ import annotations

import importlib.metadata
import re

from treeproof.contract.backend import BackendUnavailable
from treeproof.engine.checks.device_fault import is_out_of_memory
from treeproof.properties.exception_text import chain, from_triton, in_one_line, where, words_of

_NOT_BUILT = re.compile(
    r"no kernel image is available|device kernel image is invalid|"
    r"PTX was compiled with an unsupported toolchain"
)
"""Of the CUDA driver: the kernel was built for other devices, or by a compiler newer than the driver."""
_NOT_IN_HARDWARE = re.compile(
    r"not supported (in|on) this architecture|not supported on \.?target|requires \.?target",
    re.IGNORECASE,
)
"""Of Triton and ptxas: an instruction or a type that this generation of devices does not have."""
_NO_CHOICE = re.compile(r"^LoweringException: NoValidChoicesError:")
"""Of Inductor: each configuration that it has for the kernel needs more than the device has."""


class DeviceLimit(BackendUnavailable):
    """The device lacks what this case asks of it; others may do. The verdict is `unsupported`."""


class OutOfMemory(BackendUnavailable):
    """A launch of this case does not fit into memory. One of fewer requests may."""


def unable(stage: str, error: BaseException) -> BackendUnavailable | None:
    """Why the stage cannot run here, if that is what the exception says; None: it is a finding."""
    if isinstance(error, BackendUnavailable):
        return error
    said = f"{stage}: {in_one_line(error)}"
    if is_out_of_memory(error):
        return OutOfMemory(said)
    if isinstance(error, ImportError):
        return BackendUnavailable(f"{stage}: {words_of(error)}{_to_install(error)}{where(error)}")
    if isinstance(error, RuntimeError) and _NOT_BUILT.search(words_of(error)):
        return BackendUnavailable(f"{said}; it has to be built for this device and driver")
    for one in filter(from_triton, chain(error)):
        if type(one).__name__ == "OutOfResources" or _NOT_IN_HARDWARE.search(words_of(one)):
            return DeviceLimit(f"{said}{where(error)}")
    if type(error).__name__ == "InductorError" and _NO_CHOICE.search(words_of(error)):
        return DeviceLimit(f"{said}{where(error)}")
    return None


def _to_install(error: ImportError) -> str:
    package = (error.name or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError):
        return f"; pip install {package}" if package else ""
    try:
        version = importlib.metadata.version(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""
    return f"; {package} {version} is installed"
