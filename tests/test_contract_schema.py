"""The JSON Schema given out: sound, and of one mind with the files that are written and refused."""

import json
import re
from typing import Any

import pytest

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
from treeproof.contract.wire import (
    FailureKey,
    Reproducer,
    encode_case,
    encode_reproducer,
    json_schema,
)

SCHEMA = json_schema()
CASE = VerifyCase(
    requests=(
        Request(
            tree=CandidateTree(tokens=(5, 6, 7), parents=(-1, 0, 0)),
            row_of_node=(0, 2, 1),
            prefix_len=2,
            prefix_tokens=(3, 4),
        ),
    ),
    shape=AttentionShape(
        num_q_heads=2,
        num_kv_heads=1,
        head_dim=8,
        v_head_dim=8,
        scale=0.5,
        dtype="float16",
        visibility=Window(width=3),
    ),
    layout=KVLayout(page_size=2, num_slots=32, order="shuffled"),
    mask=MaskLayout(mode=MaskMode.QLEN_ONLY),
)
REPRODUCER = Reproducer(
    case=CASE,
    backend="cascade",
    failure=FailureKey(identity="kv", kind="misplaced"),
    versions={"torch": "2"},
)

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
CHECKED = {
    "$ref", "anyOf", "type", "const", "enum", "properties", "required", "additionalProperties",
    "items", "prefixItems", "minItems", "maxItems",
}  # fmt: skip
DESCRIPTIVE = {"$schema", "$defs", "title", "description", "default", "discriminator"}


def accepts(schema: dict[str, Any], value: Any) -> bool:
    """A validator of the words that our schema uses; an unknown word is an error of this test."""
    assert schema.keys() <= CHECKED | DESCRIPTIVE, schema.keys() - CHECKED - DESCRIPTIVE
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return accepts(SCHEMA["$defs"][name], value)
    if "anyOf" in schema and not any(accepts(option, value) for option in schema["anyOf"]):
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "type" in schema:
        kinds = TYPES[schema["type"]]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            return False
    if isinstance(value, dict):
        known = schema.get("properties", {})
        rest = schema.get("additionalProperties", True)
        return all(name in value for name in schema.get("required", [])) and all(
            accepts(known[name], item)
            if name in known
            else (accepts(rest, item) if isinstance(rest, dict) else rest)
            for name, item in value.items()
        )
    if isinstance(value, list) and "items" in schema:
        return all(accepts(schema["items"], item) for item in value)
    return True


def test_the_schema_names_its_dialect_and_its_version() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["title"] == "treeproof.case and treeproof.reproducer, version 1"
    assert [option["title"] for option in SCHEMA["anyOf"]] == [
        "treeproof.case",
        "treeproof.reproducer",
    ]
    json.dumps(SCHEMA)


def test_every_reference_leads_somewhere_and_every_definition_is_used() -> None:
    text = json.dumps(SCHEMA)
    for name in SCHEMA["$defs"]:
        assert f'"#/$defs/{name}"' in text
    for reference in re.findall(r'"\$ref": "([^"]*)"', text):
        assert reference.removeprefix("#/$defs/") in SCHEMA["$defs"]


def test_files_that_are_written_are_accepted() -> None:
    assert accepts(SCHEMA, json.loads(encode_case(CASE)))
    assert accepts(SCHEMA, json.loads(encode_reproducer(REPRODUCER)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), "treeproof.run"),
        (("version",), 2),
        (("probe",), 1),
        (("requests",), {}),
        (("requests", 0, "prefix_len"), "2"),
        (("requests", 0, "tree", "tokens", 1), True),
        (("requests", 0, "tree", "links"), []),
        (("layout", "order"), "zigzag"),
        (("layout", "evicted"), 1),
        (("shape", "dtype"), "fp8"),
        (("shape", "visibility", "kind"), "sink"),
        (("mask", "mode"), 3),
    ],
)
def test_files_that_are_refused_are_not_accepted(path: tuple[str | int, ...], value: Any) -> None:
    document = json.loads(encode_case(CASE))
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    assert not accepts(SCHEMA, document)


@pytest.mark.parametrize("name", ["schema", "version", "requests", "shape", "layout"])
def test_what_a_file_must_have_is_required(name: str) -> None:
    document = json.loads(encode_case(CASE))
    del document[name]
    assert not accepts(SCHEMA, document)
