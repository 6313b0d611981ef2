"""CI templates and workflows: their shell, run as a CI service would run it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import treeproof
from treeproof.contract.registry import entry_points

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ROOT / "ci" / "templates"
WORKFLOWS = ROOT / ".github" / "workflows"
SMALL = "--device cpu --profile quick --no-reduce --dtype float32 --examples 2 -n 0"
GITHUB = ("GITHUB_OUTPUT", "GITHUB_PATH", "GITHUB_STEP_SUMMARY", "GITHUB_ENV")

STUB_GATE = """
echo "$@" > asked
mkdir -p treeproof-gate/run/failures
echo '### one failure' > treeproof-gate/summary.md
echo '{"kind": "new"}' > treeproof-gate/run/failures/b.json
exit 1
"""
"""In place of the gate, where what stands around it is looked at."""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a wheel of this treeproof."""
    project = tmp_path_factory.mktemp("project")
    for folder in ("harness", "oracles", "backends", "properties", "reports"):
        leave = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, project / folder, ignore=leave)
    for name in ("README.md", "LICENSE", "pyproject.toml"):
        shutil.copy(ROOT / name, project / name)
    built = tmp_path_factory.mktemp("wheels")
    code = "import sys; from setuptools import build_meta as b; b.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", code, str(built)], cwd=project, check=True, capture_output=True
    )
    return built


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """The repository of an engine whose kernel has a causal mask, with the gate copied into it."""
    folder = tmp_path / "engine"
    (folder / "ci").mkdir(parents=True)
    shutil.copy(ROOT / "ci" / "gate.sh", folder / "ci")
    shutil.copy(ROOT / "examples" / "faulty_backend.py", folder / "ci" / "my_kernel.py")
    return folder


class Job:
    """A job of a CI service: steps share environment files, and each is a shell of its own."""

    def __init__(self, folder: Path, wheels: Path, **env: str) -> None:
        self.folder = folder
        self._path = [str(Path(sys.executable).parent)]
        self.files = {name: folder.parent / name for name in GITHUB}
        # What the wheel needs is what this interpreter has, behind all that is installed; no index is asked.
        behind = folder.parent / "behind"
        behind.mkdir()
        purelib = sysconfig.get_path("purelib")
        (behind / "sitecustomize.py").write_text(f"import sys\nsys.path.append({purelib!r})\n")
        self._env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")},
            "PYTHONPATH": str(behind),
            "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_IGNORE_INSTALLED": "1", "PIP_FIND_LINKS": str(wheels),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1", "ENGINE": "", **env,
        }  # fmt: skip

    def run(self, script: str, **env: str) -> subprocess.CompletedProcess[str]:
        if self.files["GITHUB_PATH"].exists():
            self._path = [*self.files["GITHUB_PATH"].read_text().split(), *self._path]
        path = os.pathsep.join([*self._path, os.environ["PATH"]])
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
            cwd=self.folder, env={**self._env, "PATH": path, **env},
            capture_output=True, text=True, timeout=180,
        )  # fmt: skip

    def github(self, script: str, **env: str) -> subprocess.CompletedProcess[str]:
        files = {name: str(path) for name, path in self.files.items()}
        return self.run(script, GITHUB_ACTIONS="true", **files, **env)

    def outputs(self) -> dict[str, str]:
        lines = self.files["GITHUB_OUTPUT"].read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)


def document(path: Path) -> dict[Any, Any]:
    found = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def steps(path: Path, job: str) -> dict[str, str]:
    """Name to shell text of the steps of a job that have some."""
    return {s["name"]: s["run"] for s in document(path)["jobs"][job]["steps"] if "run" in s}


def env_of(path: Path, **changed: str) -> dict[str, str]:
    return {**document(path)["env"], **changed}


def test_the_github_gate_says_a_failure_in_summary_annotations_and_outputs(
    engine: Path, wheels: Path
) -> None:
    path = TEMPLATES / "github-gate.yml"
    job = Job(engine, wheels, **env_of(path, OPTIONS=SMALL, ENGINE=""))
    run = steps(path, "gate")
    assert list(run) == ["Install", "Gate"]
    venv = engine / "build" / "treeproof"
    stubs = Path(without_installing(engine, "python"))
    (stubs / "python").write_text(
        '#!/bin/sh\nmkdir -p "$3/bin" && cp "$(dirname "$0")/pip" "$3/bin"\n'
    )
    job.files["GITHUB_PATH"].write_text(f"{stubs}\n")
    installed = job.github(run["Install"])
    assert installed.returncode == 0, installed.stdout + installed.stderr
    assert (engine / "installed").read_text() == f"install treeproof=={treeproof.__version__}\n"
    assert job.files["GITHUB_PATH"].read_text().split() == [str(stubs), str(venv.resolve() / "bin")]
    done = job.github(run["Gate"])
    assert done.returncode == 1, done.stdout + done.stderr
    assert job.outputs() == {"exit-code": "1", "folder": "treeproof-gate"}
    summary = job.files["GITHUB_STEP_SUMMARY"].read_text()
    assert summary.count("#### causal: visibility, reads&#45;sibling") == 1
    assert re.search(r"^### ✗ \d+ distinct failures, in 1 of 1 check$", summary, re.MULTILINE)
    titles = re.findall(r"^::error title=(.+?)::", done.stdout, re.MULTILINE)
    assert "causal%3A visibility reads-sibling" in titles
    assert len(titles) == len(set(titles)), "each failure is told once"
    out = engine / "treeproof-gate"
    assert (out / "run" / "failures" / "causal-visibility-reads-sibling.json").is_file()
    junit = ET.parse(out / "junit.xml").getroot()
    failed = {t.get("name") for t in junit.iter("testcase") if t.find("failure") is not None}
    assert "visibility" in failed
    uploaded = [s["with"]["path"] for s in document(path)["jobs"]["gate"]["steps"][-2:]]
    assert uploaded[0] == "treeproof-gate"
    assert (engine / uploaded[0] / "report.html").is_file()
    assert ".treeproof" in uploaded[1].split()
    assert any((engine / ".treeproof" / "failures" / "causal").iterdir())


def test_what_the_readme_says_works_in_the_repository_of_an_engine(
    engine: Path, wheels: Path
) -> None:
    text = (ROOT / "ci" / "README.md").read_text("utf-8")
    (block,) = re.findall(r"<!-- steps: adopt -->\n```yaml\n(.*?)```", text, re.DOTALL)
    assert len(block.splitlines()) <= 10
    install, gate, keep = yaml.safe_load(block)
    job = Job(engine, wheels)
    venv = job.run("python -m venv ../venv && echo ../venv/bin")
    job.files["GITHUB_PATH"].write_text(str((engine / venv.stdout.strip()).resolve()))
    done = job.github(install["run"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"treeproof-{treeproof.__version__}" in done.stdout
    written = job.github("mv ci/my_kernel.py . && treeproof init-backend my-kernel --folder ci")
    assert written.returncode == 0, written.stderr
    (workflow,) = (engine / "ci" / ".github" / "workflows").glob("*.yml")
    assert document(workflow)["env"] == {"TREEPROOF": f"treeproof=={treeproof.__version__}"}
    assert "which your runner cannot see" not in workflow.read_text("utf-8")
    assert gate["run"].count(" --time 10m") == 1
    done = job.github(gate["run"] + f" {SMALL}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert keep["if"] == "always()"
    assert (engine / keep["with"]["path"] / "report.html").is_file()
    assert "no identity violated in 1 check" in job.files["GITHUB_STEP_SUMMARY"].read_text()


def stubbed(engine: Path, name: str, text: str) -> str:
    """A folder with a command of this name, to be found first."""
    folder = engine.parent / "commands"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return str(folder)


def test_the_nightly_keeps_the_first_failure_of_each_kind_and_tries_it_again(
    engine: Path, wheels: Path
) -> None:
    path = TEMPLATES / "github-nightly.yml"
    (engine / "ci" / "gate.sh").write_text(STUB_GATE)
    job = Job(engine, wheels, **env_of(path, ENGINE=""), BACKEND="ci/my kernel.py")
    run = steps(path, "nightly")
    assert list(run) == ["Install", "Gate", "Everything that ever failed"]
    assert job.github(run["Gate"]).returncode == 1
    assert (engine / "asked").read_text() == "ci/my kernel.py --profile nightly --time 2h\n"
    corpus = engine / ".treeproof" / "corpus"
    replays = 'echo "$2 $4" >> replayed; case $2 in *a.json) exit 1;; esac'
    stub = stubbed(engine, "treeproof", replays)
    job.files["GITHUB_PATH"].write_text(stub)
    first = job.github(run["Everything that ever failed"])
    assert first.returncode == 0, first.stderr
    assert not (engine / "replayed").exists()
    assert [kept.name for kept in corpus.iterdir()] == ["b.json"]
    (corpus / "b.json").write_text("old")
    assert job.github(run["Everything that ever failed"]).returncode == 0
    assert (engine / "replayed").read_text() == ".treeproof/corpus/b.json ci/my kernel.py\n"
    assert (corpus / "b.json").read_text() == "old"
    (corpus / "a.json").write_text("fails still")
    assert job.github(run["Everything that ever failed"]).returncode == 1
    assert (engine / "replayed").read_text().count("b.json") == 2, "one failure hides no other"


def without_installing(engine: Path, python: str) -> str:
    """A folder with commands that make an environment and install into it only for show."""
    stubbed(engine, python, 'mkdir -p "$3/bin" && touch "$3/bin/activate"')
    return stubbed(engine, "pip", 'echo "$@" > installed')


def test_gitlab_runs_the_gate_and_finds_its_junit(engine: Path, wheels: Path) -> None:
    found = document(TEMPLATES / "gitlab-ci.yml")
    shared, nightly = found["treeproof"], found["treeproof-nightly"]
    (engine / "ci" / "gate.sh").write_text(STUB_GATE)
    variables = {**shared["variables"], **nightly["variables"], "ENGINE": "engine.whl"}
    job = Job(engine, wheels, **variables)
    job.files["GITHUB_PATH"].write_text(without_installing(engine, "python"))
    done = job.run("\n".join(shared["script"]))
    assert done.returncode == 1, done.stdout + done.stderr
    wanted = f"treeproof=={treeproof.__version__} engine.whl\n"
    assert (engine / "installed").read_text() == f"install {wanted}"
    assert (engine / "asked").read_text() == "ci/my_kernel.py --profile nightly --time 2h\n"
    assert shared["artifacts"]["reports"]["junit"] == "treeproof-gate/junit.xml"
    assert shared["artifacts"]["when"] == "always"


@pytest.mark.parametrize(("ends", "style"), [(1, "error"), (0, "success")])
def test_buildkite_is_told_the_summary_and_the_verdict_stays(
    engine: Path, wheels: Path, ends: int, style: str
) -> None:
    found = document(TEMPLATES / "buildkite.yml")
    (engine / "ci" / "gate.sh").write_text(STUB_GATE.replace("exit 1", f"exit {ends}"))
    agent = stubbed(engine, "buildkite-agent", 'echo "$@" > told; cat >> told')
    without_installing(engine, "python3")
    (engine / "treeproof-gate").mkdir()
    (engine / "treeproof-gate" / "old").touch()
    kept = Path(f"{engine}-treeproof")
    kept.mkdir()
    (kept / "earlier").touch()
    checkout = {"BUILDKITE_BUILD_CHECKOUT_PATH": str(engine)}
    job = Job(engine, wheels, **{**found["env"], **checkout, "ENGINE": "engine.whl kernels.whl"})
    job.files["GITHUB_PATH"].write_text(agent)
    (step,) = found["steps"]
    uploaded = step["command"].replace("$$", "$").replace("{{matrix}}", step["matrix"][0])
    done = job.run(uploaded)
    assert done.returncode == ends, done.stdout + done.stderr
    assert (engine / "asked").read_text() == "ci/my_kernel.py --time 10m\n"
    wanted = f"treeproof=={treeproof.__version__} engine.whl kernels.whl\n"
    assert (engine / "installed").read_text() == f"install {wanted}"
    assert (engine / "told").read_text() == (
        f"annotate --context treeproof-h100 --style {style}\n### one failure\n"
    )
    assert not (engine / "treeproof-gate" / "old").exists()
    # A checkout is cleaned before each job, by `git clean -ffxdq`.
    assert (engine / ".treeproof").resolve() == kept.resolve()
    assert (kept / "earlier").exists()


@pytest.mark.parametrize(("workflow", "job"), [("gpu.yml", "gate"), ("nightly.yml", "gpu")])
def test_this_project_gates_itself_as_its_template_does(workflow: str, job: str) -> None:
    ours, theirs = steps(WORKFLOWS / workflow, job), steps(TEMPLATES / "github-gate.yml", "gate")
    assert ours["Gate"] == theirs["Gate"]
    installed = theirs["Install"].replace('"$TREEPROOF" $ENGINE', "-c ci/constraints.txt .")
    assert ours["Install"] == installed
    used = {
        name: {s["uses"] for s in document(path)["jobs"][at]["steps"] if "uses" in s}
        for name, path, at in [
            ("ours", WORKFLOWS / workflow, job), ("theirs", TEMPLATES / "github-gate.yml", "gate"),
        ]
    }  # fmt: skip
    assert used["ours"] == used["theirs"]


def test_the_gate_of_this_project_names_backends_that_are_installed() -> None:
    for env in (
        document(WORKFLOWS / "gpu.yml")["env"],
        document(WORKFLOWS / "nightly.yml")["jobs"]["gpu"]["env"],
    ):
        named = env["BACKENDS"].split()
        assert len(named) == 10
        assert set(named) <= entry_points().keys()


def shell_texts(path: Path) -> Iterator[str]:
    for job in document(path).get("jobs", {}).values():
        yield from (step["run"] for step in job["steps"] if "run" in step)


def github_files() -> list[Path]:
    return sorted([*WORKFLOWS.glob("*.yml"), *TEMPLATES.glob("github-*.yml")])


@pytest.mark.parametrize("path", github_files(), ids=lambda path: path.name)
def test_no_words_of_others_become_shell(path: Path) -> None:
    """An expression in a shell text is put into it as it is, quotes and semicolons included."""
    assert not [text for text in shell_texts(path) if "${{" in text]


@pytest.mark.parametrize("path", github_files(), ids=lambda path: path.name)
def test_a_job_may_write_nothing_unless_it_says_so(path: Path) -> None:
    found = document(path)
    assert found["permissions"] == {"contents": "read"}
    for job in found["jobs"].values():
        assert set(job.get("permissions", {})) <= {"id-token"}


def test_templates_install_this_very_version() -> None:
    files = [*TEMPLATES.glob("*.yml"), ROOT / "ci" / "README.md"]
    named = {
        file.name: set(re.findall(r"treeproof==(\S+)", file.read_text("utf-8"))) for file in files
    }
    assert len(named) == 5
    assert set(map(frozenset, named.values())) == {frozenset({treeproof.__version__})}


def test_what_the_image_is_made_of_is_there() -> None:
    text = (ROOT / "ci" / "Containerfile").read_text("utf-8")
    named = re.findall(r"/src/(\S+)", text)
    assert set(named) == {"ci/constraints.txt", "ci/gate.sh"}
    assert all((ROOT / name).is_file() for name in named)
