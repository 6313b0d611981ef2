"""Loading a module out of SGLang, and saying why it cannot be had. Needs no SGLang."""

from __future__ import annotations

import importlib.machinery
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from treeproof.backends.adapters import sglang_cuda_tree as cuda_tree
from treeproof.backends.adapters import sglang_loader
from treeproof.contract.registry import BackendUnavailable

KERNEL = "sglang.kernels.ops.attention.extend_attention"
REFERENCE = "treeproof.backends.adapters.sglang_extend:sglang-extend"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed SGLang, version 0.5.23, in which every `__init__` raises."""
    kernels = tmp_path / "sglang" / "kernels" / "ops" / "attention"
    kernels.mkdir(parents=True)
    (tmp_path / "sglang" / "srt").mkdir()
    for folder in (kernels, *list(kernels.parents)[:3], tmp_path / "sglang" / "srt"):
        (folder / "__init__.py").write_text("raise RuntimeError('the engine was started')\n")
    (tmp_path / "sglang" / "srt" / "environ.py").write_text("SETTING = 7\n")
    (kernels / "extend_attention.py").write_text(
        "from sglang.srt.environ import SETTING\n"
        "from sglang.srt.utils import is_cuda, is_hip\n"
        "_is_cuda = is_cuda()\n"
        "assert not is_hip()\n"
    )
    (tmp_path / "sglang-0.5.23.dist-info").mkdir()
    write_version(tmp_path, "0.5.23")
    monkeypatch.syspath_prepend(tmp_path)
    # Triton itself is not needed here.
    monkeypatch.setattr(sglang_loader, "import_triton", lambda: None)
    monkeypatch.setattr(sglang_loader, "interpreted", lambda: True)
    sglang_loader.load.cache_clear()
    yield tmp_path
    sglang_loader.load.cache_clear()


def write_version(root: Path, version: str) -> None:
    metadata = root / "sglang-0.5.23.dist-info" / "METADATA"
    metadata.write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")


def test_a_module_is_loaded_without_running_the_packages_around_it(
    root: Path, recwarn: pytest.WarningsRecorder
) -> None:
    module = sglang_loader.load(KERNEL)

    assert module.__file__ == str(root.joinpath(*KERNEL.split(".")).with_suffix(".py"))
    assert (module.SETTING, module._is_cuda) == (7, False)
    assert sglang_loader.load(KERNEL) is module
    assert not recwarn.list


def test_compiled_mode_tells_the_module_that_there_is_cuda(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_loader, "interpreted", lambda: False)

    assert sglang_loader.load(KERNEL)._is_cuda is True


def test_nothing_of_sglang_stays_behind_and_what_was_there_comes_back(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {name: ModuleType(name) for name in ("sglang", "sglang.srt.utils")}
    theirs["sglang"].__spec__ = importlib.machinery.ModuleSpec("sglang", None, is_package=True)
    theirs["sglang"].__spec__.submodule_search_locations = [str(root / "sglang")]
    for name, module in theirs.items():
        monkeypatch.setitem(sys.modules, name, module)

    sglang_loader.load(KERNEL)

    left = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "sglang"}
    assert left == theirs


def test_another_release_is_warned_of_and_runs(root: Path) -> None:
    write_version(root, "0.6.0")

    with pytest.warns(UserWarning, match=r"sglang 0\.6\.0 is installed; .* checked in 0\.5\.23"):
        module = sglang_loader.load(KERNEL)

    assert module.SETTING == 7


def test_what_is_left_out_can_be_imported_and_not_called(root: Path) -> None:
    (root / "sglang/kernels/ops/attention/extend_attention.py").write_text(
        "from sglang.srt.scheduler import schedule\nfrom outside import thing\n"
    )

    module = sglang_loader.load(KERNEL, without=("sglang.srt.scheduler", "outside"))

    with pytest.raises(RuntimeError, match=r"sglang\.srt\.scheduler\.schedule is not loaded"):
        module.schedule(3)
    assert not {"sglang", "sglang.srt.scheduler", "outside"} & set(sys.modules)


def test_a_function_that_imports_more_is_called_while_it_can(root: Path) -> None:
    (root / "sglang/kernels/ops/attention/extend_attention.py").write_text(
        "MADE = []\n"
        "def ready():\n    from sglang.srt.environ import SETTING\n    MADE.append(SETTING)\n"
    )

    assert sglang_loader.load(KERNEL, first="ready").MADE == [7]
    with pytest.raises(RuntimeError, match="the engine was started"):
        sglang_loader.load(KERNEL, first="ready").ready()


def test_without_a_gpu_the_cuda_tree_is_unavailable_and_says_so() -> None:
    script = LOAD.replace("sglang_extend:sglang-extend", "sglang_cuda_tree:sglang-cuda-tree")

    assert printed_by(script) == (
        "sglang's CUDA tree kernels need a CUDA device, and torch sees none"
    )


def test_a_module_that_is_told_it_is_on_xpu_is_told_of_no_cuda(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_loader, "interpreted", lambda: False)
    (root / "sglang/kernels/ops/attention/extend_attention.py").write_text(
        "from sglang.srt.utils import is_cuda, is_xpu\nTOLD = is_cuda(), is_xpu()\n"
    )

    assert sglang_loader.load(KERNEL, "xpu").TOLD == (False, True)
    assert sglang_loader.load(KERNEL).TOLD == (True, False)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("from sglang.srt.utils import is_abacus\n", "is_abacus"),
        ("import sglang.srt.moved\n", "sglang.srt.moved"),
    ],
    ids=["new-question", "moved-module"],
)
def test_a_release_that_asks_for_more_is_unavailable_by_name(
    root: Path, written: str, said: str
) -> None:
    (root / "sglang/kernels/ops/attention/extend_attention.py").write_text(written)

    with pytest.raises(BackendUnavailable, match=said) as raised:
        sglang_loader.load(KERNEL)

    assert str(raised.value).startswith("sglang 0.5.23: ")
    assert not [name for name in sys.modules if name.partition(".")[0] == "sglang"]


def printed_by(script: str, **environment: str) -> str:
    """What a fresh process without a GPU prints."""
    kept = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**kept, "CUDA_VISIBLE_DEVICES": "", **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


LOAD = f"""
from treeproof.contract.registry import BackendUnavailable, load
try:
    load({REFERENCE!r})
except BackendUnavailable as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("package", "how"),
    [("sglang", "pip install --no-deps sglang==0.5.23"), ("triton", "pip install triton")],
)
def test_a_missing_package_makes_the_backend_unavailable_and_says_how_to_install_it(
    package: str, how: str
) -> None:
    blocked = f"""
import importlib.machinery, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        if name in ("sglang", "triton"):
            return importlib.machinery.ModuleSpec(name, None, is_package=True)

sys.meta_path.insert(0, Blocker())
"""

    said = printed_by(blocked + LOAD)

    assert said == f"package {package} is not installed; {how}"


def test_triton_imported_too_early_for_the_interpreter_makes_the_backend_unavailable() -> None:
    early = """
import sys, types

triton = types.ModuleType("triton")
language = types.ModuleType("triton.language")
language.cdiv = lambda x, y: -(-x // y)
sys.modules["triton"], sys.modules["triton.language"] = triton, language
"""

    said = printed_by(early + LOAD)

    assert said.startswith("triton was imported without TRITON_INTERPRET=1")


def test_loading_the_adapter_imports_neither_sglang_nor_triton() -> None:
    script = LOAD + "import sys\nprint([m for m in ('sglang', 'triton') if m in sys.modules])"

    assert printed_by(script).splitlines()[-1] == "[]"


FAILED = """Failed to build JIT module tree
stdout:
[1/2] nvcc -c "cuda.cu" -o "cuda_0.o"
[2/2] c++ cuda_0.o -L/usr/lib64 -lcudart -o "tree.so"
/usr/bin/ld: cannot find -lcudart: No such file or directory
ninja: build stopped: subcommand failed.

stderr:
"""


@pytest.mark.parametrize(
    ("home", "said"),
    [
        ("the/toolkit", ""),
        ("", "; CUDA_HOME is not set, /usr was taken for it"),
    ],
    ids=["named", "guessed"],
)
def test_of_kernels_that_do_not_compile_the_line_that_says_why_is_told_once(
    home: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fail(name: str, first: str) -> None:
        tried.append((name, first))
        raise RuntimeError(FAILED)

    monkeypatch.setattr(sglang_loader, "load", fail)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setenv("CUDA_HOME", home)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    cuda_tree._compiled.cache_clear()
    for _ in range(2):
        with pytest.raises(BackendUnavailable) as caught:
            cuda_tree.SglangCudaTree().load()
        assert str(caught.value) == (
            "sglang's CUDA tree kernels do not compile here: "
            f"/usr/bin/ld: cannot find -lcudart: No such file or directory{said}"
        )
    assert tried == [(cuda_tree.MODULE, "_jit_tree_module")]
    cuda_tree._compiled.cache_clear()


@pytest.mark.parametrize("missing", ["nvcc", "ninja", "c++"])
def test_a_tool_that_the_cuda_tree_is_compiled_with_is_asked_for_by_name(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def which(tool: str) -> str | None:
        return None if tool.endswith(missing) else f"/usr/bin/{tool.rpartition('/')[2]}"

    monkeypatch.setattr(cuda_tree, "interpreted", lambda: False)
    monkeypatch.setattr(shutil, "which", which)
    for name in ("CUDA_HOME", "CUDA_PATH", "CXX"):
        monkeypatch.delenv(name, raising=False)
    assert cuda_tree._unavailable().partition(" is not found: ")[0].endswith(missing)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/usr/bin/{tool.rpartition('/')[2]}")
    assert cuda_tree._unavailable() == ""
