"""Files as earlier releases wrote them are read as what they were, and those of later ones refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from treeproof.contract import wire
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import Failure
from treeproof.contract.layout import MaskMode
from treeproof.contract.registry import load
from treeproof.contract.script import Admit, Params, Round
from treeproof.contract.shape import Window
from treeproof.contract.wire import FileError, Reproducer, encode_case, read_case_file
from treeproof.engine.check import check_case
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.run_folder import RunFolder
from treeproof.engine.store import FailureStore

# Word for word what version 1 wrote before layers had a softcap, sinks, ALiBi or a quantised cache,
# and the ids that its files were named after.
CASES = {
    "26aa3d4e0fe8ca69c61d": """{"schema":"treeproof.case","version":1,"requests":[{"tree":{"tokens":\
[48173,15429,80725,79556,1844],"parents":[-1,0,0,0,0]},"row_of_node":[0,2,4,3,1],"prefix_len":667}],\
"shape":{"num_q_heads":6,"num_kv_heads":2,"head_dim":32,"v_head_dim":32,"dtype":"bfloat16",\
"visibility":{"kind":"window","width":1}},"layout":{"page_size":16,"num_slots":720,"order":"reversed\
","pad_slot":-1,"evicted":true},"mask":{"mode":2,"slack":1},"seed":1336839931,"score_spread":8.0}
""",
    "c580959d75af9978537d": """{"schema":"treeproof.case","version":1,"requests":[{"tree":{"tokens":\
[47925],"parents":[-1]},"row_of_node":[0],"prefix_len":65},{"tree":{"tokens":[100,101],"parents":\
[-1,0]},"row_of_node":[0,1],"prefix_len":9,"pad_rows":7}],"shape":{"num_q_heads":6,"num_kv_heads":2,\
"head_dim":64,"v_head_dim":32,"rotary":10000.0,"visibility":{"kind":"full"}},"layout":{"page_size":64\
,"num_slots":512,"order":"interleaved","pad_slot":-1,"page_table_pad":-1},"mask":{"slack":1,\
"fill_prefix":false},"seed":331646459925172160,"score_spread":8.0}
""",
}
REPRODUCER = """{"schema":"treeproof.reproducer","version":1,"case":{"requests":[{"tree":{"tokens":\
[0,1,2],"parents":[-1,0,0]},"row_of_node":[0,1,2],"prefix_len":0}],"shape":{"num_q_heads":1,\
"num_kv_heads":1,"head_dim":8,"v_head_dim":8,"visibility":{"kind":"full"}},"layout":{"page_size":1,\
"num_slots":4},"mask":{},"score_spread":1.0},"backend":"cascade","failure":{"identity":"visibility",\
"kind":"reads-sibling"},"message":"row 2 (node 2, path 0→2) reads row 1 (node 1)","versions":\
{"treeproof":"0.1.0","torch":"2.13.0+cpu"}}
"""


# And before requests of a script asked for anything, and before a round could be sampled.
SCRIPT = """{"schema":"treeproof.case","version":1,"requests":[{"tree":{"tokens":[0,1,2,3,4],"parents":\
[-1,0,0,1,2]},"row_of_node":[0,1,2,3,4],"prefix_len":5},{"tree":{"tokens":[0,1,2,3,4],"parents":[-1,\
0,0,1,2]},"row_of_node":[0,1,2,3,4],"prefix_len":4}],"shape":{"num_q_heads":1,"num_kv_heads":1,\
"head_dim":16,"v_head_dim":16,"rotary":100.0,"visibility":{"kind":"full"}},"layout":{"page_size":2,\
"num_slots":46,"order":"shuffled"},"mask":{},"script":[{"do":"admit","request":0},{"do":"prefill",\
"request":0,"tokens":2},{"do":"prefill","request":0},{"do":"admit","request":1},{"do":"prefill",\
"request":1},{"do":"round","turns":[{"request":0,"accept":4},{"request":1,"accept":1,"nodes":2}],\
"idle":2},{"do":"evict"},{"do":"round","turns":[{"request":0,"accept":3,"stop":1},{"request":1}]},\
{"do":"finish","request":1}]}
"""


def read(text: str, folder: Path) -> VerifyCase | Reproducer:
    path = folder / "file.json"
    path.write_text(text, "utf-8")
    return read_case_file(path)


@pytest.mark.parametrize("name", CASES)
def test_a_case_of_an_earlier_release_has_its_id_still(name: str, tmp_path: Path) -> None:
    case = read(CASES[name], tmp_path)
    assert isinstance(case, VerifyCase)
    assert case.id == name
    assert read(encode_case(case).decode(), tmp_path) == case


def test_a_case_of_an_earlier_release_means_what_it_meant(tmp_path: Path) -> None:
    case = read(CASES["26aa3d4e0fe8ca69c61d"], tmp_path)
    assert isinstance(case, VerifyCase)
    assert case.requests[0].row_of_node == (0, 2, 4, 3, 1)
    assert (case.shape.dtype, case.shape.visibility) == ("bfloat16", Window(width=1))
    assert (case.mask.mode, case.mask.slack) == (MaskMode.QLEN_ONLY_BITPACKING, 1)
    # What it did not know is at what it then was.
    for field in ("softcap", "kv_dtype", "sinks", "alibi"):
        assert not getattr(case.shape, field)


def test_a_reproducer_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    found = read(REPRODUCER, tmp_path)
    assert isinstance(found, Reproducer)
    assert (found.backend, found.failure.identity, found.device) == ("cascade", "visibility", "cpu")
    assert found.case.id == "ed6fd71ef80a933e6a98"


def test_a_script_of_an_earlier_release_is_served_as_it_was(tmp_path: Path) -> None:
    case = read(SCRIPT, tmp_path)
    assert isinstance(case, VerifyCase)
    assert case.id == "16fd080c5856fa3ab42f"
    # A byte for a byte: a reader of that release reads what is written now.
    assert encode_case(case).decode() == SCRIPT
    admit, *_ = case.script
    assert admit == Admit(request=0, params=Params())
    assert [step.sample for step in case.script if isinstance(step, Round)] == [None, None]
    found = check_case(case, load("direct-mask"), CheckOptions())
    assert found.failures == ()
    # Three tokens and two at first, then three, of which one is served, and one.
    assert found.generated is not None
    assert (found.generated.rounds, found.generated.tokens) == (2, 2 + 3 + 2 + 3 + 1)


def halves(document: dict[str, Any]) -> dict[str, Any]:
    """In version 0, let us say, pages were counted in halves."""
    case = document.get("case", document)
    case["layout"]["page_size"] = case["layout"].pop("half_page") * 2
    return document


def as_version_0(text: str) -> str:
    document = json.loads(text)
    case = document.get("case", document)
    case["layout"] = {"half_page": 8, "num_slots": 256}
    return json.dumps({**document, "version": 0})


def test_files_of_all_kinds_pass_the_converters_wherever_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "CONVERTERS", {0: halves})
    old_case = as_version_0(CASES["c580959d75af9978537d"])
    old_failure = as_version_0(REPRODUCER)
    case, failure = read(old_case, tmp_path), read(old_failure, tmp_path)
    assert isinstance(case, VerifyCase)
    assert isinstance(failure, Reproducer)
    assert (case.layout.page_size, failure.case.layout.page_size) == (16, 16)

    folder = RunFolder(tmp_path / "run")
    folder.make()
    folder.case_path("old").write_text(old_case)
    assert folder.read_case("old") == case

    kept = tmp_path / "store" / "failures" / "cascade" / "old.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(old_failure)
    (saved,) = FailureStore(tmp_path / "store").saved({"cascade"})
    assert saved.reproducer == failure


def test_a_file_of_a_later_release_is_refused_by_its_version(tmp_path: Path) -> None:
    for text in (*CASES.values(), REPRODUCER):
        later = text.replace('"version":1', '"version":2')
        with pytest.raises(
            FileError, match=r"file.json: version is 2; this treeproof reads 1 to 1$"
        ):
            read(later, tmp_path)


def test_the_command_line_refuses_a_file_of_a_later_release_with_exit_code_2(
    tmp_path: Path,
) -> None:
    path = tmp_path / "later.json"
    path.write_text(REPRODUCER.replace('"version":1', '"version":7'))
    for command in ("show", "replay"):
        done = subprocess.run(
            [sys.executable, "-m", "treeproof", command, str(path)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert f"{path}: version is 7; this treeproof reads 1 to 1" in done.stderr


def test_what_a_failure_of_an_earlier_release_lacks_is_empty() -> None:
    """Events are read by newer code as well: a field that came later has a default."""
    import msgspec

    plain = (
        b'{"identity":"kv","kind":"k","evidence":"measured","stage":"attend","message":"m",'
        b'"severity":"wrong","some_later_field":[1]}'
    )
    assert msgspec.json.decode(plain, type=Failure).cause == ""
