"""Case and reproducer files: what is written reads back, and what is no such file is a FileError."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treeproof.contract import json_text, wire
from treeproof.contract.case import (
    DTYPES,
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
from treeproof.contract.wire import (
    FailureKey,
    FileError,
    Reproducer,
    decode_case,
    decode_reproducer,
    encode_case,
    encode_reproducer,
    read_case_file,
    write_atomically,
)

steadily = settings(derandomize=True, database=None, deadline=None)

CASE = VerifyCase(
    requests=(
        Request(
            tree=CandidateTree(tokens=(5, 6, 7), parents=(-1, 0, 0)),
            row_of_node=(0, 2, 1),
            prefix_len=2,
            prefix_tokens=(3, 4),
        ),
        Request(tree=CandidateTree(tokens=(1,), parents=(-1,)), row_of_node=(0,), prefix_len=0),
    ),
    shape=AttentionShape(
        num_q_heads=2, num_kv_heads=1, head_dim=8, v_head_dim=8, visibility=Window(width=3)
    ),
    layout=KVLayout(page_size=2, num_slots=32, order="shuffled"),
    mask=MaskLayout(mode=MaskMode.QLEN_ONLY),
    seed=11,
)
REPRODUCER = Reproducer(
    case=CASE,
    backend="my_kernel.py:mine",
    failure=FailureKey(identity="visibility", kind="reads-sibling"),
    message="row 2 reads row 1",
    seed=7,
    device="cuda:1",
    versions={"torch": "2.13.0"},
)


@st.composite
def trees(draw: st.DrawFn) -> CandidateTree:
    parents = [-1]
    for node in range(1, draw(st.integers(1, 12))):
        parents.append(draw(st.integers(0, node - 1)))
    first = draw(st.integers(0, 2**31 - 13))
    return CandidateTree(tokens=tuple(range(first, first + len(parents))), parents=tuple(parents))


@st.composite
def requests(draw: st.DrawFn) -> Request:
    tree = draw(trees())
    prefix = draw(st.integers(0, 9))
    tokens = st.lists(st.integers(0, 2**31 - 1), min_size=prefix, max_size=prefix)
    return Request(
        tree=tree,
        row_of_node=(0, *draw(st.permutations(range(1, len(tree))))),
        prefix_len=prefix,
        prefix_tokens=tuple(draw(st.just(()) | tokens)),
        pad_rows=draw(st.integers(0, 3)),
    )


@st.composite
def cases(draw: st.DrawFn) -> VerifyCase:
    window = draw(st.none() | st.integers(1, 20))
    page = draw(st.sampled_from((1, 2, 16)))
    slots = page * draw(st.integers(-(-150 // page), 256 // page))
    return VerifyCase(
        requests=tuple(draw(st.lists(requests(), min_size=1, max_size=4))),
        shape=AttentionShape(
            num_q_heads=4,
            num_kv_heads=draw(st.sampled_from((1, 2, 4))),
            head_dim=draw(st.sampled_from((8, 64))),
            v_head_dim=draw(st.integers(8, 1024)),
            dtype=draw(st.sampled_from(DTYPES)),
            scale=draw(st.none() | st.floats(1e-300, 1e300)),
            rotary=draw(st.none() | st.floats(1.5, 1e300)),
            visibility=Full() if window is None else Window(width=window),
        ),
        layout=KVLayout(
            page_size=page,
            num_slots=slots,
            order=draw(st.sampled_from(("contiguous", "reversed", "interleaved", "shuffled"))),
            pad_slot=draw(st.sampled_from((0, -1))),
            page_table_pad=draw(st.integers(-1, slots - 1)),
            evicted=window is not None and draw(st.booleans()),
        ),
        mask=MaskLayout(
            mode=draw(st.sampled_from(MaskMode)),
            slack=draw(st.integers(0, 99)),
            fill_prefix=draw(st.booleans()),
        ),
        seed=draw(st.integers(0, 2**63 - 1)),
        score_spread=draw(st.floats(1e-9, 64)),
    )


@steadily
@given(cases())
def test_a_case_written_and_read_is_the_same_case(case: VerifyCase) -> None:
    read = decode_case(encode_case(case))
    assert read == case
    assert read.id == case.id


@settings(steadily, max_examples=20)
@given(cases(), st.text(st.characters(exclude_categories=["Cs"])))
def test_a_reproducer_written_and_read_is_the_same(case: VerifyCase, text: str) -> None:
    reproducer = Reproducer(
        case=case,
        backend="cascade",
        failure=FailureKey(identity="kv", kind=text),
        message=text,
        versions={text: text},
    )
    assert decode_reproducer(encode_reproducer(reproducer)) == reproducer


def test_a_file_says_its_schema_and_version_first(tmp_path: Path) -> None:
    assert encode_case(CASE).startswith(b'{"schema":"treeproof.case","version":1,"requests":[')
    assert encode_reproducer(REPRODUCER).startswith(b'{"schema":"treeproof.reproducer","version":1')
    for value, data in ((CASE, encode_case(CASE)), (REPRODUCER, encode_reproducer(REPRODUCER))):
        write_atomically(tmp_path / "a.json", data)
        assert read_case_file(tmp_path / "a.json") == value


def spoiled(*path: str | int, to: object) -> bytes:
    """The case's file with one value set to another."""
    document = json.loads(encode_case(CASE))
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = to
    return json.dumps(document).encode()


def without(*path: str | int) -> bytes:
    document = json.loads(encode_case(CASE))
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    del inner[path[-1]]
    return json.dumps(document).encode()


VALID = encode_case(CASE).rstrip()
ORDERS = "contiguous, reversed, interleaved, shuffled"
MODES = "0 (FULL_MASK), 1 (QLEN_ONLY), 2 (QLEN_ONLY_BITPACKING)"
BAD: list[tuple[str, bytes, str]] = [
    ("empty", b"", "line 1, column 1: Expecting value"),
    ("truncated", VALID[:-1], f"line 1, column {len(VALID)}: Expecting ',' delimiter"),
    ("more after the end", VALID + b"{}", f"line 1, column {len(VALID) + 1}: Extra data"),
    (
        "byte-order mark",
        b"\xef\xbb\xbf" + VALID,
        "line 1, column 1: Unexpected UTF-8 BOM (decode using utf-8-sig)",
    ),
    ("UTF-16", VALID.decode().encode("utf-16"), "not UTF-8 at byte 0"),
    (
        "not UTF-8",
        VALID.replace(b"shuffled", b"shuff\xe4led"),
        f"not UTF-8 at byte {VALID.index(b'shuffled') + 5}",
    ),
    ("deep arrays", b"[" * 100_000, "nested too deeply"),
    ("deep objects", b'{"a":' * 100_000, "nested too deeply"),
    ("closed deep arrays", b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
    ("a list", b"[]", "a JSON object is expected, found list"),
    ("a number", b"7", "a JSON object is expected, found int"),
    ("null", b"null", "a JSON object is expected, found NoneType"),
    ("no schema", without("schema"), "schema is None; accepted are treeproof.case"),
    (
        "wrong schema",
        spoiled("schema", to="treeproof.run"),
        "schema is 'treeproof.run'; accepted are treeproof.case",
    ),
    ("schema is a list", spoiled("schema", to=[]), "schema is []; accepted are treeproof.case"),
    (
        "schema is another file's",
        spoiled("schema", to="treeproof.reproducer"),
        "schema is 'treeproof.reproducer'; accepted are treeproof.case",
    ),
    ("no version", without("version"), "version is None; a whole number is expected"),
    ("version in words", spoiled("version", to="1"), "version is '1'; a whole number is expected"),
    ("version true", spoiled("version", to=True), "version is True; a whole number is expected"),
    ("version 1.0", spoiled("version", to=1.0), "version is 1.0; a whole number is expected"),
    ("older", spoiled("version", to=0), "version is 0; this treeproof reads 1 to 1"),
    ("newer", spoiled("version", to=2), "version is 2; this treeproof reads 1 to 1"),
    ("unknown field", spoiled("probe", to=1), "Object contains unknown field `probe`"),
    (
        "unknown field inside",
        spoiled("layout", "pagesize", to=1),
        "Object contains unknown field `pagesize` - at `$.layout`",
    ),
    (
        "unknown field in words a terminal acts upon",
        spoiled("layout", "\x1b[2J", to=1),
        "Object contains unknown field `\\x1b[2J` - at `$.layout`",
    ),
    (
        "missing field",
        without("requests", 1, "tree"),
        "Object missing required field `tree` - at `$.requests[1]`",
    ),
    ("duplicate key", VALID[:-1] + b',"seed":1}', "duplicate key 'seed'"),
    (
        "duplicate key inside",
        VALID.replace(b'"page_size":2', b'"page_size":2,"page_size":2'),
        "duplicate key 'page_size' - at `$.layout`",
    ),
    (
        "NaN",
        VALID.replace(b'"seed":11', b'"score_spread":NaN'),
        "NaN is not a number that JSON knows - at `$.score_spread`",
    ),
    (
        "Infinity",
        VALID.replace(b'"width":3', b'"width":Infinity'),
        "Infinity is not a number that JSON knows - at `$.shape.visibility.width`",
    ),
    (
        "-Infinity",
        VALID.replace(b'"row_of_node":[0,2', b'"row_of_node":[0,-Infinity'),
        "-Infinity is not a number that JSON knows - at `$.requests[0].row_of_node[1]`",
    ),
    (
        "a number of 5000 digits",
        VALID.replace(b'"tokens":[5,6', b'"tokens":[5,' + b"6" * 5000),
        "a number of 5000 digits, at most 20 are accepted - at `$.requests[0].tree.tokens[1]`",
    ),
    (
        "a float of 5000 digits",
        VALID.replace(b'"width":3', b'"width":3.' + b"3" * 5000),
        "Expected `int`, got `float` - at `$.shape.visibility.width`",
    ),
    (
        "a float that is infinite",
        VALID.replace(b'"seed":11', b'"score_spread":1e999'),
        "1e999 is too large - at `$.score_spread`",
    ),
    (
        "more than 64 bits",
        spoiled("seed", to=2**64),
        "seed is 18446744073709551616: accepted are 0 to 2**63 - 1",
    ),
    (
        "more than 64 bits inside",
        spoiled("requests", 1, "prefix_len", to=10**19),
        "prefix_len is 10000000000000000000: accepted are 0 to 1048576 - at `$.requests[1]`",
    ),
    (
        "bool for int",
        spoiled("requests", 0, "tree", "tokens", 1, to=True),
        "Expected `int`, got `bool` - at `$.requests[0].tree.tokens[1]`",
    ),
    (
        "string for int",
        spoiled("requests", 0, "prefix_len", to="2"),
        "Expected `int`, got `str` - at `$.requests[0].prefix_len`",
    ),
    (
        "float for int",
        spoiled("layout", "num_slots", to=32.0),
        "Expected `int`, got `float` - at `$.layout.num_slots`",
    ),
    (
        "string for float",
        spoiled("shape", "scale", to="1"),
        "Expected `float | null`, got `str` - at `$.shape.scale`",
    ),
    (
        "null for object",
        spoiled("shape", to=None),
        "Expected `object`, got `null` - at `$.shape`",
    ),
    (
        "object for list",
        spoiled("requests", to={}),
        "Expected `array`, got `object` - at `$.requests`",
    ),
    (
        "cycle",
        spoiled("requests", 0, "tree", "parents", to=[-1, 2, 1]),
        "parents[1] is 2: accepted are 0 to 0 (a parent is numbered before its child) - at "
        "`$.requests[0].tree`",
    ),
    (
        "unknown dtype",
        spoiled("shape", "dtype", to="fp8"),
        "dtype is 'fp8': accepted are float32, bfloat16, float16 - at `$.shape`",
    ),
    (
        "unknown order",
        spoiled("layout", "order", to="zigzag"),
        f"Invalid enum value 'zigzag' - at `$.layout.order`: accepted are {ORDERS}",
    ),
    (
        "unknown mask mode",
        spoiled("mask", "mode", to=3),
        f"Invalid enum value 3 - at `$.mask.mode`: accepted are {MODES}",
    ),
    (
        "unknown visibility",
        spoiled("shape", "visibility", "kind", to="sink"),
        "Invalid value 'sink' - at `$.shape.visibility.kind`: accepted are full, window",
    ),
]


@pytest.mark.parametrize(("data", "message"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_what_is_no_case_is_refused_with_file_field_and_row(data: bytes, message: str) -> None:
    decode_case(VALID)
    with pytest.raises(FileError) as refusal:
        decode_case(data, "x.json")
    assert str(refusal.value) == f"x.json: {message}"


def of_reproducer(**fields: object) -> bytes:
    document: dict[str, Any] = json.loads(encode_reproducer(REPRODUCER))
    return json.dumps(document | fields).encode()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"failure": {"identity": "sight", "kind": "x"}},
            "Invalid enum value 'sight' - at `$.failure.identity`: accepted are candidate, position, "
            "visibility, traversal, kv, output, contract",
        ),
        ({"failure": {"identity": "kv"}}, "Object missing required field `kind` - at `$.failure`"),
        ({"backend": ""}, "backend is empty: a name, module:name or a file is expected"),
        ({"backend": None}, "Expected `str`, got `null` - at `$.backend`"),
        ({"seed": -1}, "seed is -1: accepted are 0 to 2**63 - 1"),
        ({"seed": 2**63}, f"seed is {2**63}: accepted are 0 to 2**63 - 1"),
        ({"device": "cuda:x"}, "device is 'cuda:x': accepted are cpu, cuda and cuda:N"),
        ({"device": "cpu\n"}, "device is 'cpu\\n': accepted are cpu, cuda and cuda:N"),
        ({"versions": {"torch": 2}}, "Expected `str`, got `int` - at `$.versions[...]`"),
        ({"message": "\ud800"}, "text with half a surrogate pair - at `$.message`"),
        ({"versions": {"\udfff": ""}}, "text with half a surrogate pair - at `$.versions.\\udfff`"),
        ({"case": {"layout": 1}}, "Expected `object`, got `int` - at `$.case.layout`"),
        ({"schema": "treeproof.case"}, "schema is 'treeproof.case'; accepted are treeproof.reproducer"),
    ],
)  # fmt: skip
def test_what_is_no_reproducer_is_refused_with_file_and_field(
    fields: dict[str, object], message: str
) -> None:
    decode_reproducer(of_reproducer())
    with pytest.raises(FileError) as refusal:
        decode_reproducer(of_reproducer(**fields), "x.json")
    assert str(refusal.value) == f"x.json: {message}"


def test_a_whole_surrogate_pair_is_text() -> None:
    assert decode_reproducer(of_reproducer(message="\U0001f333")).message == "\U0001f333"


def test_neither_kind_of_file_says_both_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"{}")
    with pytest.raises(FileError) as refusal:
        read_case_file(path)
    assert str(refusal.value) == (
        f"{path}: schema is None; accepted are treeproof.case, treeproof.reproducer"
    )


def test_a_long_message_is_cut_and_still_ends_with_the_place() -> None:
    with pytest.raises(FileError) as refusal:
        decode_case(spoiled("layout", "order", to="x" * 100_000), "x.json")
    assert len(str(refusal.value)) < 500
    assert str(refusal.value).endswith(f"xxx' - at `$.layout.order`: accepted are {ORDERS}")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "nowhere.json", "{}: No such file or directory"),
        (lambda folder: folder, "{}: Is a directory"),
        (lambda folder: Path("/dev/zero"), "{}: more than the 1000 bytes that are accepted"),
        (lambda folder: _file(folder, 1001), "{}: more than the 1000 bytes that are accepted"),
        (lambda folder: _file(folder, 1000), "{}: line 1, column 1: Expecting value"),
        (lambda folder: folder / "a\0b", "{!r}: embedded null byte"),
    ],
)
def test_what_is_no_readable_file_is_a_file_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], Path],
    message: str,
) -> None:
    monkeypatch.setattr(wire, "MAX_BYTES", 1000)
    path = make(tmp_path)
    with pytest.raises(FileError) as refusal:
        read_case_file(path)
    assert str(refusal.value) == message.format(str(path))


def _file(folder: Path, size: int) -> Path:
    (folder / "x.json").write_bytes(b"x" * size)
    return folder / "x.json"


def test_too_many_bytes_are_refused_before_they_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "MAX_BYTES", len(VALID))
    assert decode_case(VALID) == CASE
    monkeypatch.setattr(json_text, "MAX_BYTES", len(VALID) - 1)
    with pytest.raises(FileError) as refusal:
        decode_case(VALID, "x.json")
    assert str(refusal.value) == (
        f"x.json: {len(VALID)} bytes, at most {len(VALID) - 1} are accepted"
    )


@settings(steadily, max_examples=400)
@given(st.data())
def test_a_file_with_changed_bytes_is_a_case_or_a_file_error(data: st.DataObject) -> None:
    changed = bytearray(VALID)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(changed) - 1))
        kind = data.draw(st.sampled_from(("set", "digit", "insert", "cut", "swap")))
        if kind == "set":
            changed[at] = data.draw(st.integers(0, 255))
        elif kind == "digit":
            digits = [i for i, byte in enumerate(changed) if 48 <= byte <= 57]
            if digits:
                changed[data.draw(st.sampled_from(digits))] = data.draw(st.integers(48, 57))
        elif kind == "insert":
            changed[at:at] = data.draw(
                st.sampled_from((b"9" * 30, b"-", b".5", b"null", b"[", b'"'))
            )
        elif kind == "cut":
            del changed[at : at + data.draw(st.integers(1, 30))]
            if not changed:
                break
        else:
            other = data.draw(st.integers(0, len(changed) - 1))
            changed[at], changed[other] = changed[other], changed[at]
    read = decoded(bytes(changed))
    if isinstance(read, FileError):
        assert str(read).startswith("x.json: ")
    else:
        assert decode_case(encode_case(read)).id == read.id


def decoded(data: bytes) -> VerifyCase | FileError:
    try:
        return decode_case(data, "x.json")
    except FileError as error:
        return error


def test_a_written_file_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    write_atomically(path, b"one")
    write_atomically(path, b"two")
    assert path.read_bytes() == b"two"
    with pytest.raises(TypeError):
        write_atomically(path, "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"two"
    assert [file.name for file in path.parent.iterdir()] == ["a.json"]


def test_a_written_file_is_as_readable_as_any_other(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"")
    (tmp_path / "b").write_bytes(b"")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode
