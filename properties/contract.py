"""The contract column: shapes, dtypes, finite numbers, inputs left alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.case import AttentionShape, KVLayout, MaskMode
from treeproof.contract.inputs import (
    LAYER_FIELDS,
    TENSOR_FIELDS,
    Accepted,
    Attended,
    Committed,
    Selected,
    VerifyInput,
)
from treeproof.properties.answers import Answers
from treeproof.properties.scene import Scene
from treeproof.properties.violation import Violation, contract_failure


def _require_data(value: Any, name: str, stage: str) -> Tensor:
    """A tensor whose numbers can be read: dense, and on a device that keeps any."""
    if not isinstance(value, torch.Tensor):
        what = f"{type(value).__name__}, not a tensor"
    elif value.layout != torch.strided:
        what = f"laid out as {str(value.layout).removeprefix('torch.')}, accepted are dense tensors"
    elif value.device.type == "meta":
        what = "on device meta, which keeps no numbers"
    else:
        return value
    raise Violation(contract_failure("wrong-type", stage, f"{name} is {what}"))


def require_tensor(
    value: Any, name: str, stage: str, shape: tuple[int, ...], dtypes: Iterable[torch.dtype]
) -> Tensor:
    tensor = _require_data(value, name, stage)
    if tuple(tensor.shape) != shape:
        raise Violation(
            contract_failure(
                "wrong-shape",
                stage,
                f"{name} has shape {tuple(tensor.shape)}, expected {shape}",
                expected=str(shape),
                actual=str(tuple(tensor.shape)),
            )
        )
    accepted = tuple(dtypes)
    if tensor.dtype not in accepted:
        names = " or ".join(str(d).removeprefix("torch.") for d in accepted)
        raise Violation(
            contract_failure(
                "wrong-dtype",
                stage,
                f"{name} has dtype {str(tensor.dtype).removeprefix('torch.')}, expected {names}",
                expected=names,
                actual=str(tensor.dtype).removeprefix("torch."),
            )
        )
    return tensor


def valid_attended(result: Any, scene: Scene) -> Attended:
    """The result of `attend` with its shapes and dtypes checked; a bare tensor is its `out`."""
    attended = Attended(out=result) if isinstance(result, torch.Tensor) else result
    if not isinstance(attended, Attended):
        raise Violation(
            contract_failure(
                "wrong-type",
                "attend",
                f"attend returned {type(result).__name__}, expected Attended or a tensor",
            )
        )
    shape, rows = scene.case.shape, scene.num_rows
    require_tensor(
        attended.out, "out", "attend", (rows, shape.num_q_heads, shape.v_head_dim), (scene.dtype,)
    )
    if attended.lse is not None:
        require_tensor(attended.lse, "lse", "attend", (rows, shape.num_q_heads), (torch.float32,))
    return Attended(
        out=attended.out.detach(),
        lse=None if attended.lse is None else attended.lse.detach(),
        declared=_valid_declared(attended.declared),
    )


def _valid_declared(declared: Any) -> dict[str, Tensor]:
    """Tables by name, without their gradients."""
    if not isinstance(declared, Mapping):
        message = f"declared is {type(declared).__name__}, not a mapping"
        raise Violation(contract_failure("wrong-type", "attend", message))
    unknown = sorted(map(str, set(declared) - set(TENSOR_FIELDS)))
    if unknown:
        message = f"attend declared {', '.join(unknown)}: no such field of VerifyInput"
        raise Violation(contract_failure("unknown-field", "attend", message))
    for name, table in declared.items():
        _require_data(table, f"declared {name}", "attend")
    return {name: table.detach() for name, table in declared.items()}


def not_finite(out: Tensor, scene: Scene) -> Tensor:
    """(real rows,) bool: an output (T, ...) of the row is no number. Padding is free."""
    return no_numbers(largest(out), scene)


def largest(out: Tensor) -> Tensor:
    """(T,): largest size of an output (T, ...) of each row; NaN where one is."""
    size: Tensor = torch.linalg.vector_norm(out.flatten(1), torch.inf, dim=1)
    return size


def no_numbers(sizes: Tensor, scene: Scene) -> Tensor:
    """`not_finite` from the `largest` (T,) of some outputs."""
    bad = ~(sizes < torch.inf)
    return bad if len(scene.real) == scene.num_rows else bad[scene.real_index]


def require_finite(bad: Tensor, scene: Scene, probe: str) -> None:
    """Every output of a real row is a number (padding is free): `bad` (real rows,) says which is not."""
    Finite(bad, scene, probe).require()


class Finite:
    """`require_finite` in two steps, of which the second may come later."""

    def __init__(self, bad: Tensor, scene: Scene, probe: str) -> None:
        self._bad, self._scene, self._probe = bad, scene, probe
        self._any = scene.answers.ask(bad.any())

    def require(self) -> None:
        """Raises Violation where an output was no number."""
        if not self._any:
            return
        at = self._scene.real[int(self._bad.nonzero()[0, 0])]
        b, row = self._scene.rows[at]
        raise Violation(
            contract_failure(
                "not-finite",
                "attend",
                f"out is not finite on request {b}, row {row} ({self._probe} data): unwritten "
                "output, or NaN read from memory that no row owns",
            )
        )


def valid_merged(result: Any, part: Tensor, dtypes: Iterable[str]) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp that `merge` returned, shaped as one of its parts `part` (R, Hq, Dv)."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        message = f"merge returned {type(result).__name__}, expected output and log-sum-exp"
        raise Violation(contract_failure("wrong-type", "merge", message))
    accepted = [getattr(torch, name) for name in sorted(dtypes)]
    out = require_tensor(result[0], "out", "merge", tuple(part.shape), accepted)
    lse = require_tensor(result[1], "lse", "merge", tuple(part.shape[:2]), (torch.float32,))
    return out.detach(), lse.detach()


INTS = (torch.int64, torch.int32)


def valid_accepted(result: Any, requests: int, spec_steps: int, stage: str = "accept") -> Accepted:
    """What `accept` or `sample` returned of so many requests."""
    if not isinstance(result, Accepted):
        raise Violation(
            contract_failure(
                "wrong-type", stage, f"{stage} returned {type(result).__name__}, expected Accepted"
            )
        )
    wide = (requests, spec_steps + 1)
    require_tensor(result.accept_index, "accept_index", stage, wide, INTS)
    require_tensor(result.accept_len, "accept_len", stage, (requests,), INTS)
    require_tensor(result.tokens, "tokens", stage, wide, INTS)
    return result


def valid_committed(result: Any, scene: Scene) -> Committed:
    if not isinstance(result, Committed):
        raise Violation(
            contract_failure(
                "wrong-type",
                "commit",
                f"commit returned {type(result).__name__}, expected Committed",
            )
        )
    requests = len(scene.case.requests)
    require_tensor(result.seq_lens, "seq_lens", "commit", (requests,), INTS)
    require_tensor(result.next_root, "next_root", "commit", (requests,), INTS)
    return result


def valid_selected(result: Any, batch: int, num_rows: int) -> Selected:
    if not isinstance(result, Selected):
        raise Violation(
            contract_failure(
                "wrong-type",
                "select",
                f"select returned {type(result).__name__}, expected Selected",
            )
        )
    for name in ("selected_index", "draft_token"):
        require_tensor(getattr(result, name), name, "select", (batch, num_rows - 1), INTS)
    listed = result.parent_list
    cells = listed.shape[-1] if isinstance(listed, torch.Tensor) and listed.ndim else 0
    require_tensor(listed, "parent_list", "select", (batch, cells), INTS)
    return result


_FLAT = {"draft_token", "positions", "out_cache_loc"}
_BATCH = {"seq_lens", "qo_indptr", "request_slots", "req_to_token"}
_PLAIN: dict[str, type] = {
    "topk": int,
    "spec_steps": int,
    "shape": AttentionShape,
    "kv": KVLayout,
}
_LINKS = {
    "retrieve_index",
    "retrieve_next_token",
    "retrieve_next_sibling",
    "retrieve_parent_token",
}


def valid_built(result: Any, scene: Scene) -> dict[str, Any]:
    """Fields a `build` stage produced, by name; None fields are left out."""
    if isinstance(result, VerifyInput):
        produced = {f.name: getattr(result, f.name) for f in fields(result)}
    elif isinstance(result, Mapping):
        produced = dict(result)
    else:
        raise Violation(
            contract_failure(
                "wrong-type",
                "build",
                f"build returned {type(result).__name__}, expected VerifyInput or a mapping",
            )
        )
    # The layer's parameters are laid in afterwards: what a build says of them is not looked at.
    produced = {name: value for name, value in produced.items() if name not in LAYER_FIELDS}
    known = {f.name for f in fields(VerifyInput)}
    unknown = sorted(set(produced) - known)
    if unknown:
        raise Violation(
            contract_failure(
                "unknown-field", "build", f"build returned unknown fields {', '.join(unknown)}"
            )
        )
    rows = scene.num_rows
    requests = len(scene.case.requests)
    longest = max(r.num_rows for r in scene.case.requests)
    for name, value in produced.items():
        if name in _FLAT:
            require_tensor(value, name, "build", (rows,), INTS)
        elif name in _LINKS and value is not None:
            require_tensor(value, name, "build", (requests, longest), INTS)
        elif name in TENSOR_FIELDS and value is not None:
            _require_data(value, name, "build")
            if _holds_floats(value):
                dtype = str(value.dtype).removeprefix("torch.")
                message = f"{name} has dtype {dtype}, expected integers or bool"
                raise Violation(contract_failure("wrong-dtype", "build", message))
        elif name in _PLAIN and not isinstance(value, _PLAIN[name]):
            message = f"{name} is {type(value).__name__}, not {_PLAIN[name].__name__}"
            raise Violation(contract_failure("wrong-type", "build", message))
        elif name == "mask_mode" and not isinstance(value, MaskMode | None):
            message = f"mask_mode is {type(value).__name__}, not MaskMode"
            raise Violation(contract_failure("wrong-type", "build", message))
        elif name in _BATCH and value is None:
            raise Violation(contract_failure("wrong-type", "build", f"{name} is not built"))
    return {name: value for name, value in produced.items() if value is not None}


def _holds_floats(table: Tensor) -> bool:
    """An empty list becomes a tensor of floats, and means no harm."""
    return table.is_floating_point() and table.numel() > 0


def mutated(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    """Names of inputs whose bits changed. A device is asked once for all of them."""
    now = {name: after[name] for name in before}
    if all(t.device.type == "cpu" for tensors in (before, now) for t in tensors.values()):
        return [name for name, was in before.items() if not same_bits(was, now[name])]
    return Changed(Snapshot(before), Snapshot(now), Answers()).names()


class Snapshot:
    """Tensors as they are now, bit by bit and in one piece."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.kinds = {name: (t.shape, t.dtype, t.device) for name, t in tensors.items()}
        octets = [_octets(t) for t in tensors.values()]
        self._sizes = [len(t) for t in octets]
        self.bits = (
            torch.cat([t.to(octets[0].device) for t in octets]) if octets else torch.empty(0)
        )

    def parts(self) -> dict[str, Tensor]:
        return dict(zip(self.kinds, self.bits.split(self._sizes), strict=True))  # type: ignore[no-untyped-call]


class Changed:
    """Which tensors have other bits `now` than they had; the device is asked later."""

    def __init__(self, was: Snapshot, now: Snapshot, answers: Answers) -> None:
        self._was, self._now = was, now
        same_kinds = was.kinds == now.kinds
        self._any = answers.ask((was.bits != now.bits).any()) if same_kinds else None

    def names(self) -> list[str]:
        """Of tensors whose shape, dtype, device or any bit changed."""
        if self._any is not None and not self._any:
            return []
        was, now = self._was.parts(), self._now.parts()
        kinds = self._now.kinds
        return [
            name
            for name, kind in self._was.kinds.items()
            if kind != kinds[name] or not torch.equal(was[name], now[name])
        ]


_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers of so many bytes."""


def same_rows(a: Tensor, b: Tensor) -> Tensor:
    """(rows,) bool: bitwise equality of each row."""
    whole = _WHOLE[a.element_size()]
    equal = a.contiguous().view(whole) == b.contiguous().view(whole)
    return equal.flatten(1).all(1)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Bitwise equality, NaN payloads and signed zeros included."""
    if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
        return False
    if a.dtype in INTS:
        return torch.equal(a, b)  # whole numbers that are equal have equal bits
    whole = _WHOLE.get(a.element_size())  # a view as such takes any strides
    if whole is None:
        return torch.equal(_octets(a), _octets(b))
    return torch.equal(a.view(whole), b.view(whole))


def _octets(tensor: Tensor) -> Tensor:
    """The bytes of a tensor, flat."""
    whole = tensor.contiguous()
    # A single element is contiguous whatever its stride, and bytes are viewed at a stride of 1 only.
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)
