"""What a backend declares: checked when it is declared, and each limit refuses what it says."""

import msgspec
import pytest

from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.case import (
    AttentionShape,
    KVLayout,
    MaskLayout,
    MaskMode,
    Request,
    VerifyCase,
    Window,
)
from treeproof.contract.tree import CandidateTree

PAIR = CandidateTree(tokens=(5, 6, 7), parents=(-1, 0, 0))
CHAIN = CandidateTree(tokens=(5, 6, 7), parents=(-1, 0, 1))
# Pairs, of which three nodes of depth 2 go on: a draft of topk 3.
BUSHY = CandidateTree(tokens=tuple(range(10)), parents=(-1, 0, 0, 1, 1, 2, 2, 3, 4, 5))


def request(tree: CandidateTree = PAIR, *rows: int, prefix: int = 4, pad_rows: int = 0) -> Request:
    order = rows or tuple(range(len(tree)))
    return Request(tree=tree, row_of_node=order, prefix_len=prefix, pad_rows=pad_rows)


def case(*requests: Request, mode: MaskMode = MaskMode.FULL_MASK, **shape: object) -> VerifyCase:
    given = {"num_q_heads": 4, "num_kv_heads": 4, "head_dim": 64, "v_head_dim": 32} | shape
    return VerifyCase(
        requests=requests or (request(),),
        shape=AttentionShape(**given),  # type: ignore[arg-type]
        layout=KVLayout(page_size=2, num_slots=64),
        mask=MaskLayout(mode=mode),
    )


WINDOW = Window(width=3)
LIMITS: list[tuple[dict[str, object], VerifyCase, VerifyCase, str]] = [
    ({"max_topk": 1}, case(request(CHAIN)), case(), "topk 2"),
    ({"max_topk": 2}, case(), case(request(), request(BUSHY)), "topk 3"),
    ({"max_rows": 3}, case(), case(request(), request(pad_rows=1)), "4 rows in a request"),
    (
        {"row_order": "parent-first"},
        case(request(CHAIN)),
        case(request(CHAIN, 0, 2, 1)),
        "rows that are not parent-first",
    ),
    (
        {"row_order": "parent-first"},
        # Node 3, below node 1, comes before node 2: depth-first is parent-first.
        case(request(CandidateTree((5, 6, 7, 8), (-1, 0, 0, 1)), 0, 1, 3, 2)),
        case(request(), request(CandidateTree((5, 6, 7, 8), (-1, 0, 0, 1)), 0, 3, 1, 2)),
        "rows that are not parent-first",
    ),
    (
        {"row_order": "breadth-first"},
        case(request(PAIR, 0, 2, 1)),
        case(request(CandidateTree((5, 6, 7, 8), (-1, 0, 0, 1)), 0, 1, 3, 2)),
        "rows that are not breadth-first",
    ),
    (
        {"same_tree": True},
        case(request(), request(prefix=9)),
        case(request(), request(CHAIN)),
        "different trees in one batch",
    ),
    (
        {"same_tree": True},
        case(request(PAIR, 0, 2, 1), request(PAIR, 0, 2, 1)),
        case(request(), request(PAIR, 0, 2, 1)),
        "different trees in one batch",
    ),
    (
        {"ragged": False},
        case(request(), request(CHAIN)),
        case(request(), request(BUSHY)),
        "ragged rows",
    ),
    ({"ragged": False}, case(), case(request(), request(pad_rows=1)), "ragged rows"),
    ({"pad_rows": False}, case(), case(request(), request(pad_rows=2)), "padded rows"),
    ({"empty_prefix": False}, case(), case(request(), request(prefix=0)), "empty prefix"),
    ({"windows": False}, case(), case(visibility=WINDOW), "a sliding window"),
    (
        {"min_window": 4},
        case(visibility=Window(width=4)),
        case(visibility=WINDOW),
        "a sliding window of 3 keys",
    ),
    ({"full": False}, case(visibility=WINDOW), case(), "no sliding window"),
    ({"gqa": False}, case(), case(num_kv_heads=2), "grouped query heads"),
    ({"rotary": False}, case(), case(rotary=10000.0), "rotary embedding"),
    ({"custom_scale": False}, case(scale=64**-0.5), case(scale=0.5), "a score scale of 0.5"),
    ({"dtypes": {"float32"}}, case(), case(dtype="float16"), "dtype float16"),
    ({"head_dims": {32, 64}}, case(), case(head_dim=128), "head dims 128 and 32"),
    ({"head_dims": {64}}, case(v_head_dim=64), case(), "head dims 64 and 32"),
    (
        {"head_dim_pairs": {(64, 32), (32, 32)}},
        case(),
        case(head_dim=32, v_head_dim=64),
        "head dims 32 and 64",
    ),
    (
        {"page_sizes": {1, 2}},
        case(),
        msgspec.structs.replace(case(), layout=KVLayout(page_size=16, num_slots=64)),
        "page size 16",
    ),
    (
        {"mask_modes": {"FULL_MASK", "QLEN_ONLY"}},
        case(mode=MaskMode.QLEN_ONLY),
        case(mode=MaskMode.QLEN_ONLY_BITPACKING),
        "mask mode QLEN_ONLY_BITPACKING",
    ),
    (
        {"pad_slots": {0}},
        case(),
        msgspec.structs.replace(case(), layout=KVLayout(page_size=1, num_slots=64, pad_slot=-1)),
        "pad slot -1",
    ),
    (
        {"unfilled_prefix_mask": False},
        case(),
        msgspec.structs.replace(case(), mask=MaskLayout(fill_prefix=False)),
        "a mask whose prefix cells are not filled",
    ),
]


@pytest.mark.parametrize(
    ("limit", "inside", "outside", "reason"),
    LIMITS,
    ids=[f"{next(iter(limit))}-{reason}" for limit, _, _, reason in LIMITS],
)
def test_each_limit_refuses_what_it_says_and_nothing_else_does(
    limit: dict[str, object], inside: VerifyCase, outside: VerifyCase, reason: str
) -> None:
    limited = Capabilities(**limit)  # type: ignore[arg-type]
    assert limited.refusal(inside, "cpu") is None
    assert limited.refusal(outside, "cpu") == reason
    assert Capabilities().refusal(outside, "cpu") is None


ABILITIES: list[tuple[dict[str, object], VerifyCase, str]] = [
    ({"softcap": True}, case(softcap=30.0), "a softcap"),
    ({"sinks": True}, case(sinks=True), "sinks"),
    ({"alibi": True}, case(alibi=True), "ALiBi"),
    ({"kv_dtypes": {None, "int8"}}, case(kv_dtype="int8"), "a cache in int8"),
    (
        {"kv_dtypes": {"float8_e4m3fn"}},
        case(kv_dtype="float8_e4m3fn"),
        "a cache in float8_e4m3fn",
    ),
    (
        {"cache_layouts": {"NHD", "layered"}},
        msgspec.structs.replace(
            case(), layout=KVLayout(page_size=2, num_slots=64, storage="layered")
        ),
        "cache layout layered",
    ),
]


@pytest.mark.parametrize(
    ("ability", "needing", "reason"), ABILITIES, ids=[reason for *_, reason in ABILITIES]
)
def test_nobody_is_sent_what_he_did_not_say_he_takes(
    ability: dict[str, object], needing: VerifyCase, reason: str
) -> None:
    assert Capabilities().refusal(needing, "cpu") == reason
    assert Capabilities(**ability).refusal(needing, "cpu") is None  # type: ignore[arg-type]


def test_a_backend_of_quantised_caches_alone_is_sent_no_other() -> None:
    only = Capabilities(kv_dtypes={"int8"})
    assert only.refusal(case(), "cpu") == "a cache in the dtype of the case"
    assert only.refusal(case(kv_dtype="float8_e4m3fn"), "cpu") == "a cache in float8_e4m3fn"


def test_every_limit_is_in_the_table() -> None:
    no_limits = {"nan_safe", "stores_kv", "deterministic", "capturable", "devices"}
    no_limits |= {"tree_kv", "lse_base", "lse_includes_sink", "empty_rows", "vocab_size"}
    no_limits |= {"draft_vocabulary", "sampling", "own_coins", "sibling_order"}
    limits = {name for limit, *_ in LIMITS for name in limit}
    abilities = {name for ability, *_ in ABILITIES for name in ability}
    assert limits | abilities | no_limits == {
        info.name for info in msgspec.structs.fields(Capabilities)
    }


@pytest.mark.parametrize(
    ("devices", "device", "reason"),
    [
        ({"cpu"}, "cpu", None),
        ({"cpu"}, "cuda:1", "device cuda"),
        ({"cuda"}, "cuda:1", None),
        ({"cuda"}, "cuda", None),
        ({"cuda"}, "cpu", "device cpu"),
    ],
)
def test_devices_are_told_apart_by_kind(devices: set[str], device: str, reason: str | None) -> None:
    assert Capabilities(devices=devices).refusal(case(), device) == reason  # type: ignore[arg-type]


def test_what_a_backend_promises_refuses_nothing() -> None:
    promises = Capabilities(nan_safe=True, stores_kv=False, deterministic=False, capturable=True)
    for _, inside, outside, _ in LIMITS:
        assert promises.refusal(inside, "cpu") is None
        assert promises.refusal(outside, "cpu") is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_topk": 0}, "max_topk: Expected `int` >= 1"),
        ({"max_rows": True}, "max_rows: Expected `int | null`, got `bool`"),
        ({"min_window": 0}, "min_window: Expected `int` >= 1"),
        (
            {"row_order": "sorted"},
            "row_order is 'sorted': accepted are any, parent-first, breadth-first",
        ),
        ({"windows": 1}, "windows: Expected `bool`, got `int`"),
        (
            {"dtypes": {"bf16"}},
            "dtypes is {'bf16'}: accepted are sets of float32, bfloat16, float16",
        ),
        (
            {"dtypes": "float32"},
            "dtypes is 'float32': accepted are sets of float32, bfloat16, float16",
        ),
        ({"devices": {"tpu"}}, "devices is {'tpu'}: accepted are sets of cpu, cuda"),
        ({"head_dims": {0}}, "head_dims[0]: Expected `int` >= 1"),
        (
            {"kv_dtypes": {"fp8"}},
            "kv_dtypes is {'fp8'}: accepted are sets of None, float8_e4m3fn, int8",
        ),
        ({"tree_kv": "k"}, "tree_kv is 'k': accepted are cache, operand"),
        ({"lse_base": "10"}, "lse_base is '10': accepted are e, 2"),
        ({"empty_rows": "inf"}, "empty_rows is 'inf': accepted are zero, nan, undefined"),
        ({"page_sizes": 16}, "page_sizes: Expected `array | null`, got `int`"),
        (
            {"mask_modes": {"FULL"}},
            "mask_modes is {'FULL'}: accepted are sets of FULL_MASK, QLEN_ONLY, "
            "QLEN_ONLY_BITPACKING",
        ),
    ],
)
def test_a_limit_that_no_case_can_meet_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        Capabilities(**fields)  # type: ignore[arg-type]
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"p": "bf16"}, "p is 'bf16': accepted are input, tf32, float32, bfloat16, float16"),
        ({"mul": "tf"}, "mul is 'tf': accepted are input, tf32, float32, bfloat16, float16"),
        ({"v": 8}, "v is 8: accepted are input, tf32, float32, bfloat16, float16"),
        ({"tanh": "fast"}, "tanh is 'fast': accepted are exact, approx"),
        ({"acc": "float64"}, "acc is 'float64': accepted are input, float32, bfloat16, float16"),
        ({"partial": None}, "partial is None: accepted are input, float32, bfloat16, float16"),
        ({"merges": -1}, "merges: Expected `int` >= 0"),
        ({"merges": 65}, "merges: Expected `int` <= 64"),
        ({"merges": 1.0}, "merges: Expected `int`, got `float`"),
    ],
)
def test_a_rounding_that_is_not_known_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        Numerics(**fields)  # type: ignore[arg-type]
    assert str(refusal.value) == message


def test_what_is_not_said_is_no_limit_and_no_promise_but_to_store_and_to_repeat() -> None:
    silent = Capabilities()
    assert (silent.max_topk, silent.max_rows, silent.min_window) == (None, None, 1)
    assert (silent.nan_safe, silent.stores_kv, silent.deterministic) == (False, True, True)
    assert silent.devices == {"cpu", "cuda"}
    assert Numerics() == Numerics(p="input", acc="float32", partial="float32", merges=0)


def test_a_set_changed_afterwards_changes_no_limit() -> None:
    pages = {1, 2}
    limited = Capabilities(page_sizes=pages)
    pages.add(16)
    assert limited.page_sizes == {1, 2}
    assert hash(limited) == hash(Capabilities(page_sizes=frozenset({1, 2})))


def test_mask_modes_are_those_of_cases() -> None:
    assert Capabilities(mask_modes=set(MaskMode.__members__)).mask_modes == {  # type: ignore[arg-type]
        mode.name for mode in MaskMode
    }
