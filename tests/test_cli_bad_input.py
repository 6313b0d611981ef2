"""Bad input: exit code 2, naming the file, the field, the row, and what is accepted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import treeproof
from treeproof.cli import main
from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.tree import CandidateTree
from treeproof.contract.wire import FailureKey, Reproducer, encode_case, encode_reproducer
from treeproof.engine import gpus

CASE = VerifyCase(
    requests=(
        Request(
            tree=CandidateTree(tokens=(5, 6, 7), parents=(-1, 0, 0)),
            row_of_node=(0, 1, 2),
            prefix_len=2,
        ),
    ),
    shape=AttentionShape(num_q_heads=2, num_kv_heads=1, head_dim=8, v_head_dim=8),
    layout=KVLayout(page_size=1, num_slots=16),
)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs one command line in an empty folder; (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        captured = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, captured.out, captured.err

    return run


Run = Callable[..., tuple[int, str, str]]


def test_an_unknown_backend_lists_the_known_and_guesses(run: Run) -> None:
    code, out, err = run("check", "cascde")
    assert (code, out) == (2, "")
    assert err.startswith("Error: no backend named 'cascde'; known are cascade, direct-mask, ")
    assert err.endswith("; did you mean cascade?\n")


@pytest.mark.parametrize("name", ["my_kernel", "my-kernel"])
def test_a_file_of_that_name_is_meant_where_there_is_one(run: Run, name: str) -> None:
    Path("my_kernel.py").write_text("")
    code, out, err = run("check", name)
    assert (code, out) == (2, "")
    assert err.endswith("; did you mean my_kernel.py?\n")


def test_a_prefix_without_shapes_to_try_it_at_is_refused(run: Run) -> None:
    assert run("check", "--prefix", "5") == (
        2,
        "",
        "Error: --prefix is the length that shapes of --trees are tried at: give these\n",
    )


def test_a_backend_file_that_is_not_there_is_named(run: Run) -> None:
    assert run("check", "my_kernel.py") == (
        2,
        "",
        "Error: backend file my_kernel.py: no such file\n",
    )


def test_a_slip_in_the_imports_of_a_backend_file_names_its_line(run: Run) -> None:
    Path("my_kernel.py").write_text("import treeproof\nimport tritn\n")
    code, out, err = run("check", "my_kernel.py", "--in-process")
    assert (code, out) == (2, "")
    assert "fails on import: ModuleNotFoundError: No module named 'tritn' (" in err
    assert err.endswith("my_kernel.py, line 2); pip install tritn, or mend its name\n")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--seed", "x", "--seed is 'x': accepted are whole numbers from 0"),
        ("--profile", "quik", "--profile is 'quik': accepted are quick, ci, gpu, nightly"),
        ("--identity", "visible", "did you mean visibility?"),
        ("--dtype", "fp8", "--dtype is 'fp8': accepted are float32, bfloat16, float16"),
        ("--time", "later", "--time is 'later': accepted are times above 0"),
        ("--prefix", "-1", "--prefix is '-1': accepted are 0 to 1048576"),
        ("--workers", "999999", "--workers is '999999': accepted are 0 to 512"),
        ("--reports", "html", "No such option"),
    ],
)
def test_a_wrong_option_says_what_is_accepted(run: Run, option: str, value: str, said: str) -> None:
    code, _, err = run("check", option, value)
    assert code == 2
    assert said in err


def test_a_wrong_key_in_the_configuration_file_is_a_usage_error(run: Run) -> None:
    Path("pyproject.toml").write_text("[tool.treeproof]\nsede = 1\n")
    code, _, err = run("check")
    assert code == 2
    assert "pyproject.toml: unknown key 'sede'; accepted are backend, identity" in err


FAILURE = Reproducer(
    case=CASE,
    backend="direct-mask",
    failure=FailureKey(identity="visibility", kind="reads-sibling"),
)
NO_GPU = re.compile(
    r"(ERROR {2}|Error: )device cuda: torch \S+ sees no CUDA device; treeproof doctor .*"
)


@pytest.mark.parametrize(
    ("words", "device"),
    [
        ("check", "cuda"),
        ("fuzz -x", "cuda"),
        ("reduce case.json", "cuda"),
        ("trace case.json --row 1", "cuda"),
        ("trace case.json --row 1", "cuda:MIG-x"),
        ("trace case.json --row 1 --in-process", "cuda"),
        ("replay case.json", "cuda"),
        ("replay case.json", "cuda:9"),
        ("replay case.json --in-process", "cuda"),
        ("replay case.json --junit junit.xml", "cuda"),
    ],
)
def test_every_command_says_in_one_line_that_there_is_no_gpu(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: str, device: str
) -> None:
    monkeypatch.setattr(gpus, "visible", lambda: None)  # nobody but torch is there to tell
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv(gpus.VISIBLE, "-1")
    Path("case.json").write_bytes(encode_reproducer(FAILURE))
    name, *rest = words.split()
    backend = ["--backend", "direct-mask"] if "case.json" in rest else ["direct-mask"]
    code, out, err = run(name, *rest, *backend, "--device", device)
    lines = [line for line in (out + err).splitlines() if not line.startswith("seed ")]
    assert code == 2
    assert NO_GPU.fullmatch(" ".join(lines)), out + err
    assert len(lines) <= 2  # folded at most


@pytest.mark.parametrize("device", ["cuda:MIG-x", "cuda:0,cuda:1"])
def test_a_device_that_one_process_cannot_be_on_is_refused_by_name(device: str) -> None:
    with pytest.raises(ValueError, match=f"^device {device}: this process takes one GPU"):
        treeproof.assert_tree_attention("direct-mask", device=device)


def _document() -> dict[str, Any]:
    document = json.loads(encode_case(CASE))
    assert isinstance(document, dict)
    return document


def _cycle(document: dict[str, Any]) -> None:
    document["requests"][0]["tree"]["parents"] = [-1, 2, 1]


def _twice(document: dict[str, Any]) -> None:
    document["requests"][0]["row_of_node"] = [0, 1, 1]


def _unknown(document: dict[str, Any]) -> None:
    document["layout"]["pagesize"] = 1


def _version(document: dict[str, Any]) -> None:
    document["version"] = 99


def _huge(document: dict[str, Any]) -> None:
    document["requests"][0]["prefix_len"] = 10**40


@pytest.mark.parametrize("command", [["show"], ["trace", "--row", "0"], ["replay"], ["reduce"]])
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_cycle, "parents[1] is 2: accepted are 0 to 0"),
        (_twice, "row_of_node[2] and row_of_node[1] are both row 1"),
        (_unknown, "unknown field `pagesize` - at `$.layout`"),
        (_version, "version is 99; this treeproof reads 1 to 1"),
        (_huge, "prefix_len"),
    ],
)
def test_a_malformed_case_names_file_field_and_row(
    run: Run, command: list[str], spoil: Callable[[dict[str, Any]], None], said: str
) -> None:
    document = _document()
    spoil(document)
    Path("bad.json").write_text(json.dumps(document))
    code, out, err = run(*command, "bad.json")
    assert (code, out) == (2, "")
    assert err.startswith("Error: bad.json: ")
    assert said in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "bad.json: line 1, column 1: Expecting value"),
        ('{"schema": "treeproof.case", ', "bad.json: line 1, column"),
        ('{"seed": 1, "seed": 2}', "bad.json: duplicate key 'seed'"),
        ('{"seed": NaN}', "bad.json: NaN is not a number that JSON knows"),
        ("[" * 100_000, "bad.json: nested too deeply"),
        ("[]", "bad.json: a JSON object is expected, found list"),
        ("{}", "bad.json: schema is None; accepted are treeproof.case, treeproof.reproducer"),
    ],
)
def test_a_file_that_is_no_case_says_why(run: Run, text: str, said: str) -> None:
    Path("bad.json").write_text(text)
    code, _, err = run("show", "bad.json")
    assert code == 2
    assert said in err


def test_a_missing_file_is_named(run: Run) -> None:
    assert run("show", "nowhere.json") == (
        2,
        "",
        "Error: nowhere.json: No such file or directory\n",
    )


def test_a_row_that_is_not_there_says_which_are(run: Run) -> None:
    Path("case.json").write_bytes(encode_case(CASE))
    code, _, err = run("trace", "case.json", "--row", "3")
    assert (code, err) == (2, "Error: --row 3: request 0 has rows 0 to 2\n")
    code, _, err = run("trace", "case.json", "--row", "0", "--request", "1")
    assert (code, err) == (2, "Error: --request 1: this case has requests 0 to 0\n")


@pytest.mark.parametrize("option", ["--json", "--markdown", "--keep", "--write"])
def test_where_nothing_can_be_written_is_said_before_the_work(run: Run, option: str) -> None:
    Path("file").write_text("kept")
    place = "file/below" if option in ("--keep", "--write") else "missing/file"
    code, out, err = run("faults", "causal-kernel", option, place)
    assert (code, out) == (2, "")
    assert err.startswith(f"Error: {option} {place}: ")
    assert Path("file").read_text() == "kept"


def test_a_file_of_results_that_is_there_is_kept_until_there_are_new_ones(run: Run) -> None:
    Path("old.json").write_text("[]")
    code, _, err = run("faults", "causal-kernel", "--json", "old.json", "--keep", "old.json")
    assert (code, Path("old.json").read_text()) == (2, "[]")
    assert err.startswith("Error: --keep old.json: ")
