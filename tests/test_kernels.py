"""A backend that names its kernels is held to them: what ran is seen, and nothing else passes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from torch.autograd.profiler import profile

from treeproof.contract.backend import Backend, BackendError, describe
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.failure import PROBES
from treeproof.contract.kernels import Kernel, absent, matches, present
from treeproof.contract.registry import load
from treeproof.engine.check import CheckOptions, check_case
from treeproof.faults.smallest import FORK, case, request
from treeproof.properties.probes.kernels import profiled

CASE = case(request(FORK, 3))
RELEASE = torch.__version__.partition("+")[0]


def naming(*kernels: str) -> Backend:
    """`direct-mask`, which runs torch's matrix products, as if it named these."""
    return replace(load("direct-mask"), kernels=frozenset(kernels))


def checked(backend: Backend, case: VerifyCase = CASE, **options: Any) -> Checked:
    return check_case(case, backend, CheckOptions(**options))


def contract_of(result: Checked) -> set[tuple[str, str]]:
    return {(c.status, c.reason) for c in result.cells if c.identity == "contract"}


def test_a_launch_that_runs_what_is_named_passes_and_says_what_it_was() -> None:
    result = checked(naming("aten::bmm", "flash_fwd*|aten::soft*"))

    assert result.failures == ()
    assert result.kernels == (
        Kernel(name="aten::bmm", mode="eager", on=f"torch {RELEASE}"),
        Kernel(name="aten::softmax", mode="eager", on=f"torch {RELEASE}"),
    )
    assert contract_of(result) == {("pass", "")}


def test_a_fall_back_to_plain_torch_is_a_failure_that_says_what_ran_instead() -> None:
    result = checked(naming("aten::bmm", "masked_attention"))

    (failure,) = result.failures
    assert (failure.key, failure.stage) == (("contract", "other-kernel"), "attend")
    assert failure.message.startswith("attend does not launch masked_attention; it ran aten::")
    assert contract_of(result) == {("fail", "")}
    assert [kernel.name for kernel in result.kernels] == ["aten::bmm"]


def test_the_probe_alone_sees_a_fall_back() -> None:
    wrong = naming("masked_attention")

    assert {f.probe for f in checked(wrong).failures} == {"kernels"}
    assert checked(wrong, probes=frozenset({"kernels"})).failures[0].kind == "other-kernel"
    assert checked(wrong, probes=frozenset(PROBES) - {"kernels"}).failures == ()


def test_a_part_of_the_cases_looks_by_its_seed_and_nightly_all_of_them() -> None:
    wrong = naming("masked_attention")
    failing = [bool(checked(wrong, case(request(), seed=n)).failures) for n in range(1, 5)]

    assert failing == [True, False, True, False]
    assert checked(wrong, case(request(), seed=2), profile="nightly").failures


def test_what_cannot_be_seen_is_neither_passed_nor_failed() -> None:
    with profile():  # the user's own, which must not be taken from them
        result = checked(naming("aten::bmm"))

    assert result.failures == ()
    assert result.kernels == ()
    why = "whether it launches aten::bmm was not seen: another profile is being recorded"
    assert ("not-checked", why) in contract_of(result)


def test_a_kernel_in_tritons_interpreter_is_seen_by_the_name_of_its_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interpreter is a stand-in with the one method that its kernels are launched by."""

    class InterpretedFunction:
        def __init__(self, fn: Any) -> None:
            self.fn = fn

        def run(self, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
            return None if warmup else self.fn(*arguments, **options)

    def masked_attention(x: int) -> int:
        return x + 1

    interpreter, triton = type(sys)("interpreter"), type(sys)("triton")
    interpreter.__dict__["InterpretedFunction"] = InterpretedFunction
    triton.__dict__["__version__"] = "3.9.0"
    monkeypatch.setitem(sys.modules, "triton.runtime.interpreter", interpreter)
    monkeypatch.setitem(sys.modules, "triton", triton)
    kernel, device = InterpretedFunction(masked_attention), torch.device("cpu")
    before = InterpretedFunction.run

    result, ran = profiled(lambda: kernel.run(1, grid=(1,), warmup=False), device)
    seen = present({"masked_*"}, ran.kernels)
    assert result == 2
    assert seen == (Kernel(name="masked_attention", mode="interpreted", on="triton 3.9.0"),)

    _, warmed = profiled(lambda: kernel.run(1, grid=(1,), warmup=True), device)
    assert absent({"masked_*"}, warmed.kernels) == ["masked_*"]  # compiled, and not launched
    assert InterpretedFunction.run is before


@pytest.mark.parametrize(
    ("named", "kernel", "same"),
    [
        ("masked_attention", "masked_attention", True),
        ("masked_attention", "masked_attention_v2", False),
        ("*flash_fwd*|*FlashAttnFwd*", "void flash::FlashAttnFwdSm90<8>", True),
        ("flash_fwd | other", "other", True),
        ("*flash_fwd*|*FlashAttnFwd*", "flash_bwd", False),
        ("FLASH*", "flash_fwd", False),
    ],
)
def test_a_name_is_a_pattern_or_several(named: str, kernel: str, same: bool) -> None:
    assert matches(named, kernel) is same


def test_every_name_must_be_seen() -> None:
    ran = [Kernel(name=name, mode="compiled", on="sm_90") for name in ("prefix", "merge")]

    assert absent({"prefix", "merge"}, ran) == []
    assert absent({"prefix", "suffix", "merge"}, ran) == ["suffix"]


@pytest.mark.parametrize("kernels", ["masked_attention", {""}, {1}])
def test_kernels_that_are_no_set_of_names_are_refused(kernels: Any) -> None:
    with pytest.raises(BackendError, match=r"kernels is .*: a set of names is expected"):
        describe(lambda x: x, "mine", kernels=kernels)


def test_kernels_of_a_backend_without_attend_are_refused() -> None:
    with pytest.raises(BackendError, match="kernels are those of attend, a stage that it lacks"):
        describe(lambda x: x, "mine", stages={"accept"}, kernels={"walk"})


def test_events_of_an_earlier_release_are_read() -> None:
    old = b'{"type":"checked","case":"c","backend":"b","cells":[],"compiled":true}'
    assert msgspec.json.decode(old, type=Checked).kernels == ()


def test_the_profiler_does_not_talk_on_standard_error() -> None:
    code = "import torch; from treeproof.properties.probes.kernels import profiled; "
    code += "print(len(profiled(lambda: torch.ones(2) + 1, torch.device('cpu'))[1].kernels))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert int(done.stdout) > 1
    assert done.stderr == ""
