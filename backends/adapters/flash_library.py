"""Which builds of FlashAttention are installed, torch's own too, and what each can do: asked, not run.

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

from treeproof.backends.adapters.flash_names import GENERATIONS, KVCACHE, Generation, Name
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.shape import Dtype

_SM90 = (9, 0)
_SM8X = "FLASHATTENTION_DISABLE_SM8x"


@dataclass(frozen=True)
class Library:
    """One installed build."""

    generation: str
    known: Generation
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
        function = self.known.paged
        named = self.known.table in self.parameters.get(function, ())
        return function if named and not self._off("PAGEDKV") else ""

    @property
    def page_sizes(self) -> Set[int] | None:
        """Sizes of the pages that it takes; None: any; empty: it takes no pages."""
        return self.known.page_sizes if self.paged else frozenset()

    def takes_pages(self, size: int) -> bool:
        return self.page_sizes is None or size in self.page_sizes

    def by_shape(self, page_size: int) -> bool:
        """Whether a launch over such pages needs no number but those that shapes tell: of the others it is
        asked how long the longest list is, or keys are gathered one list right after another."""
        if self.takes_pages(page_size):
            return self.paged == KVCACHE
        return self.generation == "fa3" and self.takes("seqused_k")

    @property
    def windows(self) -> bool:
        return self.takes("window_size") and not self._off("LOCAL")

    @property
    def softcap(self) -> bool:
        return self.takes("softcap") and not self._off("SOFTCAP")

    @property
    def sinks(self) -> bool:
        """Only where it is known that the log-sum-exp counts the sink."""
        return self.takes("learnable_sink")

    @property
    def dtypes(self) -> Set[Dtype]:
        return {"bfloat16"} if self._off("FP16") else {"bfloat16", "float16"}

    @property
    def head_dim_pairs(self) -> Set[tuple[int, int]]:
        """Widths of keys with widths of values: multiples of 8, as 16-byte loads need them."""
        dims = range(8, 257, 8)
        pairs = {(k, v) for k in dims for v in dims}
        equal, on_hopper = {(k, v) for k, v in pairs if k == v}, self.capability[0] == 9
        if self.generation == "fa3":
            mixed = {(k, v) for k, v in pairs if k <= 64 or (128 < k <= 192 and 96 < v <= 128)}
            built = [n for n in (64, 96, 128, 192, 256) if not self._off(f"HDIM{n}")]
            widest = max(built, default=0)
            return {(k, v) for k, v in equal | (mixed if on_hopper else set()) if k <= widest >= v}
        if self.generation == "fa4":
            narrow = {(k, v) for k, v in pairs if max(k, v) <= 128}
            return pairs if on_hopper else narrow | {(192, 128), (256, 256)}
        return equal

    def capabilities(
        self, *, windows: bool, page_sizes: Set[int] | None, by_rows: bool = False
    ) -> Capabilities:
        """What it can do in a representation that says the rest. `by_rows`: a sequence a row, over pages of
        one key."""
        return Capabilities(
            dtypes=self.dtypes,
            devices={"cuda"},
            head_dim_pairs=self.head_dim_pairs,
            page_sizes=page_sizes,
            windows=windows,
            gqa=self.generation != "torch-varlen" or self.takes("enable_gqa"),
            custom_scale=self.generation != "torch-varlen" or self.takes("scale"),
            softcap=self.softcap,
            sinks=self.sinks,
            lse_includes_sink=self.sinks,
            # A tile of keys may reach past the end of a list, at weight 0; and 0 * NaN is NaN.
            nan_safe=False,
            tree_kv="cache",
            capturable=by_rows and self.by_shape(1),
        )

    def takes(self, parameter: str) -> bool:
        """Whether the function that takes lists has this parameter."""
        return parameter in self.parameters[self.known.function]

    def _off(self, feature: str) -> bool:
        return self.flags.get(f"FLASHATTENTION_DISABLE_{feature}", False)


@functools.cache
def find(generation: str) -> Library | str:
    """The installed build of a generation, or why there is none and what to install."""
    names = GENERATIONS[generation].names
    for name in names:
        source = _source(name.module)
        if source is not None:
            return _asked(generation, name, source)
    modules = ", ".join(name.module for name in names)
    how = ", or ".join(name.install for name in names[::-1])
    return f"{modules} not installed; {how}"


def _asked(generation: str, name: Name, source: Path) -> Library | str:
    known, parameters = GENERATIONS[generation], _parameters(source)
    if known.function not in parameters:
        return f"{name.module} has no {known.function}; {name.install}"
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else _SM90
    flags = _flags(name.flags)
    majors = known.majors | ({8} if not flags.get(_SM8X, True) else set())
    if major not in majors:
        needed = " or ".join(f"sm_{n}0" for n in sorted(majors))
        return f"{name.module} needs {needed}; this device is sm_{major}{minor}"
    return Library(generation, known, name, _version(name), parameters, flags, (major, minor))


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
        if isinstance(node, ast.FunctionDef):
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
