"""What a backend says it can do, and how it rounds."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Literal

from treeproof.contract.case import DTYPES, VerifyCase

RowOrder = Literal["any", "parent-first", "breadth-first"]


@dataclass(frozen=True)
class Capabilities:
    """Cases outside these are `unsupported` for the backend and are not sent to it.

    None means no limit. `nan_safe`: NaN in keys and values that a row must not read does not reach
    its output. `stores_kv`: `attend` writes K and V itself. `deterministic`: the same launch twice
    gives the same bits.
    """

    max_topk: int | None = None
    max_rows: int | None = None
    row_order: RowOrder = "any"
    same_tree: bool = False
    ragged: bool = True
    pad_rows: bool = True
    empty_prefix: bool = True
    windows: bool = True
    full: bool = True
    gqa: bool = True
    rotary: bool = True
    dtypes: Set[str] = field(default_factory=lambda: frozenset(DTYPES))
    devices: Set[str] = field(default_factory=lambda: frozenset({"cpu", "cuda"}))
    head_dims: Set[int] | None = None
    page_sizes: Set[int] | None = None
    mask_modes: Set[str] | None = None
    nan_safe: bool = False
    stores_kv: bool = True
    deterministic: bool = True

    def refusal(self, case: VerifyCase, device: str) -> str | None:
        """Why this case is outside the capabilities, or None where it is inside."""
        shape, layout, requests = case.shape, case.layout, case.requests
        kind = device.partition(":")[0]
        topk = max(
            (len(r.tree.children(i)) for r in requests for i in range(len(r.tree))), default=1
        )
        rows = max(r.num_rows for r in requests)
        checks = (
            (kind not in self.devices, f"device {kind}"),
            (shape.dtype not in self.dtypes, f"dtype {shape.dtype}"),
            (self.max_topk is not None and topk > self.max_topk, f"{topk} children of one node"),
            (self.max_rows is not None and rows > self.max_rows, f"{rows} rows in a request"),
            (not self.windows and shape.window is not None, "a sliding window"),
            (not self.full and shape.window is None, "no sliding window"),
            (not self.gqa and shape.group_size > 1, "grouped query heads"),
            (not self.rotary and shape.rotary is not None, "rotary embedding"),
            (
                self.head_dims is not None
                and not {shape.head_dim, shape.v_head_dim} <= self.head_dims,
                f"head dims {shape.head_dim} and {shape.v_head_dim}",
            ),
            (
                self.page_sizes is not None and layout.page_size not in self.page_sizes,
                f"page size {layout.page_size}",
            ),
            (
                self.mask_modes is not None and case.mask.mode.name not in self.mask_modes,
                f"mask mode {case.mask.mode.name}",
            ),
            (not self.pad_rows and any(r.pad_rows for r in requests), "padded rows"),
            (not self.empty_prefix and any(r.prefix_len == 0 for r in requests), "empty prefix"),
            (not self.ragged and len({r.num_rows for r in requests}) > 1, "ragged rows"),
            (
                self.same_tree and len({(r.tree.parents, r.row_of_node) for r in requests}) > 1,
                "different trees in one batch",
            ),
            (
                self.row_order != "any" and not all(map(self._in_order, requests)),
                f"rows that are not {self.row_order}",
            ),
        )
        return next((reason for refused, reason in checks if refused), None)

    def _in_order(self, request: object) -> bool:
        from treeproof.contract.case import Request

        assert isinstance(request, Request)
        if self.row_order == "breadth-first":
            depths = [request.tree.depth[node] for node in request.node_of_row]
            if depths != sorted(depths):
                return False
        return all(parent < row for row, parent in enumerate(request.parent_rows))


@dataclass(frozen=True)
class Numerics:
    """How a kernel rounds; the error bound is built from it.

    `p`: dtype of the attention weights in the second product; `acc`: dtype of the accumulators;
    `partial`: dtype in which partial results are kept before `merges` merges. "input" means the
    dtype of the case.
    """

    p: str = "input"
    acc: str = "float32"
    partial: str = "float32"
    merges: int = 0

    def __post_init__(self) -> None:
        for name in ("p", "acc", "partial"):
            value = getattr(self, name)
            accepted = ("input", *DTYPES)
            if value not in accepted:
                raise ValueError(f"Numerics.{name} is {value!r}: accepted are {', '.join(accepted)}")
        if not 0 <= self.merges <= 64:
            raise ValueError(f"Numerics.merges is {self.merges}: accepted are 0 to 64")
