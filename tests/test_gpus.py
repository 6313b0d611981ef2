"""One GPU a worker, chosen before torch is there to see more than one. nvidia-smi is a stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from test_engine_runner import CASES, FAKE_TORCH, check

from treeproof.config import ConfigError, read_value
from treeproof.contract.registry import BackendError
from treeproof.engine import gpus
from treeproof.engine.gpus import ANY, GpuError, of_workers, pins
from treeproof.engine.settings import RunSettings

HERE = Path(__file__).parent
TWO = """\
GPU 0: NVIDIA H200 (UUID: GPU-1a2b)
GPU 1: NVIDIA H200 (UUID: GPU-3c4d)
"""
CUT = """\
GPU 0: NVIDIA H200 (UUID: GPU-1a2b)
  MIG 3g.71gb     Device  0: (UUID: MIG-aa00)
  MIG 3g.71gb     Device  1: (UUID: MIG-bb11)
GPU 1: NVIDIA H200 (UUID: GPU-3c4d)
"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str | None], None]:
    """A machine whose nvidia-smi lists this; None: without one."""
    monkeypatch.delenv(gpus.VISIBLE, raising=False)

    def of(listing: str | None) -> None:
        gpus._listed.cache_clear()
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        (tmp_path / "bin").mkdir(exist_ok=True)
        if listing is not None:
            smi = tmp_path / "bin" / "nvidia-smi"
            smi.write_text(f"#!/bin/sh\n/bin/cat <<END\n{listing}END\n")
            smi.chmod(0o755)

    monkeypatch.setattr(gpus, "_listed", gpus._listed)  # so that its cache is not the next test's
    yield of
    gpus._listed.cache_clear()


Machine = Callable[[str | None], None]


def test_all_gpus_are_those_that_nvidia_smi_lists_and_the_parts_of_those_that_are_cut(
    machine: Machine,
) -> None:
    machine(TWO)
    assert pins("cuda") == ("GPU-1a2b", "GPU-3c4d")
    assert pins("cuda:1") == ("GPU-3c4d",)
    assert pins("cuda:1,cuda:GPU-1a2b") == ("GPU-3c4d", "GPU-1a2b")
    machine(CUT)
    assert pins("cuda") == ("MIG-aa00", "MIG-bb11", "GPU-3c4d")
    assert pins("cuda:MIG-bb11") == ("MIG-bb11",)


def test_where_the_environment_names_gpus_there_are_no_others(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(TWO)
    monkeypatch.setenv(gpus.VISIBLE, "3, 1,-1,0")  # CUDA reads no further than what is none
    assert pins("cuda") == ("3", "1")
    assert pins("cuda:1,cuda:0") == ("1", "3")
    monkeypatch.setenv(gpus.VISIBLE, "MIG-aa00")
    assert pins("cuda") == pins("cuda:0") == pins("cuda:MIG-aa00") == ("MIG-aa00",)


def test_where_nobody_tells_what_there_is_torch_is_left_to_find_out(machine: Machine) -> None:
    machine(None)
    assert pins("cuda") == (ANY,)
    assert pins("cuda:1,cuda:0") == ("1", "0")
    machine("Failed to initialize NVML\n")  # a driver that does not answer lists none
    assert gpus.visible() == ()


@pytest.mark.parametrize(
    ("visible", "device", "workers", "words"),
    [
        (None, "cuda:2", None, "device cuda:2: there are cuda:0, cuda:1"),
        (None, "cuda:0,cuda:0", None, "GPU GPU-1a2b is named twice, and a GPU takes one worker"),
        (None, "cuda:0,cuda:GPU-1a2b", None, "GPU GPU-1a2b is named twice"),
        (None, "cuda:GPU-9999", None, "device cuda:GPU-9999: there are GPU-1a2b, GPU-3c4d"),
        (None, "cuda", 3, "workers is 3: device cuda is 2 GPUs, and a GPU takes one worker"),
        (None, "cuda:1", 2, "workers is 2: device cuda:1 is 1 GPU, and a GPU takes one worker"),
        ("", "cuda", None, "device cuda: there are no GPUs, CUDA_VISIBLE_DEVICES being ''"),
        ("0,0", "cuda", None, "CUDA_VISIBLE_DEVICES is '0,0': 0 is named twice"),
        ("1", "cuda:1", None, "device cuda:1: there are cuda:0"),
        ("", "cuda:0", None, "device cuda:0: there are no GPUs"),
    ],
)
def test_gpus_that_cannot_be_had_are_refused_with_those_that_can(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    device: str,
    workers: int | None,
    words: str,
) -> None:
    machine(TWO)
    if visible is not None:
        monkeypatch.setenv(gpus.VISIBLE, visible)
    with pytest.raises(GpuError) as refused:
        of_workers(device, workers)
    assert words in str(refused.value)
    assert isinstance(refused.value, BackendError)  # which every command takes for a usage error


def test_workers_are_as_many_as_there_are_gpus_unless_fewer_are_asked_for(
    machine: Machine,
) -> None:
    machine(TWO)
    assert RunSettings(backends=("any",), device="cuda").worker_count == 2
    assert RunSettings(backends=("any",), device="cuda:1").worker_count == 1
    assert of_workers("cuda", 1) == ("GPU-1a2b",)


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:0,cuda:2", "cuda:MIG-1a/2/3", "cuda:12"])
def test_a_device_is_taken_as_it_is_written(device: str) -> None:
    assert read_value("device", device, "--device") == {"device": device}


@pytest.mark.parametrize(
    "device", ["gpu", "cuda:", "cuda:0,", "cuda,cuda:1", "cpu,cuda:0", "cuda:x"]
)
def test_what_is_no_device_is_refused_with_what_is_one(device: str) -> None:
    with pytest.raises(ConfigError, match="several of these such as cuda:0,cuda:2"):
        read_value("device", device, "--device")


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """Write a backend file, in a process in which torch is a stand-in."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.chdir(tmp_path)
    Path("fake").mkdir()
    Path("fake/torch.py").write_text(FAKE_TORCH)
    monkeypatch.syspath_prepend("fake")

    def write(name: str, body: str) -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(
            f"import os\nimport treeproof\n\n\n@treeproof.register({name!r})\ndef attend(case):\n"
            + textwrap.indent(textwrap.dedent(body), "    ")
        )
        return str(path)

    return write


SEES = """
import time
with open("seen.txt", "a") as file:
    file.write(os.environ.get("CUDA_VISIBLE_DEVICES", "all") + "\\n")
time.sleep(0.05)
return []
"""


def test_each_worker_sees_one_gpu_and_no_two_the_same(
    backend: Callable[[str, str], str], machine: Machine
) -> None:
    machine(TWO)
    found = check(backend("sees", SEES), device="cuda", workers=None)
    assert found.completed_checks("sees") == len(CASES)
    assert set(Path("seen.txt").read_text().split()) == {"GPU-1a2b", "GPU-3c4d"}
    assert found.meta.device_name == "2 x a device"


def test_the_gpu_of_a_worker_that_is_replaced_stays_its_own(
    backend: Callable[[str, str], str], machine: Machine
) -> None:
    machine(CUT)
    dies = f"{SEES.replace('return []', '')}\nif case.seed == 3: os._exit(1)\nreturn []"
    found = check(backend("dies", dies), device="cuda:MIG-bb11", workers=None)
    assert [loss.case for loss in found.losses] == [CASES[3].id]
    assert found.completed_checks("dies") == len(CASES)
    assert set(Path("seen.txt").read_text().split()) == {"MIG-bb11"}


PRINTS = """
import os, pytest

@pytest.mark.parametrize("turn", range(6))
def test_of_a_session(turn):
    with open("seen.txt", "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + " " + os.environ["CUDA_VISIBLE_DEVICES"] + "\\n")
"""


def test_processes_of_a_pytest_session_take_a_gpu_each_and_say_so_where_two_share_one(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(TWO)
    monkeypatch.chdir(tmp_path)
    Path("test_prints.py").write_text(PRINTS)
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "--dist", "each", "test_prints.py"]
    command += ["--treeproof-device", "cuda", "-p", "no:cacheprovider", "-n", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = set(Path("seen.txt").read_text().splitlines())
    assert seen == {"gw0 GPU-1a2b", "gw1 GPU-3c4d", "gw2 GPU-1a2b"}
    assert "gw2 and gw0 are both on GPU GPU-1a2b: there are 2" in done.stdout


def test_this_very_process_takes_one_gpu(
    backend: Callable[[str, str], str], machine: Machine
) -> None:
    machine(TWO)
    with pytest.raises(GpuError, match=r"this process takes one GPU, such as cuda:0 \(or -n 1\)"):
        check(backend("sees", SEES), device="cuda:0,cuda:1", workers=0)
    assert os.environ.get(gpus.VISIBLE) is None
