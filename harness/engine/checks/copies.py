"""What a stage is handed is a copy: what it does to its inputs reaches nobody else."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar, cast

from torch import Tensor

T = TypeVar("T")


def tensors_in(value: Any) -> dict[str, Tensor]:
    """Tensor fields of a dataclass, by name; a tensor alone is `target_predict`."""
    if isinstance(value, Tensor):
        return {"target_predict": value}
    found = {f.name: getattr(value, f.name) for f in fields(value)}
    return {name: field for name, field in found.items() if isinstance(field, Tensor)}


def copied(value: T) -> T:
    """A tensor, or a dataclass with tensors, whose tensors share no memory with the original."""
    if isinstance(value, Tensor):
        return cast(T, value.clone())
    made: Any = value
    return cast(T, replace(made, **{name: t.clone() for name, t in tensors_in(made).items()}))
