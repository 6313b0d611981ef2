"""What a drafting phase laid out, checked for its form and taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.drafting import Drafted
from treeproof.generate.drafting import DraftScene
from treeproof.properties.contract import require_tensor
from treeproof.properties.tables import Slots, recover_lists, recover_pages
from treeproof.properties.violation import Violation, contract_failure

_INTS = (torch.int64, torch.int32)
_PAIRS = (("kv_indptr", "kv_indices"), ("page_table", "cache_seqlens"))


@dataclass(frozen=True, eq=False)
class Table:
    """One form of what is read: `lists[s][j]` are the slots that branch-row j reads in step s."""

    form: str
    lists: tuple[tuple[Slots, ...], ...]


def valid_drafted(result: Any, scene: DraftScene) -> Drafted:
    """The result of `draft` with its shapes and dtypes checked. Raises Violation."""
    if not isinstance(result, Drafted):
        text = f"draft returned {type(result).__name__}, expected Drafted"
        raise Violation(contract_failure("wrong-type", "draft", text))
    steps, rows = scene.num_steps, scene.batch * scene.topk
    shapes: dict[str, tuple[int | None, ...]] = {
        "positions": (steps, rows),
        "out_cache_loc": (steps, rows),
        "kv_indptr": (steps, rows + 1),
        "kv_indices": (steps, None),
        "page_table": (steps, rows, None),
        "cache_seqlens": (steps, rows),
    }
    for name, shape in shapes.items():
        value = getattr(result, name)
        if value is not None:
            require_tensor(value, name, "draft", _of(value, shape), _INTS)
    for a, b in _PAIRS:
        if (getattr(result, a) is None) != (getattr(result, b) is None):
            text = f"draft returned one of {a} and {b}: each needs the other"
            raise Violation(contract_failure("wrong-type", "draft", text))
    return result


def _of(value: Any, shape: Sequence[int | None]) -> tuple[int, ...]:
    """The shape, as wide as the tensor itself is where any width will do."""
    width = value.shape[-1] if isinstance(value, Tensor) and value.ndim else 0
    return tuple(width if size is None else size for size in shape)


def made_fields(drafted: Drafted) -> dict[str, Tensor]:
    """What the stage made itself."""
    found = {f.name: getattr(drafted, f.name) for f in fields(drafted)}
    return {name: value for name, value in found.items() if value is not None}


def tables_of(made: dict[str, Tensor], page_size: int) -> list[Table]:
    """Every form of table that was made. Raises ValueError where one ends outside of itself."""
    found = []
    if "kv_indices" in made:
        indices, bounds = _numpy(made["kv_indices"]), made["kv_indptr"].tolist()
        lists = tuple(
            tuple(recover_lists(ends, line, None))
            for ends, line in zip(bounds, indices, strict=True)
        )
        found.append(Table("lists", lists))
    if "page_table" in made:
        pages, lengths = _numpy(made["page_table"]), made["cache_seqlens"].tolist()
        paged = tuple(
            tuple(recover_pages(lines, ends, page_size))
            for lines, ends in zip(pages, lengths, strict=True)
        )
        found.append(Table("page tables", paged))
    return found


def _numpy(tensor: Tensor) -> Slots:
    found: Slots = tensor.cpu().numpy().astype("int64")
    return found
