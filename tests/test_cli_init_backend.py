"""`treeproof init-backend`: what it writes runs at once, over no file, and under a name that works."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import treeproof
from treeproof.cli import cli, main
from treeproof.commands.adapter_text import READS
from treeproof.commands.init_backend import module_name
from treeproof.contract.case import (
    AttentionShape,
    KVLayout,
    MaskLayout,
    MaskMode,
    Request,
    VerifyCase,
)
from treeproof.contract.registry import load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case

pytest_plugins = ["pytester"]

Run = Callable[..., tuple[int, str, str]]
TEMPLATES = Path(__file__).resolve().parent.parent / "ci" / "templates"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs one command line in a new repository; (exit code, stdout, stderr)."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    # Folders of backend files that were loaded stay on it, and some hold a kernel of this name; here each
    # test is a program of its own.
    elsewhere = [folder for folder in sys.path if not Path(folder, "my_kernel.py").exists()]
    monkeypatch.setattr(sys, "path", elsewhere)
    monkeypatch.delitem(sys.modules, "my_kernel", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(arguments)
        captured = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, captured.out, captured.err

    return run


def failures(reads: str) -> set[str]:
    """Columns that my_kernel.py fails in on two requests of different trees and lengths, their pages
    in between each other's; one has padded rows, whose slot is -1."""
    bushy = CandidateTree(tokens=(5, 6, 7, 8), parents=(-1, 0, 0, 1))
    chain = CandidateTree(tokens=(5, 6), parents=(-1, 0))
    mode = MaskMode.QLEN_ONLY if reads == "page-table" else MaskMode.FULL_MASK
    case = VerifyCase(
        requests=(
            Request(tree=bushy, row_of_node=(0, 2, 1, 3), prefix_len=20, pad_rows=2),
            Request(tree=chain, row_of_node=(0, 1), prefix_len=0),
        ),
        shape=AttentionShape(num_q_heads=4, num_kv_heads=2, head_dim=16, v_head_dim=8),
        layout=KVLayout(page_size=16, num_slots=128, order="interleaved", pad_slot=-1),
        mask=MaskLayout(mode=mode, slack=3, fill_prefix=False),
    )
    checked = check_case(case, load("my_kernel.py"), CheckOptions())
    assert {"pass", "fail"} & {c.status for c in checked.cells if c.identity == "visibility"}
    return {failure.identity for failure in checked.failures}


@pytest.mark.parametrize(
    ("reads", "right", "wrong"),
    [
        ("mask", "~visible", "~torch.ones_like(visible).tril(len(prefix))"),
        ("page-table", "column // page", "(column + 1) // page"),
        ("row-lists", "path = [row]", "path = [max(row - 1, 0)]"),
    ],
)
def test_the_adapter_is_right_as_it_is_written_and_wrong_with_a_slip(
    run: Run, reads: str, right: str, wrong: str
) -> None:
    code, _, _ = run("init-backend", "my-kernel", "--reads", reads)
    assert (code, failures(reads)) == (0, set())
    adapter = Path("my_kernel.py")
    written = adapter.read_text("utf-8")
    assert written.count(right) == 1
    adapter.write_text(written.replace(right, wrong), "utf-8")
    assert "visibility" in failures(reads)


@pytest.mark.long
@pytest.mark.parametrize("reads", READS)
def test_the_adapter_passes_a_whole_check(run: Run, reads: str) -> None:
    run("init-backend", "my-kernel", "--reads", reads)
    code, out, _ = run("check", "my_kernel.py", "-n", "1")
    assert code == 0, out


def test_its_test_passes_from_another_folder_than_its_own(
    run: Run, pytester: pytest.Pytester
) -> None:
    pytester.mkdir(".git")
    run("init-backend", "my-kernel", "--folder", str(pytester.path / "kernels"))
    few = ("--treeproof-examples", "9", "-k", "float32-2x2-d16-p1-full")
    result = pytester.runpytest_inprocess("kernels/test_my_kernel.py", *few)
    result.assert_outcomes(passed=1, deselected=8)
    result.stdout.fnmatch_lines(["my-kernel  1 of 5 *"])


def test_it_says_what_to_run_next_and_the_workflow_runs_that(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed_as(None, monkeypatch)
    code, out, _ = run("init-backend", "my-kernel", "--folder", "ops")
    workflow = Path(".github", "workflows", "treeproof-my_kernel.yml")
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("wrote")] == [
        "wrote ops/my_kernel.py: call your kernel at ①, and say at ② to ④ what it does",
        "wrote ops/test_my_kernel.py",
        f"wrote {workflow}: name your runner in it; it runs",
    ]
    assert out.endswith("treeproof check ops/my_kernel.py\npytest ops/test_my_kernel.py\n")
    (gate,) = (line.strip() for line in out.splitlines() if "--device cuda" in line)
    written = yaml.safe_load(workflow.read_text("utf-8"))
    steps = written["jobs"]["treeproof"]["steps"]
    (check,) = (step["run"].strip() for step in steps if step.get("name") == "Check")
    assert check == f"{gate} --run-dir treeproof-gate/run --report treeproof-gate"
    command, verb, *words = shlex.split(check)
    context = cli.commands[verb].make_context(verb, words)
    assert (command, context.params["targets"]) == ("treeproof", ("ops/my_kernel.py",))
    assert context.params["device"] == "cuda"
    for step in steps:
        for line in step.get("run", "").splitlines():
            if line.startswith("treeproof "):
                _, verb, *words = shlex.split(line)
                cli.commands[verb].make_context(verb, words)


def test_its_workflow_does_what_the_template_for_engines_does(run: Run) -> None:
    run("init-backend", "my-kernel")
    written = yaml.safe_load(Path(".github/workflows/treeproof-my_kernel.yml").read_text("utf-8"))
    template = yaml.safe_load((TEMPLATES / "github-gate.yml").read_text("utf-8"))
    for key in (True, "permissions"):  # YAML takes the word `on` for a truth value
        assert written[key] == template[key]
    ours, theirs = written["jobs"]["treeproof"], template["jobs"]["gate"]
    for key in ("if", "timeout-minutes"):
        assert ours[key] == theirs[key]
    used = {step["uses"] for step in ours["steps"] if "uses" in step}
    assert used < {step["uses"] for step in theirs["steps"] if "uses" in step}
    (keep,) = (s["with"]["path"] for s in ours["steps"] if "upload-artifact" in s.get("uses", ""))
    assert keep == "treeproof-gate"
    assert not any("${{" in step.get("run", "") for step in ours["steps"])


def installed_as(direct_url: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if an installer had written this into `direct_url.json`, None for no such file."""
    written = SimpleNamespace(read_text=lambda name: {"direct_url.json": direct_url}[name])
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: written)


RELEASE = f"treeproof=={treeproof.__version__}"


@pytest.mark.parametrize(
    ("direct_url", "requirement", "known"),
    [
        (None, RELEASE, True),
        (
            '{"url": "https://example.org/t.git", "vcs_info": {"vcs": "git", "commit_id": "0f37a"}}',
            "treeproof @ git+https://example.org/t.git@0f37a",
            True,
        ),
        (
            '{"url": "https://example.org/t-1-py3-none-any.whl", "archive_info": {}}',
            "treeproof @ https://example.org/t-1-py3-none-any.whl",
            True,
        ),
        ('{"url": "file:///src/t", "dir_info": {"editable": true}}', RELEASE, False),
        ('{"url": "file:///src/t-1-py3-none-any.whl", "archive_info": {}}', RELEASE, False),
    ],
)
def test_the_workflow_gets_treeproof_from_where_this_one_came(
    run: Run, monkeypatch: pytest.MonkeyPatch,
    direct_url: str | None, requirement: str, known: bool,
) -> None:  # fmt: skip
    installed_as(direct_url, monkeypatch)
    code, out, _ = run("init-backend", "my-kernel")
    assert code == 0
    text = Path(".github/workflows/treeproof-my_kernel.yml").read_text("utf-8")
    assert yaml.safe_load(text)["env"] == {"TREEPROOF": requirement}
    assert ("which your runner cannot see" in text) is not known
    assert ("where it gets treeproof from" in " ".join(out.split())) is not known


@pytest.mark.parametrize(
    "there",
    ["my_kernel.py", "test_my_kernel.py", ".github/workflows/treeproof-my_kernel.yml"],
)
def test_a_file_that_is_there_is_named_and_nothing_is_written(
    run: Run, tmp_path: Path, there: str
) -> None:
    (tmp_path / there).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / there).write_text("mine")
    code, out, err = run("init-backend", "my-kernel")
    assert (code, out) == (2, "")
    assert err.startswith(f"Error: {there} is there already, and is left as it is")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [(path, path.read_text()) for path in files] == [(tmp_path / there, "mine")]


def test_what_cannot_be_written_to_its_end_is_taken_back(run: Run, tmp_path: Path) -> None:
    (tmp_path / ".github").write_text("a file")
    code, _, err = run("init-backend", "my-kernel")
    assert code == 2
    assert err.startswith("Error: .github/workflows/treeproof-my_kernel.yml: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".git", ".github"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("My Kernel", "accepted are 1 to 64 of a-z, 0-9, '.', '_' and '-', the first a letter or"),
        ("My Kernel", "; did you mean my-kernel?"),
        ("-x/../y", "; did you mean x-..-y?"),
        ("k" * 65, "accepted are 1 to 64"),
        ("核", "the first a letter or digit\n"),
        ("cascade", "backend name 'cascade' is that of an installed one"),
        ("torch", "torch.py would stand in the way of `import torch`"),
        ("kernels", "kernels.py would stand in the way of `import kernels`"),
    ],
)
def test_a_name_that_cannot_be_used_says_what_is_accepted(
    run: Run, tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "kernels").mkdir()
    code, out, err = run("init-backend", "--", name)
    assert (code, out) == (2, "")
    assert said in err
    assert sorted(path.name for path in tmp_path.iterdir()) == [".git", "kernels"]


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("my-kernel", "my_kernel"),
        ("fa3.cascade_v2", "fa3_cascade_v2"),
        ("4d-attention", "kernel_4d_attention"),
        ("while", "kernel_while"),
    ],
)
def test_a_backends_name_becomes_one_that_python_imports(name: str, module: str) -> None:
    assert module_name(name) == module
