"""A verify case: everything that determines one check, as plain data."""

from __future__ import annotations

from functools import cached_property

import msgspec

from treeproof.contract.canonical import content_id
from treeproof.contract.layout import MAX_SLOTS, KVLayout, MaskLayout, MaskMode, Order
from treeproof.contract.nodes import Nodes
from treeproof.contract.script import MAX_STEPS, Round, Step, requests_of
from treeproof.contract.shape import DTYPES, AttentionShape, Full, Window
from treeproof.contract.tree import MAX_TOKEN, CandidateTree
from treeproof.contract.typed import Typed

__all__ = [
    "DTYPES",
    "MAX_PREFIX",
    "MAX_REQUESTS",
    "MAX_ROWS",
    "MAX_SLOTS",
    "AttentionShape",
    "Full",
    "KVLayout",
    "MaskLayout",
    "MaskMode",
    "Order",
    "Request",
    "VerifyCase",
    "Window",
]

MAX_PREFIX = 1 << 20
MAX_REQUESTS = 256
MAX_ROWS = 8192
MAX_PROMPT = 4096
MAX_SERVED_SLOTS = 1 << 16
"""Of cases with a script: every token of a prompt goes through a model, and every slot has two layers."""


class Request(Typed, frozen=True, kw_only=True):
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
        super().__post_init__()
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

    @cached_property
    def num_nodes(self) -> int:
        return len(self.tree)

    @cached_property
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


class VerifyCase(Typed, frozen=True, kw_only=True):
    """One verify step of a batch, and the data it runs on; or, with a script, many steps.

    A case with a `script` is served step by step with a small language model whose layers have this
    shape (`treeproof.contract.script` says what its requests are then). `seed` determines every drawn number. Random data are normal; query data are multiplied by
    `score_spread`, which sharpens the softmax.
    """

    requests: tuple[Request, ...]
    shape: AttentionShape
    layout: KVLayout
    mask: MaskLayout = msgspec.field(default_factory=MaskLayout)
    seed: int = 0
    score_spread: float = 1.0
    script: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
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
        lanes = min(self.shape.head_dim, self.shape.v_head_dim)
        if self.layout.num_slots > 1 << lanes:
            raise ValueError(
                f"layout.num_slots is {self.layout.num_slots}: with {lanes} lanes a head at most "
                f"{1 << lanes} slots can be told apart by their contents"
            )
        needed = self.pages_needed * self.layout.page_size
        if needed > self.layout.num_slots:
            raise ValueError(
                f"layout.num_slots is {self.layout.num_slots}: these requests need {needed}"
            )
        self._check_script()

    def _check_script(self) -> None:
        if len(self.script) > MAX_STEPS:
            raise ValueError(f"script has {len(self.script)} steps: accepted are 0 to {MAX_STEPS}")
        for i, step in enumerate(self.script):
            for b in requests_of(step):
                if b >= len(self.requests):
                    raise ValueError(
                        f"script[{i}] names request {b}: there are {len(self.requests)}"
                    )
            if isinstance(step, Round):
                self._check_round(i, step)
        for b, request in enumerate(self.requests if self.script else ()):
            if not 1 <= request.prefix_len <= MAX_PROMPT:
                raise ValueError(
                    f"requests[{b}].prefix_len is {request.prefix_len}: a script needs a prompt of 1 to "
                    f"{MAX_PROMPT} tokens"
                )
        if self.script and self.layout.num_slots > MAX_SERVED_SLOTS:
            raise ValueError(
                f"layout.num_slots is {self.layout.num_slots}: a script is served with "
                f"{MAX_SERVED_SLOTS} at most"
            )

    def _check_round(self, i: int, step: Round) -> None:
        for t, turn in enumerate(step.turns):
            tree = self.requests[turn.request].tree
            most = len(tree) if turn.nodes is None else min(len(tree), turn.nodes)
            if turn.accept >= most:
                raise ValueError(
                    f"script[{i}].turns[{t}].accept is node {turn.accept}: drafted are 0 to "
                    f"{most - 1}"
                )
            if step.sample == "chain" and tree.parents[:most] != tuple(range(-1, most - 1)):
                raise ValueError(
                    f"script[{i}].sample is chain: turns[{t}] drafts a tree with branches"
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
        return pages_needed(self.requests, self.layout)

    @cached_property
    def id(self) -> str:
        """blake2b of the canonical JSON, 20 hex digits. Equal cases have equal ids everywhere."""
        return content_id(self)

    @cached_property
    def num_rows(self) -> int:
        """Rows of the launch, T, padded ones included."""
        return sum(request.num_rows for request in self.requests)

    @cached_property
    def nodes(self) -> Nodes:
        """The nodes of all requests as arrays."""
        return Nodes.of(self.requests)

    @cached_property
    def qo_indptr(self) -> tuple[int, ...]:
        """First row of each request in the launch, and T at the end."""
        indptr = [0]
        for request in self.requests:
            indptr.append(indptr[-1] + request.num_rows)
        return tuple(indptr)


def pages_needed(requests: tuple[Request, ...], layout: KVLayout) -> int:
    """Pages that these requests own together, the pad page included where there is one."""
    page = layout.page_size
    pages = 1 if layout.pad_slot == 0 else 0
    for b, request in enumerate(requests):
        pages += -(-(request.prefix_len + request.num_nodes) // page)
        if b:
            pages -= layout.shared_prefix // page
    return pages
