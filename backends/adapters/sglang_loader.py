"""Single modules out of an installed SGLang, without the serving engine around them.

`import sglang` pulls in the engine, its many requirements and a CUDA build of torch. A module of
kernels needs little of that: the packages above it are given as bare modules whose `__init__` never
runs, `sglang.srt.utils` and `sglang.srt.platforms`, which are asked only what the platform is, as
stand-ins, and what an adapter has no use for as modules whose functions refuse to be called. All are
taken out of `sys.modules` again, so that whoever imports SGLang later finds the real one.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import importlib.util
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal, NoReturn

import torch

from treeproof.backends.adapters.triton_mode import import_triton, interpreted
from treeproof.contract.backend import BackendUnavailable

KNOWN_VERSION = "0.5.23"
"""The release that these modules were checked in. Paths move between releases."""

REQUIRES = (
    f"sglang=pip install --no-deps sglang=={KNOWN_VERSION}",
    "triton",
)
"""What `register(requires=...)` is told by every adapter of a module of SGLang."""

Platform = Literal["here", "xpu"]
"""What a module is told that it runs on: CUDA where kernels are compiled and nothing otherwise, or
XPU, where SGLang's own dispatch takes the Triton form of kernels that are CUDA elsewhere."""

_BARE = (
    "sglang",
    "sglang.kernels",
    "sglang.kernels.ops",
    "sglang.kernels.ops.attention",
    "sglang.kernels.ops.kvcache",
    "sglang.kernels.ops.speculative",
    "sglang.srt",
    "sglang.srt.speculative",
)


_LIFTED = ("fast_topk", "get_cuda_version")
"""Functions of `sglang.srt.utils.common`, whose other requirements are the engine's, that need torch
alone."""


@functools.cache
def load(
    name: str, platform: Platform = "here", without: tuple[str, ...] = (), first: str = ""
) -> ModuleType:
    """The module `name` ("sglang.kernels.ops.…"), loaded once a process, its Triton kernels ready.

    Modules named in `without` are not loaded with it: what it takes from them raises RuntimeError
    when it is called. A function of the module that imports more of SGLang when it is called, and
    keeps what it made, may be named as `first`: it is called at once. Warns where SGLang is another release than KNOWN_VERSION. Raises
    BackendUnavailable where SGLang or Triton is missing, Triton is in the wrong mode, or this
    release has no such module.
    """
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise BackendUnavailable(
            "package sglang is not installed; " + REQUIRES[0].partition("=")[2]
        )
    version = importlib.metadata.version("sglang")
    if version != KNOWN_VERSION:
        warnings.warn(
            f"sglang {version} is installed; {name} was checked in {KNOWN_VERSION}", stacklevel=2
        )
    import_triton()
    with _stand_ins(Path(spec.submodule_search_locations[0]), platform, without):
        try:
            module = importlib.import_module(name)
            if first:
                getattr(module, first)()
            return module
        except ImportError as error:
            raise BackendUnavailable(
                f"sglang {version}: {error}; checked is pip install --no-deps "
                f"sglang=={KNOWN_VERSION}"
            ) from error


@contextmanager
def _stand_ins(root: Path, platform: Platform, without: tuple[str, ...]) -> Iterator[None]:
    """`sys.modules` with stand-ins for the packages of SGLang; what was there before comes back."""
    before = _modules(without)
    for name in before:
        del sys.modules[name]
    for name in _BARE:
        package = ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    sys.modules["sglang.srt.utils"] = utils = _utils(root, platform)
    sys.modules["sglang.srt.utils.common"] = _common(root, utils)
    sys.modules["sglang.srt.platforms"] = _platforms()
    sys.modules["sglang.srt.platforms.interface"] = _LeftOut("sglang.srt.platforms.interface")
    sys.modules.update({name: _LeftOut(name) for name in without})
    try:
        yield
    finally:
        for name in _modules(without):
            del sys.modules[name]
        sys.modules.update(before)


def _modules(without: tuple[str, ...]) -> dict[str, ModuleType]:
    """Those of SGLang, and those that are left out."""
    return {n: m for n, m in sys.modules.items() if f"{n}.".startswith("sglang.") or n in without}


class _LeftOut(ModuleType):
    """A module of which every name can be imported and none can be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*_: object, **__: object) -> NoReturn:
            raise RuntimeError(f"{self.__name__}.{name} is not loaded with the kernels of SGLang")

        return refuse


def _utils(root: Path, platform: Platform) -> ModuleType:
    """`sglang.srt.utils` reduced to its questions about the platform; its modules are the real ones."""
    utils = ModuleType("sglang.srt.utils")
    utils.__path__ = [str(root / "srt" / "utils")]
    compiled = not interpreted()
    no = {name: lambda: False for name in ("is_cpu", "is_hip", "is_musa", "is_npu")}
    utils.__dict__.update(
        no,
        is_cuda=lambda: compiled and platform == "here",
        is_xpu=lambda: platform == "xpu",
        is_gfx95_supported=lambda: False,
        is_gfx1250_supported=lambda: False,
        # Occupancy heuristics of kernels that split keys; those here do not.
        get_device_core_count=lambda device_id=0: 0,
        next_power_of_2=lambda n: 1 << (n - 1).bit_length(),
    )
    return utils


def _common(root: Path, utils: ModuleType) -> ModuleType:
    """`sglang.srt.utils.common`: the same questions, and a few functions, alone out of its file."""
    common = _LeftOut("sglang.srt.utils.common")
    common.__dict__.update({n: f for n, f in utils.__dict__.items() if not n.startswith("_")})
    path = root / "srt" / "utils" / "common.py"
    if path.is_file():
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        tree.body = [n for n in tree.body if getattr(n, "name", "") in _LIFTED]
        exec(compile(tree, str(path), "exec"), {"torch": torch}, common.__dict__)
    return common


def _platforms() -> ModuleType:
    """`sglang.srt.platforms`: SGLang's own platform, not one that somebody plugs in."""
    platforms = _LeftOut("sglang.srt.platforms")
    platforms.current_platform = SimpleNamespace(is_out_of_tree=lambda: False)  # type: ignore[attr-defined]
    return platforms
