"""Files of older versions: converted step by step, and refused where they are not what they say."""

import json
from typing import Any

import pytest

from treeproof.contract import wire
from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.tree import CandidateTree
from treeproof.contract.wire import (
    CASE_SCHEMA,
    CONVERTERS,
    VERSION,
    FailureKey,
    FileError,
    Reproducer,
    decode_case,
    decode_reproducer,
    encode_case,
    encode_reproducer,
)

CASE = VerifyCase(
    requests=(
        Request(
            tree=CandidateTree(tokens=(5, 6, 7), parents=(-1, 0, 0)),
            row_of_node=(0, 2, 1),
            prefix_len=2,
        ),
    ),
    shape=AttentionShape(num_q_heads=2, num_kv_heads=1, head_dim=8, v_head_dim=8),
    layout=KVLayout(page_size=2, num_slots=32),
)
REPRODUCER = Reproducer(
    case=CASE, backend="cascade", failure=FailureKey(identity="kv", kind="misplaced")
)


def a_case_in(document: dict[str, Any]) -> dict[str, Any]:
    case: dict[str, Any] = document if document["schema"] == CASE_SCHEMA else document["case"]
    return case


def from_0(document: dict[str, Any]) -> dict[str, Any]:
    """In version 0, let us say, `page_size` was `page`."""
    layout = a_case_in(document)["layout"]
    layout["page_size"] = layout.pop("page")
    return document


def from_minus_1(document: dict[str, Any]) -> dict[str, Any]:
    """And before that it was counted in half pages."""
    layout = a_case_in(document)["layout"]
    layout["page"] = layout.pop("halves") // 2
    return document


def old(data: bytes, version: int, **layout: object) -> bytes:
    document = json.loads(data)
    document["version"] = version
    a_case_in(document)["layout"] = {"num_slots": 32, **layout}
    return json.dumps(document).encode()


def test_an_older_file_passes_every_converter_up_to_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "CONVERTERS", {0: from_0, -1: from_minus_1})
    assert decode_case(old(encode_case(CASE), 0, page=2)) == CASE
    assert decode_case(old(encode_case(CASE), -1, halves=4)) == CASE
    assert decode_case(encode_case(CASE)) == CASE
    assert decode_case(old(encode_case(CASE), 0, page=2)).id == CASE.id


def test_the_case_inside_a_reproducer_is_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "CONVERTERS", {0: from_0})
    assert decode_reproducer(old(encode_reproducer(REPRODUCER), 0, page=2)) == REPRODUCER


def test_without_its_converter_an_older_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "CONVERTERS", {0: from_0})
    with pytest.raises(FileError, match=r"^x.json: version is -1; this treeproof reads 0 to 1$"):
        decode_case(old(encode_case(CASE), -1, halves=4), "x.json")


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"page_size": 2}, "x.json: not what version 0 wrote: KeyError: 'page'"),
        ({"page": 2, "pad": 1}, "x.json: Object contains unknown field `pad` - at `$.layout`"),
        ({"page": "2"}, "x.json: Expected `int`, got `str` - at `$.layout.page_size`"),
    ],
)
def test_an_older_file_is_read_as_strictly(
    monkeypatch: pytest.MonkeyPatch, layout: dict[str, object], message: str
) -> None:
    monkeypatch.setattr(wire, "CONVERTERS", {0: from_0})
    with pytest.raises(FileError) as refusal:
        decode_case(old(encode_case(CASE), 0, **layout), "x.json")
    assert str(refusal.value) == message


def test_an_older_file_of_another_shape_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "CONVERTERS", {0: from_0})
    for body in (b"", b',"layout":7', b',"layout":[]', b',"layout":null'):
        data = b'{"schema":"treeproof.case","version":0' + body + b"}"
        with pytest.raises(FileError, match=r"^x\.json: not what version 0 wrote: "):
            decode_case(data, "x.json")


def test_converters_lead_from_the_oldest_version_to_now_without_a_gap() -> None:
    oldest = min(CONVERTERS, default=VERSION)
    assert sorted(CONVERTERS) == list(range(oldest, VERSION))
