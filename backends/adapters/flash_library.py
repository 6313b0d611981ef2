"""Which builds of FlashAttention are installed, and what each can do: asked, and not run.

A generation goes by several names. Parameters are read from the source of its interface, and limits
of a build from the flags that it was built with, so that listing backends loads no kernel.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from treeproof.contract.capabilities import Capabilities
from treeproof.contract.shape import Dtype

VARLEN, KVCACHE = "flash_attn_varlen_func", "flash_attn_with_kvcache"


@dataclass(frozen=True)
class Name:
    """A module that a generation of FlashAttention may be found under."""

    module: str
    distribution: str
    install: str
    known: str = ""
    """The version that was checked; empty: none, for want of hardware or of a wheel."""
    flags: str = ""
    """The module that holds the flags of the build."""


NAMES: Mapping[str, tuple[Name, ...]] = {
    "fa2": (
        Name(
            "flash_attn.flash_attn_interface",
            "flash-attn",
            "pip install flash-attn --no-build-isolation",
        ),
    ),
    "fa3": (
        Name(
            "flash_attn_interface",
            "flash-attn-3",
            "pip install --no-build-isolation ./hopper (in a clone of flash-attention)",
            flags="flash_attn_config",
        ),
        Name("sgl_kernel.flash_attn", "sglang-kernel", "pip install sglang-kernel"),
        Name(
            "fa3_fwd_interface",
            "fa3-fwd",
            "pip install fa3-fwd==0.0.3",
            known="0.0.3",
            flags="fa3_fwd_config",
        ),
    ),
    "fa4": (
        Name(
            "flash_attn.cute.interface",
            "flash-attn-4",
            "pip install flash-attn-4==4.0.0b36",
            known="4.0.0b36",
        ),
    ),
}
"""By generation, the fullest build first: the first one that is installed is used."""

_MAJORS = {"fa2": {8, 9, 10, 11, 12}, "fa3": {9}, "fa4": {9, 10, 11}}
"""Compute capabilities, the number before the point."""
_NEEDS = {"fa2": "sm_80 or newer", "fa3": "sm_90", "fa4": "sm_90, sm_100 or sm_110"}
_FA4_PAGES = frozenset({1, 16, 128})
"""Page sizes that were found right on the checked version; its source names no limit."""
_FA2_PAGES = frozenset(range(256, 1025, 256))
_SM90 = (9, 0)


@dataclass(frozen=True)
class Library:
    """One installed build."""

    generation: str
    name: Name
    version: str
    parameters: Mapping[str, frozenset[str]]
    """Of each public function, by name."""
    flags: Mapping[str, bool]
    """FLASHATTENTION_DISABLE_… of a build that tells them."""
    capability: tuple[int, int]
    """Of the device; sm_90 where there is none to ask."""

    @property
    def paged(self) -> str:
        """The function that takes a page table; empty where none does."""
        if self._off("PAGEDKV"):
            return ""
        at = {"fa2": (VARLEN, "block_table"), "fa3": (KVCACHE, "page_table")}
        function, table = at.get(self.generation, (VARLEN, "page_table"))
        return function if table in self.parameters.get(function, ()) else ""

    @property
    def page_sizes(self) -> Set[int] | None:
        """Sizes of the pages that it takes; None: any; empty: it takes no pages."""
        if not self.paged:
            return frozenset()
        return {"fa2": _FA2_PAGES, "fa4": _FA4_PAGES}.get(self.generation)

    @property
    def windows(self) -> bool:
        return "window_size" in self.parameters[VARLEN] and not self._off("LOCAL")

    @property
    def softcap(self) -> bool:
        return "softcap" in self.parameters[VARLEN] and not self._off("SOFTCAP")

    @property
    def sinks(self) -> bool:
        """Only where it is known that the log-sum-exp counts the sink."""
        return "learnable_sink" in self.parameters[VARLEN]

    @property
    def dtypes(self) -> Set[Dtype]:
        return {"bfloat16"} if self._off("FP16") else {"bfloat16", "float16"}

    @property
    def head_dim_pairs(self) -> Set[tuple[int, int]]:
        """Widths of keys with widths of values: multiples of 8, as 16-byte loads need them."""
        dims = range(8, 257, 8)
        pairs = {(k, v) for k in dims for v in dims}
        if self.generation == "fa2":
            return {(k, v) for k, v in pairs if k == v}
        if self.generation == "fa3":
            built = [n for n in (64, 96, 128, 192, 256) if not self._off(f"HDIM{n}")]
            pairs = {(k, v) for k, v in pairs if max(k, v) <= max(built, default=0)}
            return {
                (k, v) for k, v in pairs if k == v or k <= 64 or (128 < k <= 192 and 96 < v <= 128)
            }
        if self.capability[0] == 9:
            return pairs
        narrow = {(k, v) for k, v in pairs if max(k, v) <= 128}
        return narrow | {(192, 128), (256, 256)}

    @property
    def log_sum_exp(self) -> Mapping[str, str]:
        """By function, the parameter that asks for the log-sum-exp."""
        asked = ("return_softmax_lse", "return_lse", "return_attn_probs")
        return {
            function: next((name for name in asked if name in own), "")
            for function, own in self.parameters.items()
        }

    def capabilities(self, *, windows: bool, page_sizes: Set[int] | None) -> Capabilities:
        """What it can do in a representation that says the rest."""
        return Capabilities(
            dtypes=self.dtypes,
            devices={"cuda"},
            head_dim_pairs=self.head_dim_pairs,
            page_sizes=page_sizes,
            windows=windows,
            softcap=self.softcap,
            sinks=self.sinks,
            lse_includes_sink=self.sinks,
            # A tile of keys may reach past the end of a list, at weight 0; and 0 * NaN is NaN.
            nan_safe=False,
            tree_kv="cache",
        )

    def _off(self, feature: str) -> bool:
        return self.flags.get(f"FLASHATTENTION_DISABLE_{feature}", False)


@functools.cache
def find(generation: str) -> Library | str:
    """The installed build of "fa2", "fa3" or "fa4", or why there is none and what to install."""
    for name in NAMES[generation]:
        source = _source(name.module)
        if source is not None:
            return _asked(generation, name, source)
    modules = ", ".join(name.module for name in NAMES[generation])
    how = ", or ".join(name.install for name in NAMES[generation][::-1])
    return f"{modules} not installed; {how}"


def _asked(generation: str, name: Name, source: Path) -> Library | str:
    parameters = _parameters(source)
    if VARLEN not in parameters:
        return f"{name.module} has no {VARLEN}; {name.install}"
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else _SM90
    flags = _flags(name.flags)
    majors = _MAJORS[generation] | ({8} if flags and not flags.get(_SM8X, True) else set())
    if major not in majors:
        return f"{name.module} needs {_NEEDS[generation]}; this device is sm_{major}{minor}"
    return Library(generation, name, _version(name), parameters, flags, (major, minor))


_SM8X = "FLASHATTENTION_DISABLE_SM8x"


def _source(module: str) -> Path | None:
    """The file of a module, found without importing the packages above it."""
    top, *below = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    if not below:
        return Path(spec.origin) if spec.origin else None
    places = spec.submodule_search_locations or ()
    files = (Path(place, *below).with_suffix(".py") for place in places)
    return next((file for file in files if file.is_file()), None)


def _parameters(source: Path) -> dict[str, frozenset[str]]:
    found = {}
    for node in ast.parse(source.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name in (VARLEN, KVCACHE):
            arguments = node.args
            own = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            found[node.name] = frozenset(argument.arg for argument in own)
    return found


def _flags(module: str) -> Mapping[str, bool]:
    if not module or importlib.util.find_spec(module) is None:
        return {}
    config: Any = importlib.import_module(module)
    flags: Mapping[str, bool] = config.CONFIG["build_flags"]
    return flags


def _version(name: Name) -> str:
    try:
        return importlib.metadata.version(name.distribution)
    except importlib.metadata.PackageNotFoundError:
        return "of an unknown version"
