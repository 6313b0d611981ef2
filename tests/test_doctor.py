"""What `treeproof doctor` says of GPUs, on a machine that has none: torch's answers are stand-ins."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from treeproof.commands import doctor
from treeproof.commands.doctor import examine
from treeproof.commands.finding import Finding
from treeproof.commands.gpu_findings import gpu_findings

H200 = SimpleNamespace(name="NVIDIA H200", major=9, minor=0)
SMI = "#!/bin/sh\nprintf '570.86.15\\n570.86.15\\n'\n"


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Two GPUs that run kernels, and the text of an nvidia-smi to find first."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: H200)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (130 * 2**30, 139 * 2**30))
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, device: ones(*size))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def smi(text: str) -> None:
        (tmp_path / "nvidia-smi").write_text(text)
        (tmp_path / "nvidia-smi").chmod(0o755)

    smi(SMI)
    return smi


def refused(found: list[Finding]) -> list[str]:
    return [finding.found for finding in found if not finding.ok]


def test_every_gpu_is_named_with_its_driver_and_memory(two_gpus: Callable[[str], None]) -> None:
    found = [(finding.name, finding.found) for finding in gpu_findings("cuda")]
    about = "NVIDIA H200, sm_90, 130 of 139 GiB free"
    assert found == [
        ("driver", "570.86.15"), ("gpu", f"cuda:0 {about}"), ("gpu", f"cuda:1 {about}"),
    ]  # fmt: skip
    assert refused(gpu_findings("cuda:1")) == []


def test_a_gpu_that_is_not_there_is_refused_by_its_index(two_gpus: Callable[[str], None]) -> None:
    (_, gpu) = gpu_findings("cuda:2")
    assert (gpu.found, gpu.advice, gpu.ok) == ("no cuda:2", "there are cuda:0, cuda:1", False)


def test_a_gpu_that_runs_no_kernel_is_refused_in_the_drivers_words(
    two_gpus: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ones = torch.ones

    def broken(*size: int, device: str) -> torch.Tensor:
        if device == "cuda:1":
            raise RuntimeError("no kernel image is available for execution\nCompile with …")
        return ones(*size, device=device)

    monkeypatch.setattr(torch, "ones", broken)
    assert refused(gpu_findings("cuda")) == ["cuda:1: no kernel image is available for execution"]
    assert refused(gpu_findings("cuda:0")) == []
    assert refused(gpu_findings("cpu")) == []


def test_a_gpu_that_adds_wrongly_is_refused(
    two_gpus: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "ones", lambda *size, device: torch.zeros(*size))
    assert refused(gpu_findings("cuda:0")) == ["cuda:0 adds wrongly: 1024.0"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\necho 'Failed to initialize NVML: version mismatch' >&2\nexit 18\n",
         "unknown: Failed to initialize NVML: version mismatch"),
        ("#!/bin/sh\nexit 9\n", "unknown: nvidia-smi fails"),
        ("no program", "unknown: [Errno 8]"),
    ],
)  # fmt: skip
def test_a_driver_that_does_not_answer_is_unknown(
    two_gpus: Callable[[str], None], text: str, said: str
) -> None:
    two_gpus(text)
    assert gpu_findings("cuda")[0].found.startswith(said)


def test_no_gpu_is_an_error_only_where_one_is_to_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_old() -> int:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", too_old)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    (gpu,) = gpu_findings("cuda")
    assert gpu.found == ("none: The NVIDIA driver on your system is too old (found version 11040).")
    assert "new enough for CUDA 12.8" in gpu.advice
    assert not gpu.ok
    assert refused(gpu_findings("cpu")) == []


def test_a_full_disk_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert refused(examine(tmp_path)) == []
    usage = SimpleNamespace(free=500_000_000)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: usage)
    assert refused(examine(tmp_path)) == ["0.5 GB free"]
