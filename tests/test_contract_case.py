"""The types of a case: each value that is refused, with the field and what is accepted."""

import math
from collections.abc import Callable

import msgspec
import pytest

from treeproof.contract.case import (
    AttentionShape,
    Full,
    KVLayout,
    MaskLayout,
    MaskMode,
    Request,
    VerifyCase,
    Window,
)
from treeproof.contract.tree import CandidateTree

TREE = CandidateTree(tokens=(5, 6, 7), parents=(-1, 0, 0))


def request(**fields: object) -> Request:
    return Request(**{"tree": TREE, "row_of_node": (0, 2, 1), "prefix_len": 7} | fields)  # type: ignore[arg-type]


def shape(**fields: object) -> AttentionShape:
    given = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 16, "v_head_dim": 8}
    return AttentionShape(**given | fields)  # type: ignore[arg-type]


def layout(**fields: object) -> KVLayout:
    return KVLayout(**{"page_size": 4, "num_slots": 64} | fields)  # type: ignore[arg-type]


def mask(**fields: object) -> MaskLayout:
    return MaskLayout(**fields)  # type: ignore[arg-type]


def window(**fields: object) -> Window:
    return Window(**fields)  # type: ignore[arg-type]


def case(**fields: object) -> VerifyCase:
    given = {"requests": (request(),), "shape": shape(), "layout": layout()}
    return VerifyCase(**given | fields)  # type: ignore[arg-type]


CHAIN_OF_33 = CandidateTree(tokens=(0,) * 33, parents=(-1, *range(32)))
ORDERS = "contiguous, reversed, interleaved, shuffled"

Make = Callable[..., object]
REFUSED: list[tuple[Make, dict[str, object], str]] = [
    (request, {"row_of_node": (0, 1)}, "row_of_node has 2 entries for a tree of 3 nodes"),
    (request, {"row_of_node": (0, 1, 3)}, "row_of_node[2] is row 3: accepted are 0 to 2"),
    (request, {"row_of_node": (0, -1, 2)}, "row_of_node[1] is row -1: accepted are 0 to 2"),
    (request, {"row_of_node": (0, 1, 1)}, "row_of_node[2] and row_of_node[1] are both row 1"),
    (request, {"row_of_node": (1, 0, 2)}, "row_of_node[0] is 1: the root is row 0"),
    (request, {"row_of_node": (0, 1, True)}, "row_of_node[2]: Expected `int`, got `bool`"),
    (request, {"prefix_len": -1}, "prefix_len is -1: accepted are 0 to 1048576"),
    (request, {"prefix_len": 1048577}, "prefix_len is 1048577: accepted are 0 to 1048576"),
    (request, {"prefix_len": 7.0}, "prefix_len: Expected `int`, got `float`"),
    (request, {"prefix_tokens": (1, 2)}, "prefix_tokens has 2 entries, prefix_len is 7"),
    (
        request,
        {"prefix_len": 2, "prefix_tokens": (1, 2**31)},
        "prefix_tokens[1] is 2147483648: accepted are 0 to 2147483647",
    ),
    (
        request,
        {"prefix_len": 2, "prefix_tokens": (-1, 2)},
        "prefix_tokens[0] is -1: accepted are 0 to 2147483647",
    ),
    (request, {"pad_rows": -1}, "pad_rows is -1: accepted are 0 to 8192"),
    (request, {"pad_rows": 8193}, "pad_rows is 8193: accepted are 0 to 8192"),
    (request, {"tree": (-1, 0)}, "tree: Expected `object`, got `array`"),
    (shape, {"num_q_heads": 0}, "num_q_heads is 0: accepted are 1 to 256"),
    (shape, {"num_q_heads": 257}, "num_q_heads is 257: accepted are 1 to 256"),
    (shape, {"num_kv_heads": 0}, "num_kv_heads is 0: accepted are 1 to 256"),
    (shape, {"num_kv_heads": 257}, "num_kv_heads is 257: accepted are 1 to 256"),
    (shape, {"head_dim": 7}, "head_dim is 7: accepted are 8 to 1024"),
    (shape, {"head_dim": 1025}, "head_dim is 1025: accepted are 8 to 1024"),
    (shape, {"v_head_dim": 7}, "v_head_dim is 7: accepted are 8 to 1024"),
    (shape, {"v_head_dim": 1025}, "v_head_dim is 1025: accepted are 8 to 1024"),
    (
        shape,
        {"num_kv_heads": 3},
        "num_q_heads is 4: accepted are multiples of num_kv_heads 3",
    ),
    (shape, {"dtype": "fp8"}, "dtype is 'fp8': accepted are float32, bfloat16, float16"),
    (shape, {"scale": 0.0}, "scale is 0.0: accepted are finite numbers above 0"),
    (shape, {"scale": math.inf}, "scale is inf: accepted are finite numbers above 0"),
    (shape, {"scale": math.nan}, "scale is nan: accepted are finite numbers above 0"),
    (shape, {"scale": 10**400}, "scale: Number out of range"),
    (shape, {"softcap": 0}, "softcap is 0.0: accepted are finite numbers above 0"),
    (shape, {"softcap": math.inf}, "softcap is inf: accepted are finite numbers above 0"),
    (shape, {"softcap": math.nan}, "softcap is nan: accepted are finite numbers above 0"),
    (
        shape,
        {"kv_dtype": "fp8"},
        "kv_dtype is 'fp8': accepted are None, float8_e4m3fn, int8",
    ),
    (shape, {"sinks": 1}, "sinks: Expected `bool`, got `int`"),
    (shape, {"alibi": None}, "alibi: Expected `bool`, got `null`"),
    (shape, {"rotary": 1}, "rotary is 1.0: accepted are finite bases above 1"),
    (shape, {"rotary": math.inf}, "rotary is inf: accepted are finite bases above 1"),
    (shape, {"rotary": math.nan}, "rotary is nan: accepted are finite bases above 1"),
    (
        shape,
        {"rotary": 10000.0, "head_dim": 13},
        "head_dim is 13: rotary needs an even one",
    ),
    (shape, {"visibility": 4}, "visibility: Expected `object`, got `int`"),
    (window, {"width": 0}, "width is 0: accepted are 1 to 2097152"),
    (window, {"width": 2097153}, "width is 2097153: accepted are 1 to 2097152"),
    (window, {"width": "4"}, "width: Expected `int`, got `str`"),
    (layout, {"page_size": 0}, "page_size is 0: accepted are 1 to 1024"),
    (layout, {"page_size": 1025}, "page_size is 1025: accepted are 1 to 1024"),
    (
        layout,
        {"num_slots": 0},
        "num_slots is 0: accepted are 1 to 16777216, multiples of page_size 4",
    ),
    (
        layout,
        {"num_slots": 2**24 + 4},
        "num_slots is 16777220: accepted are 1 to 16777216, multiples of page_size 4",
    ),
    (
        layout,
        {"num_slots": 63},
        "num_slots is 63: accepted are 1 to 16777216, multiples of page_size 4",
    ),
    (layout, {"order": "zigzag"}, f"order is 'zigzag': accepted are {ORDERS}"),
    (layout, {"order": 1}, f"order is 1: accepted are {ORDERS}"),
    (layout, {"pad_slot": 1}, "pad_slot is 1: accepted are 0 and -1"),
    (layout, {"pad_slot": -2}, "pad_slot is -2: accepted are 0 and -1"),
    (layout, {"page_table_pad": -2}, "page_table_pad is -2: accepted are -1 to 63"),
    (layout, {"page_table_pad": 64}, "page_table_pad is 64: accepted are -1 to 63"),
    (
        layout,
        {"shared_prefix": -4},
        "shared_prefix is -4: accepted are multiples of page_size 4 from 0",
    ),
    (
        layout,
        {"shared_prefix": 3},
        "shared_prefix is 3: accepted are multiples of page_size 4 from 0",
    ),
    (layout, {"evicted": 1}, "evicted: Expected `bool`, got `int`"),
    (mask, {"slack": -1}, "slack is -1: accepted are 0 to 1048576"),
    (mask, {"slack": 2**20 + 1}, "slack is 1048577: accepted are 0 to 1048576"),
    (
        mask,
        {"mode": 3},
        "mode is 3: accepted are 0 (FULL_MASK), 1 (QLEN_ONLY), 2 (QLEN_ONLY_BITPACKING)",
    ),
    (mask, {"fill_prefix": None}, "fill_prefix: Expected `bool`, got `null`"),
    (case, {"requests": ()}, "requests has 0 entries: accepted are 1 to 256"),
    (
        case,
        {"requests": (request(),) * 257, "layout": layout(num_slots=2**20)},
        "requests has 257 entries: accepted are 1 to 256",
    ),
    (case, {"requests": (request(), 7)}, "requests[1]: Expected `object`, got `int`"),
    (case, {"seed": -1}, "seed is -1: accepted are 0 to 2**63 - 1"),
    (case, {"seed": 2**63}, f"seed is {2**63}: accepted are 0 to 2**63 - 1"),
    (case, {"score_spread": 0}, "score_spread is 0.0: accepted are above 0 to 64"),
    (case, {"score_spread": 64.5}, "score_spread is 64.5: accepted are above 0 to 64"),
    (case, {"score_spread": math.nan}, "score_spread is nan: accepted are above 0 to 64"),
    (
        case,
        {"requests": (request(pad_rows=8000), request(pad_rows=190))},
        "requests hold 8196 rows: at most 8192 are accepted",
    ),
    (
        case,
        {"requests": (request(), request(prefix_len=3)), "layout": layout(shared_prefix=4)},
        "layout.shared_prefix is 4, longer than prefix_len 3 of requests[1]",
    ),
    (
        case,
        {
            "requests": (
                request(),
                request(tree=CHAIN_OF_33, row_of_node=tuple(range(33)), prefix_len=0),
            ),
            "mask": MaskLayout(mode=MaskMode.QLEN_ONLY_BITPACKING),
        },
        "requests[1] has 33 rows: a bit-packed mask holds at most 32",
    ),
    (
        case,
        {
            "requests": (request(pad_rows=30),),
            "mask": MaskLayout(mode=MaskMode.QLEN_ONLY_BITPACKING),
        },
        "requests[0] has 33 rows: a bit-packed mask holds at most 32",
    ),
    (
        case,
        {"layout": layout(evicted=True)},
        "layout.evicted needs a window: without one every prefix key is read",
    ),
    (
        case,
        {"layout": layout(num_slots=260)},
        "layout.num_slots is 260: with 8 lanes a head at most 256 slots can be told apart by their "
        "contents",
    ),
    (
        case,
        {"layout": layout(num_slots=12)},  # 10 columns in 3 pages, and the pad page
        "layout.num_slots is 12: these requests need 16",
    ),
]


@pytest.mark.parametrize(
    ("make", "fields", "message"),
    REFUSED,
    ids=[f"{make.__name__}-{message[:40]}" for make, _, message in REFUSED],
)
def test_a_wrong_value_is_refused_with_its_field_and_what_is_accepted(
    make: Make, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        make(**fields)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (request, {"prefix_len": 0}),
        (request, {"prefix_len": 2**20}),
        (request, {"prefix_len": 2, "prefix_tokens": (0, 2**31 - 1)}),
        (request, {"pad_rows": 8192}),
        (shape, {"num_q_heads": 256, "num_kv_heads": 256, "head_dim": 8, "v_head_dim": 1024}),
        (shape, {"head_dim": 13}),
        (shape, {"rotary": 1.5}),
        (window, {"width": 1}),
        (window, {"width": 2**21}),
        (layout, {"page_size": 1024, "num_slots": 2**24}),
        (layout, {"page_size": 1, "num_slots": 1}),
        (layout, {"pad_slot": -1, "page_table_pad": -1}),
        (layout, {"page_table_pad": 63, "shared_prefix": 64}),
        (mask, {"slack": 2**20}),
        (case, {"seed": 2**63 - 1, "score_spread": 64}),
        (case, {"layout": layout(num_slots=16)}),
        (case, {"layout": layout(num_slots=256)}),
        (case, {"requests": (request(pad_rows=8189),)}),
        (
            case,
            {
                "requests": (request(prefix_len=0),) * 256,
                "layout": layout(num_slots=2048),
                "shape": shape(v_head_dim=16),
            },
        ),
        (case, {"layout": layout(num_slots=12, pad_slot=-1)}),
        (case, {"layout": layout(shared_prefix=4), "requests": (request(), request(prefix_len=4))}),
        (case, {"layout": layout(evicted=True), "shape": shape(visibility=Window(width=2))}),
        (
            case,
            {
                "requests": (request(pad_rows=29),),
                "mask": MaskLayout(mode=MaskMode.QLEN_ONLY_BITPACKING),
            },
        ),
    ],
)
def test_the_last_accepted_values_are_accepted(make: Make, fields: dict[str, object]) -> None:
    made = make(**fields)
    for name, value in fields.items():
        assert getattr(made, name) == value


def test_what_is_left_out_is_the_plainest() -> None:
    assert layout() == layout(
        order="contiguous", pad_slot=0, page_table_pad=0, shared_prefix=0, evicted=False
    )
    assert mask() == mask(mode=MaskMode.FULL_MASK, slack=0, fill_prefix=True)
    assert shape() == shape(dtype="float32", scale=None, rotary=None, visibility=Full())
    assert request() == request(prefix_tokens=(), pad_rows=0)
    assert case() == case(mask=mask(), seed=0, score_spread=1.0)


@pytest.mark.parametrize(
    "made", [TREE, request(), shape(), window(width=3), layout(), mask(), case()]
)
def test_nothing_can_be_changed_once_it_is_made(made: msgspec.Struct) -> None:
    for info in msgspec.structs.fields(type(made)):
        with pytest.raises(AttributeError):
            setattr(made, info.name, getattr(made, info.name))


def test_a_replaced_field_is_checked_too() -> None:
    with pytest.raises(ValueError, match=r"^page_size is 0: accepted are 1 to 1024$"):
        msgspec.structs.replace(layout(), page_size=0)


def test_values_are_alike_however_they_were_written() -> None:
    listed = case(requests=[request(row_of_node=[0, 2, 1])], score_spread=2, shape=shape(scale=1))
    plain = case(requests=(request(),), score_spread=2.0, shape=shape(scale=1.0))
    assert listed == plain
    assert hash(listed) == hash(plain)
    assert listed.id == plain.id
    assert type(listed.score_spread) is float
    assert mask(mode=1).mode is MaskMode.QLEN_ONLY


def test_rows_and_nodes_are_each_others_inverse() -> None:
    tree = CandidateTree(tokens=(5, 6, 7, 8), parents=(-1, 0, 1, 1))
    drawn = Request(tree=tree, row_of_node=(0, 3, 1, 2), prefix_len=0, pad_rows=2)
    assert drawn.node_of_row == (0, 2, 3, 1)
    assert drawn.parent_rows == (-1, 3, 3, 0)
    assert (drawn.num_nodes, drawn.num_rows) == (4, 6)


def test_row_bounds_count_padding() -> None:
    made = case(requests=(request(pad_rows=2), request()), layout=layout(num_slots=64))
    assert made.qo_indptr == (0, 5, 8)
    assert made.num_rows == 8


def test_shape_properties() -> None:
    assert shape(head_dim=16).score_scale == 0.25
    assert shape(scale=0.5).score_scale == 0.5
    assert shape(visibility=Full()).window is None
    assert shape(visibility=Window(width=3)).window == 3
    assert shape().group_size == 2


def test_no_column_is_evicted_where_the_root_sees_the_first() -> None:
    made = case(layout=layout(page_size=1, evicted=True), shape=shape(visibility=Window(width=20)))
    assert made.evicted_columns(0) == 0


@pytest.mark.parametrize(
    ("width", "prefix", "gone"),
    [
        (3, 7, 4),  # the root, at 7, sees 5, 6, 7: of columns 0 to 4 only the first page is whole
        (3, 10, 8),
        (3, 9, 4),
        (1, 8, 8),
        (8, 7, 0),
        (100, 7, 0),
    ],
)
def test_evicted_columns_are_whole_pages_before_the_roots_window(
    width: int, prefix: int, gone: int
) -> None:
    made = case(
        requests=(request(prefix_len=prefix),),
        layout=layout(evicted=True),
        shape=shape(visibility=Window(width=width)),
    )
    first_seen = min(p for p in range(prefix + 1) if prefix - width < p)
    assert gone == first_seen // 4 * 4
    assert made.evicted_columns(0) == gone
    kept = msgspec.structs.replace(made, layout=layout())
    assert kept.evicted_columns(0) == 0
