"""A kernel that cannot run here, one that does not compile, and one that is broken: told apart."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch._inductor.exc import InductorError, LoweringException

import treeproof
from treeproof.backends.direct_mask import DirectMask
from treeproof.contract.backend import Backend, describe
from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.runner import run
from treeproof.engine.settings import RunSettings


class NoValidChoicesError(RuntimeError):
    """As Inductor's, whose module takes seconds to import."""


CASE = VerifyCase(
    requests=(
        Request(tree=CandidateTree((5, 6, 7), (-1, 0, 0)), row_of_node=(0, 1, 2), prefix_len=3),
    ),
    shape=AttentionShape(num_q_heads=2, num_kv_heads=1, head_dim=16, v_head_dim=16),
    layout=KVLayout(page_size=1, num_slots=16),
)


def of_triton(name: str, words: str, **attributes: Any) -> Exception:
    """An exception as Triton raises it, on machines without Triton too."""
    kind = type(name, (Exception,), {"__module__": "triton.runtime.errors"})
    error = kind(words)
    assert isinstance(error, Exception)
    error.__dict__.update(attributes)
    return error


def not_compiled(reason: str) -> Exception:
    """Triton's CompilationError: the kernel's text, the node it stopped at, the reason."""
    source = "def tree_kernel(q, out):\n    row = tl.program_id(0)\n    tl.store(out, tl.foo(q))\n"
    node = ast.parse(source).body[0].body[1]  # type: ignore[attr-defined]
    words = f"at 3:4:\n{source}\n    ^\n{reason}"
    return of_triton("CompilationError", words, src=source, node=node, error_message=reason)


class Mute(RuntimeError):
    """An exception that cannot say what it is about."""

    def __str__(self) -> str:
        raise ValueError("no words")


class MuteImport(Mute, ImportError):
    pass


OUT_OF_RESOURCES = of_triton(
    "OutOfResources",
    "out of resource: shared memory, Required: 262144, Hardware limit: 232448. Reducing block sizes "
    "or `num_stages` may help.",
)
FP8 = not_compiled("ValueError('type fp8e4nv not supported in this architecture')")
NO_CHOICE = InductorError(
    LoweringException(
        NoValidChoicesError("No choices to select. Provided reason: …"), "flex", [], {}
    ),
    None,
)
NO_IMAGE = RuntimeError(
    "CUDA error: no kernel image is available for execution on the device\nmore"
)


def kernel(error: Exception, *, after: int = 0, stage: str = "attend") -> Backend:
    """direct-mask whose `stage` raises from its call number `after` on."""
    calls = [0]

    class Raises(DirectMask):
        pass

    def raising(self: Any, *arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] > after:
            raise error
        return getattr(DirectMask, stage)(self, *arguments)

    setattr(Raises, stage, raising)
    return describe(Raises, "raises")


def check(backend: Backend) -> Checked:
    return check_case(CASE, backend, CheckOptions())


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            OUT_OF_RESOURCES,
            "unsupported",
            "attend: OutOfResources: out of resource: shared memory, ",
        ),
        (
            FP8,
            "unsupported",
            "attend: CompilationError in kernel tree_kernel, line 3 of it (tl.store(out, tl.foo(q))): "
            "ValueError('type fp8e4nv not supported in this architecture') (test_unable.py, line ",
        ),
        (
            NO_CHOICE,
            "unsupported",
            "attend: InductorError: LoweringException: NoValidChoicesError: No choices to select. Provided reason",
        ),
        (
            NO_IMAGE,
            "unavailable",
            "attend: RuntimeError: CUDA error: no kernel image is available for execution on the "
            "device; it has to be built for this device and driver",
        ),
        (
            ModuleNotFoundError("No module named 'no_such'", name="no_such"),
            "unavailable",
            "attend: No module named 'no_such'; pip install no_such (test_unable.py, line ",
        ),
        (
            ImportError("cannot import name 'trea' from 'msgspec'", name="msgspec"),
            "unavailable",
            "attend: cannot import name 'trea' from 'msgspec'; msgspec ",
        ),
    ],
)
def test_what_the_device_or_the_installation_lacks_is_no_finding(
    error: Exception, status: str, said: str
) -> None:
    checked = check(kernel(error))
    assert checked.failures == ()
    assert {cell.status for cell in checked.cells} == {status}
    (reason,) = {cell.reason for cell in checked.cells}
    assert reason.startswith(said)
    assert "\n" not in reason


@pytest.mark.parametrize("error", [OUT_OF_RESOURCES, FP8, NO_CHOICE, NO_IMAGE, ImportError("no")])
def test_the_same_after_a_launch_on_the_same_case_is_a_finding(error: Exception) -> None:
    (failure,) = check(kernel(error, after=1)).failures
    assert (failure.key, failure.stage) == (("contract", "raises"), "attend")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            not_compiled("AttributeError(\"module 'triton.language' has no attribute 'foo'\")"),
            "attend raised CompilationError in kernel tree_kernel, line 3 of it (tl.store(out, "
            "tl.foo(q))): AttributeError(\"module 'triton.language' has no attribute 'foo'\") "
            "(test_unable.py, line ",
        ),
        (
            of_triton("PTXASError", "PTXAS error: Internal Triton PTX codegen error\n`ptxas` stderr:\n"
                      "ptxas /x.ptx, line 80; error   : Unknown symbol 'a'\n" + "more\n" * 200),
            "attend raised PTXASError: PTXAS error: Internal Triton PTX codegen error; ptxas /x.ptx, "
            "line 80; error   : Unknown symbol 'a' (test_unable.py, line ",
        ),
        (
            NotImplementedError("head dim 16"),
            "attend raised NotImplementedError: head dim 16 (test_unable.py, line ",
        ),
        (AttributeError("module 'k' has no attribute 'x'"), "attend raised AttributeError: module "),
        (RuntimeError("CUDA error: an illegal memory access"), "attend raised RuntimeError: CUDA "),
        (RuntimeError("out of resource: shared memory"), "attend raised RuntimeError: out of "),
        (Mute(), "attend raised Mute: (making its text raises ValueError) (test_unable.py, line "),
        (type("K" * 10_000_000, (Exception,), {})("x"), "attend raised " + "K" * 300 + ": x ("),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_kernel_stays_a_finding_in_one_line(
    error: Exception, said: str
) -> None:
    (failure,) = check(kernel(error)).failures
    assert failure.key == ("contract", "raises")
    assert failure.message.startswith(said)
    assert "\n" not in failure.message
    assert len(failure.message) < 700


def test_a_package_that_is_missed_without_words_is_told_all_the_same() -> None:
    checked = check(kernel(MuteImport()))
    assert checked.failures == ()
    (reason,) = {cell.reason for cell in checked.cells}
    assert reason.startswith("attend: (making its text raises ValueError)")


def test_a_refusal_inside_the_capabilities_says_where_to_declare_it() -> None:
    (failure,) = check(kernel(NotImplementedError("head dim 16"))).failures
    assert failure.message.endswith("; Capabilities can say which cases the backend does not take")


def test_a_package_that_only_a_later_stage_misses_leaves_no_verdict_either() -> None:
    checked = check(kernel(ImportError("no"), stage="accept"))
    assert {cell.status for cell in checked.cells} == {"unavailable"}
    assert checked.failures == ()


@pytest.mark.parametrize(
    "slip",
    [lambda x, q, *_: torch.einsum("hd,ld->hl", q, q), lambda x, q, *_: treeproof.store_kv(x, *[0] * 4)],
    ids=["in torch", "in store_kv"],
)  # fmt: skip
def test_the_line_that_is_named_is_the_kernels_and_neither_torchs_nor_ours(slip: Any) -> None:
    class Slips(DirectMask):
        def attend(self, *arguments: Any) -> Any:
            return slip(*arguments)

    (failure,) = check(describe(Slips, "slips")).failures
    line = slip.__code__.co_firstlineno
    assert f"(test_unable.py, line {line}, in <lambda>)" in failure.message


SOMETIMES = """
import treeproof
from treeproof.backends.direct_mask import DirectMask

@treeproof.register("sometimes")
class Sometimes(DirectMask):
    def attend(self, x, *tensors):
        if x.shape.head_dim in {head_dims}:
            raise {error}
        return super().attend(x, *tensors)
"""
UNAVAILABLE = 'treeproof.BackendUnavailable("no wheel")'


@pytest.mark.parametrize(
    ("head_dims", "error", "code", "missing"),
    [
        ([64], UNAVAILABLE, 3,
         ["backend sometimes could not run in 1 of 2 cases: no wheel; Capabilities can say which it "
          "does not take"]),
        ([16, 64], UNAVAILABLE, 3, ["backend sometimes completed no check: no wheel"]),
        ([64], "NotImplementedError", 1, []),
        ([], "ValueError", 0, []),
    ],
)  # fmt: skip
def test_cases_in_which_a_backend_finds_it_cannot_run_make_the_run_incomplete(
    tmp_path: Path, head_dims: list[int], error: str, code: int, missing: list[str]
) -> None:
    file = tmp_path / "sometimes.py"
    file.write_text(SOMETIMES.format(head_dims=head_dims, error=error))
    settings = RunSettings(
        backends=(str(file),), workers=0, reduce=False, store=None, run_dir=tmp_path / "run"
    )
    wide = replace(CASE, shape=replace(CASE.shape, head_dim=64))
    found = run(settings, cases=[CASE, wide])
    assert (found.exit_code, list(found.missing)) == (code, missing)


def test_an_exception_that_is_called_as_inductors_and_has_no_words_is_a_finding() -> None:
    def words(self: Any) -> str:
        raise RuntimeError("no words")

    error = type("InductorError", (Exception,), {"__str__": words})()
    (failure,) = check(kernel(error)).failures
    assert failure.key == ("contract", "raises")
