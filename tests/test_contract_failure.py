"""Failures and events: what a run writes down can always be written, and read by later readers."""

import msgspec

from treeproof.contract.event import CaseDrawn, Checked, Event
from treeproof.contract.failure import COLUMNS, IDENTITIES, Cell, Failure, Recovered

FAILURE = Failure(
    identity="visibility",
    kind="reads-sibling",
    evidence="measured",
    stage="attend",
    message="row 2 reads row 1",
    request=0,
    row=2,
    column=8,
)


def test_the_columns_are_the_five_identities_and_two_beside_them() -> None:
    assert (*IDENTITIES, "output", "contract") == COLUMNS
    assert IDENTITIES == ("candidate", "position", "visibility", "traversal", "kv")


def test_two_failures_of_one_kind_have_one_key() -> None:
    other = msgspec.structs.replace(FAILURE, message="row 5 reads row 4", row=5)
    assert other.key == FAILURE.key == ("visibility", "reads-sibling")
    assert msgspec.structs.replace(FAILURE, kind="misses-ancestor").key != FAILURE.key


def test_text_that_no_file_can_hold_is_written_in_escapes() -> None:
    path = b"/tmp/\xff.so".decode("utf-8", "surrogateescape")
    failure = msgspec.structs.replace(FAILURE, message=f"cannot load {path} ü", actual=path)
    assert failure.message == "cannot load /tmp/\\udcff.so ü"
    assert failure.actual == "/tmp/\\udcff.so"
    checked = Checked(case="0" * 20, backend="mine", cells=(), failures=(failure,))
    assert msgspec.json.decode(msgspec.json.encode(checked), type=Event) == checked


def test_every_part_of_an_event_survives_fields_of_a_later_writer() -> None:
    checked = Checked(
        case="0" * 20,
        backend="mine",
        cells=(
            Cell(identity="kv", evidence="declared", status="pass", stage="build"),
        ),
        failures=(FAILURE,),
        recovered=(
            Recovered(identity="kv", evidence="measured", what="rows", values=((0, None), (1,))),
        ),
    )  # fmt: skip
    document = msgspec.to_builtins(checked)
    for part in (document, *(document[name][0] for name in ("cells", "failures", "recovered"))):
        part["later"] = {"x": 1}
    assert msgspec.json.decode(msgspec.json.encode(document), type=Event) == checked


def test_events_are_told_apart_by_their_type() -> None:
    drawn = CaseDrawn(case="0" * 20, unit="a/0", tags=("root-only",), rows=(1,), prefixes=(0,))
    assert msgspec.to_builtins(drawn)["type"] == "case"
    assert msgspec.json.decode(msgspec.json.encode(drawn), type=Event) == drawn
