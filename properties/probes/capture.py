"""A call that is made once and repeated: a captured graph on CUDA, the call itself on the CPU.

What a graph repeats is what the host decided when it was captured. On the CPU, where the host decides
anew each time, decisions are looked for instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")


def captured(call: Callable[[], T], device: torch.device) -> Callable[[], T]:
    """Repeats the kernels that one `call` launches, and returns what that call returned.

    Raises what `call` raises while it is captured. It is called twice: what a first call compiles or
    allocates for good is there when it is captured.
    """
    if device.type != "cuda":
        return call
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    # Not `torch.cuda.graph`, which gives the memory of the whole process back to the driver.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        call()
        torch.cuda.synchronize(device)
        graph.capture_begin()
        try:
            result = call()
        except BaseException:
            with suppress(RuntimeError):  # says again that there was an error
                graph.capture_end()
            raise
        graph.capture_end()
    torch.cuda.current_stream(device).wait_stream(stream)

    def replay() -> T:
        graph.replay()
        return result

    return replay


@contextmanager
def host_decisions() -> Iterator[list[str]]:
    """Names of what asks a tensor for numbers, or makes one as large as numbers say, in order."""
    found: list[str] = []
    with _Operators(found), _Methods(found):
        yield found


_ASK = (Tensor.tolist, Tensor.numpy)
"""Methods that are no operators. On the CPU they look at memory; a device they wait for."""

_INDEXED = ("index", "index_put", "index_put_")


class _Methods(TorchFunctionMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ASK:
            self._found.append(func.__name__)
        return func(*args, **(kwargs or {}))


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, found: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _asks(func, args, kwargs):
            self._found.append(func.overloadpacket.__name__)
        return func(*args, **kwargs)


def _asks(func: Any, args: Any, kwargs: Any) -> bool:
    name = func.overloadpacket.__name__
    if name in _INDEXED:  # sized by their indices, unless those are masks
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    if name == "repeat_interleave" and kwargs.get("output_size") is not None:
        return False
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags))
