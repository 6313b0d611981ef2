"""Backends as people read them: stages, what they take in words, or why they cannot run."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass

from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import DTYPES
from treeproof.contract.registry import STAGES, Backend, BackendError, BackendUnavailable
from treeproof.contract.shape import KV_DTYPES


@dataclass(frozen=True)
class Entry:
    """One installed backend; exactly one of `backend` and `problem` says something."""

    name: str
    module: str
    backend: Backend | None = None
    problem: str = ""


def entries(known: Mapping[str, str], load: Callable[[str], Backend]) -> list[Entry]:
    """Load each known backend; what goes wrong with one is said and hinders no other."""
    found = []
    for name, module in known.items():
        try:
            found.append(Entry(name, module, load(name)))
        except BackendUnavailable as error:
            found.append(Entry(name, module, problem=f"unavailable: {error}"))
        except BackendError as error:
            found.append(Entry(name, module, problem=f"broken: {error}"))
        except Exception as error:  # a package that fails on import fails in its own way
            said = f"{type(error).__name__}: {error}"
            found.append(Entry(name, module, problem=f"broken: importing {module} raises {said}"))
    return found


def backend_lines(found: list[Entry]) -> list[str]:
    """One paragraph a backend."""
    lines: list[str] = []
    for entry in found:
        if lines:
            lines.append("")
        if entry.backend is None:
            lines.append(entry.name)
            lines += _indented(entry.problem)
            continue
        stages = " ".join(stage for stage in STAGES if stage in entry.backend.stages)
        lines.append(f"{entry.name}  ({entry.module})")
        lines += _indented(f"stages  {stages}")
        if entry.backend.kernels:
            lines += _indented(f"runs    {', '.join(sorted(entry.backend.kernels))}")
        lines += _indented(f"takes   {in_words(entry.backend.capabilities)}")
        if entry.backend.note:
            lines += _indented(f"note    {entry.backend.note}")
    return lines


def _indented(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        96,
        initial_indent="  ",
        subsequent_indent="          ",
        break_on_hyphens=False,  # commands are copied
    )


def in_words(can: Capabilities) -> str:
    """The limits of a backend, those that differ from no limit at all."""
    limits = [
        *_no("sliding windows", can.windows),
        *_no("full visibility", can.full),
        *_no("grouped query heads", can.gqa),
        *_no("rotary embedding", can.rotary),
        *_no("softcap", can.softcap),
        *_no("sinks", can.sinks),
        *_no("ALiBi", can.alibi),
        *_no("score scale of its own", can.custom_scale),
        *_caches(can.kv_dtypes),
        *_no("ragged batches", can.ragged),
        *_no("padded rows", can.pad_rows),
        *_no("empty prefixes", can.empty_prefix),
        *(["one tree a batch"] if can.same_tree else []),
        *([f"{can.row_order} rows"] if can.row_order != "any" else []),
        *([f"at most {can.max_rows} rows"] if can.max_rows is not None else []),
        *([f"at most {can.max_topk} children of a node"] if can.max_topk is not None else []),
        *([f"head dims {_dims(can.head_dims)}"] if can.head_dims is not None else []),
        *([_pairs(can.head_dim_pairs)] if can.head_dim_pairs is not None else []),
        *([f"page sizes {_numbers(can.page_sizes)}"] if can.page_sizes is not None else []),
        *_layouts(can.cache_layouts),
        *([f"masks {' '.join(sorted(can.mask_modes))}"] if can.mask_modes is not None else []),
        *([f"pad slot {_numbers(can.pad_slots)}"] if len(can.pad_slots) == 1 else []),
        *_no("unfilled prefix cells of a mask", can.unfilled_prefix_mask),
        *([f"only {' '.join(sorted(can.dtypes))}"] if set(can.dtypes) != set(DTYPES) else []),
        f"on {' and '.join(sorted(can.devices))}",
    ]
    return ", ".join(limits) if limits[:-1] else f"every case, {limits[-1]}"


def _no(thing: str, able: bool) -> list[str]:
    return [] if able else [f"no {thing}"]


def _caches(kinds: Set[str | None]) -> list[str]:
    if set(kinds) == {None, *KV_DTYPES}:
        return []
    if set(kinds) == {None}:
        return ["no quantised cache"]
    plain = ["the dtype of the case"] if None in kinds else []
    return [f"caches in {' '.join([*plain, *sorted(kind for kind in kinds if kind)])}"]


def _dims(values: Set[int]) -> str:
    """A long list is told by its ends."""
    ends = sorted(values)
    return _numbers(ends) if len(ends) < 9 else f"{ends[0]} {ends[1]} … {ends[-1]}"


def _pairs(pairs: Set[tuple[int, int]]) -> str:
    equal = {keys for keys, values in pairs if keys == values}
    mixed = len(pairs) - len(equal)
    words = f"head dims {_dims(equal)}"
    if mixed:
        words += f" and {mixed} pairs of different ones for keys and values"
    return words


def _layouts(taken: Set[str]) -> list[str]:
    """NHD goes without saying."""
    return [] if set(taken) == {"NHD"} else [f"cache layouts {' '.join(sorted(taken))}"]


def _numbers(values: Iterable[int]) -> str:
    return " ".join(map(str, sorted(values)))
