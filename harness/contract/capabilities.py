"""What a backend says it can do, and how it rounds."""

from __future__ import annotations

from collections.abc import Set
from typing import Annotated, Literal

from msgspec import Meta

from treeproof.contract.case import DTYPES, Request, VerifyCase
from treeproof.contract.layout import CacheLayout
from treeproof.contract.sampling import TARGET_ONLY, Rule
from treeproof.contract.shape import Dtype
from treeproof.contract.typed import Typed

RowOrder = Literal["any", "parent-first", "breadth-first"]
SiblingOrder = Literal["any", "ascending", "descending"]
Device = Literal["cpu", "cuda"]
MaskName = Literal["FULL_MASK", "QLEN_ONLY", "QLEN_ONLY_BITPACKING"]
PadSlot = Literal[0, -1]
CacheDtype = Literal[None, "float8_e4m3fn", "int8"]
"""None: the dtype of the case."""
Factor = Literal["input", "tf32"] | Dtype
UNIT_ROUNDOFF = {
    "float32": 2.0**-24,
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
    "tf32": 2.0**-10,
}
"""Half a unit in the last place of 1.0: 24, 8 and 11 significant bits, rounded to nearest; of TF32's 11
significant bits a whole one, because matrix units that are handed float32 cut the rest off."""

MOST_MERGED = 2.0**-3
"""What merges may lose altogether, as it is declared: 32 of them in bfloat16, 256 in float16."""

Positive = Annotated[int, Meta(ge=1)]


class Capabilities(Typed, frozen=True, kw_only=True):
    """Cases outside these are `unsupported` for the backend and are not sent to it, but by the probe
    `guard`: beyond `max_topk` a backend must raise and leave its inputs alone, beyond `max_rows` and
    `page_sizes` it must do so or be right.

    None means no limit. `max_topk` bounds `VerifyInput.topk`, `max_rows` the rows of one request,
    padded ones included. `min_window`: keys of the narrowest sliding window, the query's own
    included. `same_tree`: all requests of a batch hold one tree in one row order.
    `cache_layouts`: how the caches handed over may lie in memory (`KVLayout.storage`).
    `head_dims` holds for keys and values alike, `head_dim_pairs` for a width of keys with one of
    values. `unfilled_prefix_mask`: prefix cells of a FULL_MASK may be left undefined, because they are
    not read. `pad_slots`: those of `KVLayout.pad_slot`; whoever keeps slot 0 for padding takes {0}.
    `nan_safe`: NaN in keys and values that a row must
    not read does not reach its output. `stores_kv`: `attend` writes K and V itself.
    `deterministic`: the same launch twice gives the same bits.
    `capturable`: `attend` can be captured in a CUDA graph on one batch and replayed on others. It asks the
    device for nothing and decides by shapes alone. Batches are copied into the tensors that it was
    captured with: as many requests, rows of each and slots; behind a shorter table or list lies what an
    earlier batch left there. A `plan` has seen the captured batch and no other; a method
    `replan(state, x)`, where there is one, is called before each replay.

    Softcap, sinks, ALiBi and quantised caches (`kv_dtypes`, None being the case's own dtype) are
    sent only to those who say that they take them. `custom_scale`: score scales other than
    `head_dim ** -0.5`. `draft_vocabulary`:
    `select` maps a drafter's ids to the target's (`DraftPool.hot_token_id`); no other is given a map.
    `tree_kv`: where `attend` reads the verify rows' own K and V, in the cache
    that it wrote or from its operands `k` and `v` (under a quantised cache those are dequantised
    values, rounded to the case's dtype). `lse_base`, `lse_includes_sink`: what the returned
    log-sum-exp means. `empty_rows`: what becomes of a softmax over no key: output 0 and log-sum-exp
    -inf, NaN, or anything. `vocab_size`: the tokens that `forward` takes lie below it. `sampling`: rules of acceptance that `sample` knows.
    `sibling_order`: how links of its build go through the children of a row, by the rows' numbers; `sample`
    is judged by the links that it is handed, whatever their order. `own_coins`: it draws its coins itself, by `Sampling.seed` or by torch's generators, which are seeded with that
    before each call; where it is `deterministic`, alike for equal seeds.

    Raises ValueError naming the field where no case can have such a value: a typing error would
    otherwise leave nothing to check.
    """

    max_topk: Positive | None = None
    max_rows: Positive | None = None
    row_order: RowOrder = "any"
    same_tree: bool = False
    ragged: bool = True
    pad_rows: bool = True
    empty_prefix: bool = True
    windows: bool = True
    min_window: Positive = 1
    full: bool = True
    gqa: bool = True
    rotary: bool = True
    dtypes: Set[Dtype] = frozenset(DTYPES)
    devices: Set[Device] = frozenset({"cpu", "cuda"})
    head_dims: Set[Positive] | None = None
    head_dim_pairs: Set[tuple[Positive, Positive]] | None = None
    page_sizes: Set[Positive] | None = None
    cache_layouts: Set[CacheLayout] = frozenset({"NHD"})
    mask_modes: Set[MaskName] | None = None
    unfilled_prefix_mask: bool = True
    pad_slots: Set[PadSlot] = frozenset({0, -1})
    nan_safe: bool = False
    stores_kv: bool = True
    deterministic: bool = True
    capturable: bool = False
    softcap: bool = False
    sinks: bool = False
    alibi: bool = False
    custom_scale: bool = True
    draft_vocabulary: bool = False
    kv_dtypes: Set[CacheDtype] = frozenset({None})
    tree_kv: Literal["cache", "operand"] = "cache"
    lse_base: Literal["e", "2"] = "e"
    lse_includes_sink: bool = False
    empty_rows: Literal["zero", "nan", "undefined"] = "zero"
    vocab_size: Annotated[int, Meta(ge=2)] | None = None
    sampling: Set[Rule] = frozenset({TARGET_ONLY})
    own_coins: bool = False
    sibling_order: SiblingOrder = "any"

    def refusal(self, case: VerifyCase, device: str) -> str | None:
        """Why this case is outside the capabilities, or None where it is inside."""
        shape, layout, requests = case.shape, case.layout, case.requests
        kind = device.partition(":")[0]
        topk = max(r.tree.topk for r in requests)
        rows = max(r.num_rows for r in requests)
        checks = (
            (kind not in self.devices, f"device {kind}"),
            (shape.dtype not in self.dtypes, f"dtype {shape.dtype}"),
            (self.max_topk is not None and topk > self.max_topk, f"topk {topk}"),
            (self.max_rows is not None and rows > self.max_rows, f"{rows} rows in a request"),
            (not self.windows and shape.window is not None, "a sliding window"),
            (
                shape.window is not None and shape.window < self.min_window,
                f"a sliding window of {shape.window} keys",
            ),
            (not self.full and shape.window is None, "no sliding window"),
            (not self.gqa and shape.group_size > 1, "grouped query heads"),
            (not self.rotary and shape.rotary is not None, "rotary embedding"),
            (not self.softcap and shape.softcap is not None, "a softcap"),
            (not self.sinks and shape.sinks, "sinks"),
            (not self.alibi and shape.alibi, "ALiBi"),
            (
                not self.custom_scale and shape.score_scale != shape.head_dim**-0.5,
                f"a score scale of {shape.score_scale:g}",
            ),
            (
                shape.kv_dtype not in self.kv_dtypes,
                f"a cache in {shape.kv_dtype or 'the dtype of the case'}",
            ),
            (
                not self._takes_head_dims(shape.head_dim, shape.v_head_dim),
                f"head dims {shape.head_dim} and {shape.v_head_dim}",
            ),
            (
                self.page_sizes is not None and layout.page_size not in self.page_sizes,
                f"page size {layout.page_size}",
            ),
            (layout.storage not in self.cache_layouts, f"cache layout {layout.storage}"),
            (
                self.mask_modes is not None and case.mask.mode.name not in self.mask_modes,
                f"mask mode {case.mask.mode.name}",
            ),
            (
                not self.unfilled_prefix_mask and not case.mask.fill_prefix,
                "a mask whose prefix cells are not filled",
            ),
            (layout.pad_slot not in self.pad_slots, f"pad slot {layout.pad_slot}"),
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

    def _takes_head_dims(self, keys: int, values: int) -> bool:
        each = self.head_dims is None or {keys, values} <= self.head_dims
        return each and (self.head_dim_pairs is None or (keys, values) in self.head_dim_pairs)

    def _in_order(self, request: Request) -> bool:
        if self.row_order == "breadth-first":
            depths = [request.tree.depth[node] for node in request.node_of_row]
            if depths != sorted(depths):
                return False
        return all(parent < row for row, parent in enumerate(request.parent_rows))


class Numerics(Typed, frozen=True, kw_only=True):
    """How a kernel rounds; the error bound is built from it.

    `mul`: what the factors of the first product, q and K, are rounded to; `p` and `v`: the same of
    the second product, weights and values (dequantised ones under a quantised cache). `acc`: dtype of
    the accumulators; `partial`: dtype in which partial results are kept before `merges` merges.
    "input" means the dtype of the case, "tf32" ten bits after the point, cut off. `tanh`: how a
    softcap is taken, "approx" being the hardware's instruction. Raises ValueError naming the field
    and what is accepted: a kernel that may lose everything would never be wrong.
    """

    mul: Factor = "input"
    p: Factor = "input"
    v: Factor = "input"
    tanh: Literal["exact", "approx"] = "exact"
    acc: Literal["input"] | Dtype = "float32"
    partial: Literal["input"] | Dtype = "float32"
    merges: Annotated[int, Meta(ge=0, le=64)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        kept = "bfloat16" if self.partial == "input" else self.partial
        most = int(MOST_MERGED / UNIT_ROUNDOFF[kept])
        if self.merges > most:
            raise ValueError(
                f"merges is {self.merges}: accepted are 0 to {most} of partial results in {self.partial}"
            )
