"""What is shipped, what an import brings along, and where things are written down once."""

import ast
import importlib.metadata
import inspect
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import treeproof

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "harness": "treeproof",
    "oracles": "treeproof/oracles",
    "backends": "treeproof/backends",
    "properties": "treeproof/properties",
    "reports": "treeproof/reports",
}
"""The folders that make up the package, and where each lies in it; written down here anew."""
ELSEWHERE = ("ci", ".ci", ".github", "docs", "tests", "examples")
TOP_FILES = ("README.md", "LICENSE", "pyproject.toml")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of what is needed to build."""
    copy = tmp_path_factory.mktemp("project")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in TOP_FILES:
        shutil.copy(ROOT / name, copy / name)
    return copy


def build(project, kind, into):
    """Build `wheel` or `sdist` of a project folder; returns the file."""
    code = f"import sys; from setuptools import build_meta as b; b.build_{kind}(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(into)], cwd=project, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (built,) = into.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(project, tmp_path_factory):
    return build(project, "wheel", tmp_path_factory.mktemp("wheel"))


def shipped(wheel):
    """Files in a wheel, its metadata apart."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def on_disk(project):
    """Where in a wheel each source file of the project has to be."""
    return {
        f"{place}/{path.relative_to(project / folder).as_posix()}"
        for folder, place in FOLDERS.items()
        for path in (project / folder).rglob("*")
        if path.suffix in (".py", ".css", ".js", ".jinja") or path.name == "py.typed"
    }


def modules(project):
    """Names of all modules, from the files; an import hook may hide some from `pkgutil`."""
    files = (name.removesuffix(".py") for name in on_disk(project) if name.endswith(".py"))
    return sorted(name.removesuffix("/__init__").replace("/", ".") for name in files)


def loaded_by(*names, missing=()):
    """What a fresh interpreter has loaded after importing these, as if `missing` were not installed."""
    without = "".join(f"sys.modules[{name!r}] = None; " for name in missing)
    loaded = "*(name for name, module in sys.modules.items() if module)"
    code = f"import sys; {without}import {', '.join(names)}; print({loaded})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_wheel_holds_every_source_file_and_nothing_else(project, wheel):
    assert shipped(wheel) == on_disk(project)
    assert "treeproof/py.typed" in shipped(wheel)


def test_a_subpackage_that_pyproject_forgets_is_noticed(project, tmp_path):
    forgetful = shutil.copytree(project, tmp_path / "project")
    (forgetful / "oracles" / "attic").mkdir()
    (forgetful / "oracles" / "attic" / "__init__.py").write_text("")
    (tmp_path / "wheel").mkdir()
    missing = on_disk(forgetful) - shipped(build(forgetful, "wheel", tmp_path / "wheel"))
    assert missing == {"treeproof/oracles/attic/__init__.py"}


def test_a_source_distribution_holds_every_source_file(project, tmp_path):
    archive = build(project, "sdist", tmp_path)
    shutil.unpack_archive(archive, tmp_path, filter="data")
    assert on_disk(tmp_path / archive.name.removesuffix(".tar.gz")) == on_disk(project)


def test_every_folder_with_modules_is_a_package():
    for folder in FOLDERS:
        for module in (ROOT / folder).rglob("*.py"):
            assert (module.parent / "__init__.py").is_file(), module


def test_the_links_for_type_checkers_lead_to_every_source_file(project, tmp_path):
    copy = shutil.copytree(project, tmp_path / "project")
    (copy / "ci").mkdir()
    shutil.copy(ROOT / "ci" / "link_tree.py", copy / "ci")
    for _ in range(2):  # made anew where it is there already
        subprocess.run([sys.executable, "ci/link_tree.py"], cwd=copy, check=True)
    typing = copy / "build" / "typing"
    assert all((typing / name).is_file() for name in on_disk(project))


@pytest.mark.parametrize("name", ["treeproof", "treeproof.pytest_plugin", "treeproof.cli"])
def test_importing_the_package_the_plug_in_or_the_commands_loads_nothing_heavy(name):
    assert {"torch", "triton", "hypothesis"}.isdisjoint(loaded_by(name))


@pytest.mark.parametrize("room", ["treeproof.contract", "treeproof.reports"])
def test_no_module_of_the_ground_floor_or_the_reports_loads_torch(project, room):
    names = [name for name in modules(project) if name.startswith(f"{room}.")]
    assert len(names) > 3
    assert "torch" not in loaded_by(*names)


def test_the_look_at_loaded_modules_would_see_torch():
    assert "torch" in loaded_by("treeproof.oracles.path")


def are_kernels(name):
    """Whether a module is one of `@triton.jit` functions: the decorator is needed to import it."""
    if name == "treeproof.generate.data_kernel":
        return True
    if not name.startswith("treeproof.backends.kernels."):
        return False
    path = ROOT / "backends" / "kernels" / f"{name.rpartition('.')[2]}.py"
    return "\nimport triton" in path.read_text("utf-8")


def test_all_modules_but_those_of_kernels_are_imported_without_triton(project):
    kernels, others = (
        [name for name in modules(project) if are_kernels(name) is kind] for kind in (True, False)
    )
    assert len(kernels) > 5
    loaded = loaded_by(*others, missing=["triton", "sglang"])
    assert "treeproof.backends.triton_topology" in loaded
    assert loaded.isdisjoint(kernels)


def test_no_module_is_imported_under_its_folders_name(project):
    loaded = loaded_by(*(name for name in modules(project) if not are_kernels(name)))
    assert "treeproof.oracles.path" in loaded
    assert set(FOLDERS).isdisjoint(loaded)
    assert set(FOLDERS).isdisjoint(sys.modules), "this test run imported a folder by its own name"


def test_the_version_stands_in_one_place(wheel):
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" in pyproject["project"]["dynamic"]
    assert "version" not in pyproject["project"]
    written = [
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"^__version__ *=", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert written == [ROOT / "harness" / "__init__.py"]
    assert wheel.name.startswith(f"treeproof-{treeproof.__version__}-")
    newest = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == treeproof.__version__


def test_entry_points_name_modules_that_are_shipped(wheel):
    points = importlib.metadata.distribution("treeproof").entry_points
    modules = {point.value.partition(":")[0] for point in points}
    assert "treeproof.pytest_plugin" in modules
    files = shipped(wheel)
    for module in modules:
        path = module.replace(".", "/")
        assert {f"{path}.py", f"{path}/__init__.py"} & files, module


def own_doc(thing):
    """The docstring that was written for this very thing; dataclasses make one up."""
    doc = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    return "" if doc is None or doc.startswith(f"{thing.__name__}(") else doc


@pytest.mark.parametrize("name", treeproof.__all__)
def test_every_public_name_is_there_and_documented(name):
    assert own_doc(getattr(treeproof, name)).strip()


def test_type_checkers_see_the_same_public_names():
    tree = ast.parse((ROOT / "harness" / "__init__.py").read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    declared = [alias.asname for node in block.body for alias in node.names]
    assert sorted(declared) == sorted(treeproof.__all__)


def constrained():
    lines = (ROOT / "ci" / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins}


def test_every_package_that_the_readme_installs_is_pinned():
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = pyproject["optional-dependencies"]
    wanted = {
        re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower()
        for requirement in (*pyproject["dependencies"], *extras["test"], *extras["dev"])
    } - {"treeproof"}
    assert wanted <= constrained().keys()


def files_under(*names):
    """The text files at or under these places of the project."""
    for name in names:
        places = [ROOT / name, *(ROOT / name).rglob("*")]
        yield from (p for p in places if p.is_file() and p.suffix not in (".pyc", ".png"))


def places_of_one_machine(text):
    """Absolute paths in a text that are good on one machine only."""
    roots = "work|root|opt|mnt|home|Users|tmp"
    return re.findall(rf"(?<![\w.$}}/])/(?:{roots})/[\w.]+|[A-Z]:\\+Users", text)


def test_no_file_names_a_place_of_one_machine():
    documents = [path.name for path in ROOT.glob("*.md")]
    named = {
        str(file.relative_to(ROOT)): found
        for file in files_under(*FOLDERS, *ELSEWHERE, *documents, *TOP_FILES)
        if file != Path(__file__) and (found := places_of_one_machine(file.read_text("utf-8")))
    }
    assert named == {}


@pytest.mark.parametrize(
    "line", ["cd /home/ada/treeproof", 'Path("/opt/parts")', f"at /{'tmp'}/x.json"]
)
def test_the_look_for_places_of_one_machine_sees_them(line):
    assert places_of_one_machine(line)


def test_the_look_for_places_of_one_machine_leaves_other_paths_alone():
    assert not places_of_one_machine(f".treeproof/runs, path/to/work/file.py and $root/{'tmp'}/x")


def test_what_is_installed_comes_from_the_index_that_the_reader_has_set_up():
    for file in files_under("README.md", "CONTRIBUTING.md", "ci", ".ci", "docs"):
        assert not re.search(r"index-url|find-links|://\S*pypi", file.read_text("utf-8")), file
