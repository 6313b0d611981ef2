"""The ledger of known failures as a file: read whole, or refused by entry, field and value."""

from __future__ import annotations

import importlib.metadata
from datetime import date
from pathlib import Path

import pytest
from ledger_scene import entry, write_ledger
from test_engine_runner import make_case

from treeproof.contract.known_failure import KnownFailure, Scope
from treeproof.contract.wire import FileError
from treeproof.engine.ledger import Ledger
from treeproof.engine.ledger_file import read_entries
from treeproof.engine.ledger_versions import elsewhere, read_versions


def test_an_entry_is_read_with_all_its_fields(tmp_path: Path) -> None:
    path = write_ledger(
        tmp_path,
        entry(expires="2031-05-09"),
        """
        [[known]]
        backend = "my_kernel.py"
        identity = "contract"
        kind = "crash"
        when = { dtype = ["float16", "bfloat16"], window = true, page_size = [1, "16..64"], topk = "2.." }
        reason = "see https://bugs.example.org/7"
        expires = "2031-05-09"
        class = "quarantined"
        """,
        entry(cause='"causal-mask"', expires="2031-05-09"),
    )
    plain, deadly, traced = read_entries(path)
    assert plain == KnownFailure(
        number=1,
        backend="bad",
        identity="visibility",
        kind="reads-sibling",
        reason="the mask goes by rows: some/engine#12",
        expires=date(2031, 5, 9),
    )
    assert (deadly.number, deadly.treatment, deadly.backend) == (2, "quarantined", "my_kernel.py")
    assert deadly.when == Scope(
        dtype=("float16", "bfloat16"),
        window=True,
        page_size=((1, 1), (16, 64)),
        topk=((2, 1 << 40),),
    )
    assert (traced.cause, traced.treatment) == ("causal-mask", "tolerated")


def test_an_empty_file_is_an_empty_ledger(tmp_path: Path) -> None:
    assert read_entries(write_ledger(tmp_path)) == ()


BAD = {
    "a reason without a tracker": (
        {"reason": '"it just fails"'},
        "entry 2: reason is 'it just fails': a reference to a tracker is expected in it: a URL, or "
        "owner/repo#123, or the words not reported",
    ),
    "a number alone is no tracker": ({"reason": '"#12"'}, "entry 2: reason is '#12'"),
    "no reason": ({"reason": ""}, "entry 2: the field reason is missing"),
    "no date": ({"expires": ""}, "entry 2: the field expires is missing"),
    "a month too many": (
        {"expires": '"2031-13-01"'},
        "entry 2: expires is '2031-13-01': a date such as 2027-01-31 is expected",
    ),
    "a time of day": ({"expires": "2031-01-01T00:00:00"}, "entry 2: expires is datetime"),
    "a number as a date": ({"expires": "20310101"}, "entry 2: expires is 20310101"),
    "an unknown field": (
        {"exprires": '"2031-01-01"'},
        "entry 2: unknown field 'exprires'; accepted are backend, identity, kind, reason, expires, "
        "class, cause, when, finding",
    ),
    "an unknown identity": (
        {"identity": '"visibilty"'},
        "entry 2: identity is 'visibilty': accepted are candidate, position, visibility, traversal, "
        "kv, output, contract",
    ),
    "an unknown class": (
        {"class": '"ignored"'},
        "entry 2: class is 'ignored': accepted are tolerated, quarantined",
    ),
    "a misspelt kind": (
        {"kind": '"reads-siblings"'},
        "entry 2: kind is 'reads-siblings': there is no such kind of failure; did you mean "
        "reads-sibling?",
    ),
    "a kind of nothing": (
        {"kind": '"Q"'},
        "entry 2: kind is 'Q': there is no such kind of failure, as the first line of a failure shows it",
    ),
    "an empty kind": ({"kind": '" "'}, "entry 2: kind is ' ': text is expected"),
    "a quarantine of wrong numbers": (
        {"class": '"quarantined"'},
        "entry 2, which is quarantined: identity is 'visibility': accepted are contract",
    ),
    "a quarantine of a wrong shape": (
        {"class": '"quarantined"', "identity": '"contract"', "kind": '"wrong-shape"'},
        "entry 2, which is quarantined: kind is 'wrong-shape': accepted are crash, hang, raises",
    ),
    "an unknown predicate": (
        {"when": "{ heads = 4 }"},
        "entry 2: when: unknown field 'heads'; accepted are dtype, device, mask_mode, window, "
        "page_size, head_dim, requests, rows, topk, prefix",
    ),
    "an unknown dtype": (
        {"when": '{ dtype = "fp8" }'},
        "entry 2: when: dtype is 'fp8': accepted are float32, bfloat16, float16",
    ),
    "an empty list": ({"when": "{ dtype = [] }"}, "entry 2: when: dtype is []"),
    "an empty span": ({"when": '{ rows = "8..2" }'}, "entry 2: when: rows is '8..2': the span is"),
    "no span": ({"when": '{ rows = ">2" }'}, "entry 2: when: rows is '>2': accepted are whole"),
    "a span of anything": ({"when": '{ rows = ".." }'}, "entry 2: when: rows is '..'"),
    "a window of words": ({"when": '{ window = "yes" }'}, "entry 2: when: window is 'yes'"),
    "versions of words": ({"versions": '">=1"'}, "entry 2: versions is '>=1': a table such as"),
    "no releases": ({"versions": '{ a = "1.0" }'}, "entry 2: versions is {'a': '1.0'}: a is '1.0'"),
    "any release": ({"versions": '{ a = "" }'}, "entry 2: versions is {'a': ''}: a is ''"),
    "no distribution": (
        {"versions": '{ "a b" = ">1" }'},
        "entry 2: versions is {'a b': '>1'}: 'a b'",
    ),
    "no table": ({"when": '"bfloat16"'}, "entry 2: when is 'bfloat16': a table of dtype"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_used_is_refused_by_entry_field_and_accepted_values(
    name: str, tmp_path: Path
) -> None:
    changes, words = BAD[name]
    path = write_ledger(tmp_path, entry(), entry(**changes))
    with pytest.raises(FileError) as caught:
        read_entries(path)
    assert str(caught.value).startswith(f"{path}: {words}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[known]]\nbackend = ", "known.toml: "),
        ("known = 3\n", "known.toml: known is no array of tables"),
        ("version = 1\n", "known.toml: unknown key 'version'; accepted are [[known]] tables"),
        (entry(kind='"*"'), "entry 1: kind is '*': accepted where the entry has a cause"),
        (
            entry(kind='"*"', finding='"a"', when='{ device = ["cuda"] }'),
            "entry 1: kind is '*': accepted where the entry has a cause, or has a finding",
        ),
        (entry(finding='"gone"'), "entry 1: finding is 'gone': the file has no [[finding]] of"),
    ],
)
def test_what_is_no_ledger_is_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(text)
    with pytest.raises(FileError, match=r".") as caught:
        read_entries(path)
    assert words in str(caught.value)


def test_a_ledger_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        read_entries(tmp_path / "none.toml")


RELEASES = [
    ({"kernel": ">=1.4,<1.6"}, ""),
    ({"kernel": ">=1.5.1"}, "kernel is 1.5.0rc2, not >=1.5.1"),
    ({"kernel": ">=1.5.0"}, "kernel is 1.5.0rc2, not >=1.5.0"),
    ({"kernel": "<2", "gone": ">=1"}, "gone is not installed"),
]


@pytest.mark.parametrize(("versions", "why"), RELEASES)
def test_an_entry_holds_for_the_releases_that_it_names(versions: dict[str, str], why: str) -> None:
    def installed(package: str) -> str:
        if package != "kernel":
            raise importlib.metadata.PackageNotFoundError(package)
        return "1.5.0rc2"

    assert elsewhere(read_versions(versions), installed) == why


SCOPES = [
    (Scope(), True),
    (Scope(dtype=("float32",)), True),
    (Scope(dtype=("bfloat16", "float16")), False),
    (Scope(device=("cpu",)), True),
    (Scope(device=("cuda",)), False),
    (Scope(mask_mode=("FULL_MASK",)), True),
    (Scope(mask_mode=("QLEN_ONLY",)), False),
    (Scope(window=False), True),
    (Scope(window=True), False),
    (Scope(page_size=((4, 4),)), True),
    (Scope(page_size=((1, 3), (5, 64))), False),
    (Scope(head_dim=((16, 16),)), True),
    (Scope(head_dim=((17, 64),)), False),
    (Scope(requests=((1, 1),)), True),
    (Scope(requests=((2, 9),)), False),
    (Scope(rows=((6, 6),)), True),
    (Scope(rows=((7, 9),)), False),
    (Scope(topk=((2, 2),)), True),
    (Scope(topk=((3, 9),)), False),
    (Scope(prefix=((0, 9),)), True),
    (Scope(prefix=((10, 99),)), False),
    (Scope(dtype=("float32",), prefix=((10, 99),)), False),
]


@pytest.mark.parametrize(("scope", "inside"), SCOPES, ids=[repr(scope) for scope, _ in SCOPES])
def test_a_scope_is_all_of_its_predicates(scope: Scope, inside: bool) -> None:
    """A binary tree of 6 nodes after 9 keys, pages of 4, float32, 16 lanes, no window, one request."""
    assert scope.covers(make_case(0), "cpu") == inside


def test_an_entry_holds_on_its_last_day_and_not_on_the_next(tmp_path: Path) -> None:
    (known,) = read_entries(write_ledger(tmp_path, entry(expires="2031-05-09")))
    assert [known.days_left(date(2031, 5, day)) for day in (8, 9, 10)] == [2, 1, 0]


def test_a_backend_that_nobody_has_is_refused_and_a_file_that_is_there_is_not(
    tmp_path: Path,
) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text("")
    for name in ("cascade", str(kernel), f"{kernel}:any", "some.module:name"):
        path = write_ledger(tmp_path, entry(backend=f"'{name}'"))
        Ledger(read_entries(path)).require_known_backends(path, ())
    for name in ("cascad", str(tmp_path / "gone.py")):
        path = write_ledger(tmp_path, entry(backend=f"'{name}'"))
        with pytest.raises(FileError) as caught:
            Ledger(read_entries(path)).require_known_backends(path, ())
        assert f"entry 1: backend is {name!r}: accepted are " in str(caught.value)
        assert "cascade" in str(caught.value)
