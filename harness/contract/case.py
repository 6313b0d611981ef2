"""A verify case: everything that determines one check, as plain data."""

from __future__ import annotations

import hashlib
import math
from enum import IntEnum
from functools import cache, cached_property
from typing import Literal

import msgspec

from treeproof.contract.tree import MAX_TOKEN, CandidateTree

DTYPES = ("float32", "bfloat16", "float16")
MAX_PREFIX = 1 << 20
MAX_REQUESTS = 256
MAX_ROWS = 8192
MAX_SLOTS = 1 << 24


class MaskMode(IntEnum):
    """How a tree mask is laid out in memory; numbered as SGLang's `TreeMaskMode`."""

    FULL_MASK = 0
    QLEN_ONLY = 1
    QLEN_ONLY_BITPACKING = 2


class _Wire(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    kw_only=True,
    dict=True,
):
    """Shared settings of the case types: frozen, strict, and stable ids when fields are added."""


class Request(_Wire, frozen=True):
    """One request of the batch.

    `row_of_node[i]` is the verify row of node i: any permutation with the root at row 0.
    `prefix_len` is the KV-ready length P; the root is not inside it.
    `prefix_tokens` is empty (keys and values are drawn by position) or one token a position.
    `pad_rows` rows follow the real ones: their outputs are free, their writes are not.
    """

    tree: CandidateTree
    row_of_node: tuple[int, ...]
    prefix_len: int
    prefix_tokens: tuple[int, ...] = ()
    pad_rows: int = 0

    def __post_init__(self) -> None:
        n = len(self.tree)
        if len(self.row_of_node) != n:
            raise ValueError(
                f"row_of_node has {len(self.row_of_node)} entries for a tree of {n} nodes"
            )
        taken: dict[int, int] = {}
        for node, row in enumerate(self.row_of_node):
            if not 0 <= row < n:
                raise ValueError(f"row_of_node[{node}] is row {row}: accepted are 0 to {n - 1}")
            if row in taken:
                raise ValueError(
                    f"row_of_node[{node}] and row_of_node[{taken[row]}] are both row {row}"
                )
            taken[row] = node
        if self.row_of_node[0] != 0:
            raise ValueError(f"row_of_node[0] is {self.row_of_node[0]}: the root is row 0")
        if not 0 <= self.prefix_len <= MAX_PREFIX:
            raise ValueError(f"prefix_len is {self.prefix_len}: accepted are 0 to {MAX_PREFIX}")
        if self.prefix_tokens and len(self.prefix_tokens) != self.prefix_len:
            raise ValueError(
                f"prefix_tokens has {len(self.prefix_tokens)} entries, prefix_len is {self.prefix_len}"
            )
        for position, token in enumerate(self.prefix_tokens):
            if not 0 <= token <= MAX_TOKEN:
                raise ValueError(
                    f"prefix_tokens[{position}] is {token}: accepted are 0 to {MAX_TOKEN}"
                )
        if not 0 <= self.pad_rows <= MAX_ROWS:
            raise ValueError(f"pad_rows is {self.pad_rows}: accepted are 0 to {MAX_ROWS}")

    @property
    def num_nodes(self) -> int:
        return len(self.tree)

    @property
    def num_rows(self) -> int:
        """Rows of this request in the launch, padded ones included."""
        return len(self.tree) + self.pad_rows

    @cached_property
    def node_of_row(self) -> tuple[int, ...]:
        """Node of each real row, the inverse of `row_of_node`."""
        nodes = [0] * len(self.row_of_node)
        for node, row in enumerate(self.row_of_node):
            nodes[row] = node
        return tuple(nodes)

    @cached_property
    def parent_rows(self) -> tuple[int, ...]:
        """Row of the parent of each real row; -1 for the root."""
        return tuple(
            -1 if node == 0 else self.row_of_node[self.tree.parents[node]]
            for node in self.node_of_row
        )


class Full(_Wire, frozen=True, tag="full", tag_field="kind"):
    """Every row sees the whole prefix, its ancestors and itself."""


class Window(_Wire, frozen=True, tag="window", tag_field="kind"):
    """A sliding window of `width` keys, the query's own included.

    Key at logical index p is visible from logical index t iff `t - width < p <= t`.
    """

    width: int

    def __post_init__(self) -> None:
        if not 1 <= self.width <= 2 * MAX_PREFIX:
            raise ValueError(f"width is {self.width}: accepted are 1 to {2 * MAX_PREFIX}")


class AttentionShape(_Wire, frozen=True):
    """The layer: heads, head dims, score scale, window, rotary base and dtype.

    `scale` None means `head_dim ** -0.5`. `rotary` None means no rotary embedding, otherwise it is
    the base of the rotation, applied to q and k over all of an even `head_dim` (half split).
    """

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: str = "float32"
    scale: float | None = None
    rotary: float | None = None
    visibility: Full | Window = msgspec.field(default_factory=Full)

    def __post_init__(self) -> None:
        for name, least, most in (
            ("num_q_heads", 1, 256),
            ("num_kv_heads", 1, 256),
            ("head_dim", 8, 1024),
            ("v_head_dim", 8, 1024),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}: accepted are {least} to {most}")
        if self.num_q_heads % self.num_kv_heads:
            raise ValueError(
                f"num_q_heads is {self.num_q_heads}, no multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}: accepted are {', '.join(DTYPES)}")
        if self.scale is not None and not 0 < self.scale < math.inf:
            raise ValueError(f"scale is {self.scale}: accepted are finite numbers above 0")
        if self.rotary is not None:
            if not 1 < self.rotary < math.inf:
                raise ValueError(f"rotary is {self.rotary}: accepted are finite bases above 1")
            if self.head_dim % 2:
                raise ValueError(f"head_dim is {self.head_dim}: rotary needs an even one")

    @property
    def score_scale(self) -> float:
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def window(self) -> int | None:
        """Width of the sliding window in keys, own key included; None where there is none."""
        return self.visibility.width if isinstance(self.visibility, Window) else None

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_q_heads // self.num_kv_heads


Order = Literal["contiguous", "reversed", "interleaved", "shuffled"]


class KVLayout(_Wire, frozen=True):
    """Where logical columns live in the paged KV cache.

    `order` is how pages are handed out: one after another, descending, round robin over the
    requests, or a permutation drawn from the case's seed. `num_slots` is the size of the cache, a
    multiple of `page_size`. `pad_slot` is where rows without a home are said to write: 0 (page 0
    is then never handed out) or -1. `page_table_pad` fills table cells past a request's length.
    `shared_prefix` first columns, whole pages, of every request are the slots of request 0 (a radix
    cache hit). With `evicted`, prefix pages that no row's window reaches have been given back and
    their table cells hold `page_table_pad`.
    """

    page_size: int
    num_slots: int
    order: Order = "contiguous"
    pad_slot: int = 0
    page_table_pad: int = 0
    shared_prefix: int = 0
    evicted: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.page_size <= 1024:
            raise ValueError(f"page_size is {self.page_size}: accepted are 1 to 1024")
        if not 1 <= self.num_slots <= MAX_SLOTS:
            raise ValueError(f"num_slots is {self.num_slots}: accepted are 1 to {MAX_SLOTS}")
        if self.num_slots % self.page_size:
            raise ValueError(
                f"num_slots is {self.num_slots}, no multiple of page_size {self.page_size}"
            )
        if self.pad_slot not in (0, -1):
            raise ValueError(f"pad_slot is {self.pad_slot}: accepted are 0 and -1")
        if not -1 <= self.page_table_pad < self.num_slots:
            raise ValueError(
                f"page_table_pad is {self.page_table_pad}: accepted are -1 to {self.num_slots - 1}"
            )
        if self.shared_prefix < 0 or self.shared_prefix % self.page_size:
            raise ValueError(
                f"shared_prefix is {self.shared_prefix}: accepted are multiples of page_size "
                f"{self.page_size}"
            )


class MaskLayout(_Wire, frozen=True):
    """How a builder that writes a mask is asked to lay it out.

    `slack` cells follow the defined ones (a buffer sized for a larger batch). Where `fill_prefix`
    is false the prefix cells of a FULL_MASK are undefined and must not be read.
    """

    mode: MaskMode = MaskMode.FULL_MASK
    slack: int = 0
    fill_prefix: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.slack <= 1 << 20:
            raise ValueError(f"slack is {self.slack}: accepted are 0 to {1 << 20}")


class VerifyCase(_Wire, frozen=True):
    """One verify step of a batch, and the data it runs on.

    `seed` determines every drawn number. Random data are normal; query data are multiplied by
    `score_spread`, which sharpens the softmax.
    """

    requests: tuple[Request, ...]
    shape: AttentionShape
    layout: KVLayout
    mask: MaskLayout = msgspec.field(default_factory=MaskLayout)
    seed: int = 0
    score_spread: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= len(self.requests) <= MAX_REQUESTS:
            raise ValueError(
                f"requests has {len(self.requests)} entries: accepted are 1 to {MAX_REQUESTS}"
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}: accepted are 0 to 2**63 - 1")
        if not 0 < self.score_spread <= 64:
            raise ValueError(f"score_spread is {self.score_spread}: accepted are above 0 to 64")
        rows = sum(request.num_rows for request in self.requests)
        if rows > MAX_ROWS:
            raise ValueError(f"requests hold {rows} rows: at most {MAX_ROWS} are accepted")
        shared = self.layout.shared_prefix
        for b, request in enumerate(self.requests):
            if shared > request.prefix_len:
                raise ValueError(
                    f"layout.shared_prefix is {shared}, longer than prefix_len "
                    f"{request.prefix_len} of requests[{b}]"
                )
            if self.mask.mode is MaskMode.QLEN_ONLY_BITPACKING and request.num_rows > 32:
                raise ValueError(
                    f"requests[{b}] has {request.num_rows} rows: a bit-packed mask holds at most 32"
                )
        if self.layout.evicted and self.shape.window is None:
            raise ValueError("layout.evicted needs a window: without one every prefix key is read")
        needed = self.pages_needed * self.layout.page_size
        if needed > self.layout.num_slots:
            raise ValueError(
                f"layout.num_slots is {self.layout.num_slots}: these requests need {needed}"
            )

    def evicted_columns(self, request: int) -> int:
        """Leading prefix columns of a request whose pages have been given back."""
        window = self.shape.window
        if not self.layout.evicted or window is None:
            return 0
        unreached = max(0, self.requests[request].prefix_len - window + 1)
        return unreached // self.layout.page_size * self.layout.page_size

    @property
    def pages_needed(self) -> int:
        """Pages that the requests own together, the pad page included where there is one."""
        page = self.layout.page_size
        pages = 1 if self.layout.pad_slot == 0 else 0
        for b, request in enumerate(self.requests):
            columns = request.prefix_len + request.num_nodes
            pages += -(-columns // page)
            if b:
                pages -= self.layout.shared_prefix // page
        return pages

    @cached_property
    def id(self) -> str:
        """blake2b of the canonical JSON, 20 hex digits. Equal cases have equal ids everywhere."""
        canonical = msgspec.json.encode(_canonical(self), order="sorted")
        return hashlib.blake2b(canonical, digest_size=10).hexdigest()

    @property
    def num_rows(self) -> int:
        """Rows of the launch, T, padded ones included."""
        return sum(request.num_rows for request in self.requests)

    @cached_property
    def qo_indptr(self) -> tuple[int, ...]:
        """First row of each request in the launch, and T at the end."""
        indptr = [0]
        for request in self.requests:
            indptr.append(indptr[-1] + request.num_rows)
        return tuple(indptr)


@cache
def _defaults(kind: type[msgspec.Struct]) -> tuple[tuple[str, object], ...]:
    """Name and default of each field; `NODEFAULT` where a field has none."""
    return tuple(
        (
            info.name,
            info.default if info.default_factory is msgspec.NODEFAULT else info.default_factory(),
        )
        for info in msgspec.structs.fields(kind)
    )


def _canonical(value: object) -> object:
    """Plain data in which equal cases are equal JSON.

    Fields at their default are left out, so that a new field with a default keeps old ids. The
    comparison is by value: `omit_defaults` compares strings and floats by identity, which differs
    between a case that was made and the same case read from a file.
    """
    if isinstance(value, msgspec.Struct):
        tag = value.__struct_config__.tag
        body: dict[str, object] = {} if tag is None else {"kind": tag}
        for name, default in _defaults(type(value)):
            item = getattr(value, name)
            if item != default:
                body[name] = _canonical(item)
        return body
    if isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 2 and 2.0 are equal, and so are the cases that hold them
    return value
