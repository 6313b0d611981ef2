"""The id of a case: the same for equal cases wherever they come from, another for any other."""

import hashlib
import json
import math
from typing import Any

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
from treeproof.contract.script import Evict
from treeproof.contract.tree import CandidateTree
from treeproof.contract.wire import decode_case, encode_case

CASE = VerifyCase(
    requests=(
        Request(
            tree=CandidateTree(tokens=(5, 6, 7), parents=(-1, 0, 0)),
            row_of_node=(0, 2, 1),
            prefix_len=4,
        ),
        Request(
            tree=CandidateTree(tokens=(5, 6, 7), parents=(-1, 0, 0)),
            row_of_node=(0, 1, 2),
            prefix_len=4,
            prefix_tokens=(1, 2, 3, 4),
        ),
    ),
    shape=AttentionShape(
        num_q_heads=4,
        num_kv_heads=2,
        head_dim=16,
        v_head_dim=8,
        rotary=10000.0,
        visibility=Window(width=3),
    ),
    layout=KVLayout(page_size=2, num_slots=64, order="shuffled"),
    seed=11,
)
CANONICAL = (
    '{"layout":{"num_slots":64,"order":"shuffled","page_size":2},'
    '"requests":[{"prefix_len":4,"row_of_node":[0,2,1],'
    '"tree":{"parents":[-1,0,0],"tokens":[5,6,7]}},'
    '{"prefix_len":4,"prefix_tokens":[1,2,3,4],"row_of_node":[0,1,2],'
    '"tree":{"parents":[-1,0,0],"tokens":[5,6,7]}}],'
    '"seed":11,"shape":{"head_dim":16,"num_kv_heads":2,"num_q_heads":4,"rotary":10000.0,'
    '"v_head_dim":8,"visibility":{"kind":"window","width":3}}}'
)


def test_the_id_is_blake2b_of_the_canonical_json() -> None:
    assert CASE.id == hashlib.blake2b(CANONICAL.encode(), digest_size=10).hexdigest()


def test_the_id_of_one_case_stays_what_it_is() -> None:
    assert CASE.id == "694847614feb80c9319e"


def reordered(value: Any) -> Any:
    """The same document, the keys of every object the other way round."""
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


def test_the_order_of_fields_in_a_file_does_not_matter() -> None:
    data = json.dumps(reordered(json.loads(encode_case(CASE)))).encode()
    assert data.index(b'"seed"') < data.index(b'"requests"')
    assert decode_case(data).id == CASE.id


def test_defaults_written_out_in_a_file_do_not_matter() -> None:
    document = json.loads(encode_case(CASE))
    document["score_spread"] = 1
    document["mask"] = {"mode": 0, "slack": 0, "fill_prefix": True}
    document["layout"] |= {"pad_slot": 0, "page_table_pad": 0, "shared_prefix": 0, "evicted": False}
    document["shape"] |= {"dtype": "float32", "scale": None}
    document["shape"] |= {"softcap": None, "sinks": False, "alibi": False, "kv_dtype": None}
    document["requests"][0] |= {"prefix_tokens": [], "pad_rows": 0}
    assert decode_case(json.dumps(document).encode()).id == CASE.id


def test_the_version_of_the_file_is_not_in_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treeproof.contract.wire.VERSION", 2)
    data = encode_case(CASE)
    assert b'"version":2' in data
    assert decode_case(data).id == CASE.id


OTHER: dict[type[msgspec.Struct], dict[str, object]] = {
    VerifyCase: {
        "requests": CASE.requests[:1],
        "shape": msgspec.structs.replace(CASE.shape, dtype="float16"),
        "layout": msgspec.structs.replace(CASE.layout, num_slots=62),
        "mask": MaskLayout(slack=3),
        "seed": 12,
        "score_spread": 2.0,
        "script": (Evict(),),
    },
    Request: {
        "tree": CandidateTree(tokens=(5, 6, 7), parents=(-1, 0, 1)),
        "row_of_node": (0, 1, 2),
        "prefix_len": 5,
        "prefix_tokens": (1, 2, 3, 4),
        "pad_rows": 1,
    },
    CandidateTree: {"tokens": (5, 6, 8), "parents": (-1, 0, 1)},
    AttentionShape: {
        "num_q_heads": 2,
        "num_kv_heads": 4,
        "head_dim": 8,
        "v_head_dim": 16,
        "dtype": "bfloat16",
        "scale": math.nextafter(0.25, 1),
        "rotary": None,
        "visibility": Full(),
        "softcap": 30.0,
        "sinks": True,
        "alibi": True,
        "kv_dtype": "int8",
    },
    Window: {"width": 4},
    KVLayout: {
        "page_size": 1,
        "num_slots": 62,
        "order": "reversed",
        "pad_slot": -1,
        "page_table_pad": -1,
        "shared_prefix": 2,
        "storage": "layered",
        "evicted": True,
    },
    MaskLayout: {"mode": MaskMode.QLEN_ONLY, "slack": 1, "fill_prefix": False},
}


def with_part(part: msgspec.Struct) -> VerifyCase:
    """The case with one part of it replaced; of requests and trees, the first."""
    if isinstance(part, VerifyCase):
        return part
    if isinstance(part, CandidateTree):
        part = msgspec.structs.replace(CASE.requests[0], tree=part)
    if isinstance(part, Request):
        return msgspec.structs.replace(CASE, requests=(part, CASE.requests[1]))
    if isinstance(part, Window):
        part = msgspec.structs.replace(CASE.shape, visibility=part)
    field = {AttentionShape: "shape", KVLayout: "layout", MaskLayout: "mask"}[type(part)]
    return msgspec.structs.replace(CASE, **{field: part})


PARTS: list[msgspec.Struct] = [
    CASE,
    CASE.requests[0],
    CASE.requests[0].tree,
    CASE.shape,
    CASE.shape.visibility,
    CASE.layout,
    CASE.mask,
]


@pytest.mark.parametrize(
    ("part", "field"),
    [(part, info.name) for part in PARTS for info in msgspec.structs.fields(type(part))],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_any_other_field_gives_another_id(part: msgspec.Struct, field: str) -> None:
    other = OTHER[type(part)][field]
    assert with_part(part).id == CASE.id
    assert with_part(msgspec.structs.replace(part, **{field: other})).id != CASE.id


def test_no_two_of_these_cases_share_an_id() -> None:
    ids = [
        with_part(msgspec.structs.replace(part, **{field: other})).id
        for part in PARTS
        for field, other in OTHER[type(part)].items()
    ]
    # Two cases are met twice: a smaller cache, and a deeper tree, as parts and as parts of parts.
    assert len(ids) == 38
    assert len(set(ids)) == 36
