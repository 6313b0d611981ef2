"""FlexAttention through the public interface: right everywhere, and seen wrong when made wrong."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from treeproof.backends.adapters import flex_attention
from treeproof.contract.capabilities import Numerics
from treeproof.contract.case import (
    AttentionShape,
    KVLayout,
    MaskLayout,
    MaskMode,
    Request,
    VerifyCase,
    Window,
)
from treeproof.contract.event import Checked
from treeproof.contract.registry import load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.generate.units import draw, units

REFERENCE = "treeproof.backends.adapters.flex_attention:flex-attention"
FORK = Request(
    tree=CandidateTree(tokens=(11, 12, 13), parents=(-1, 0, 0)), row_of_node=(0, 1, 2), prefix_len=1
)
SIX = Request(
    tree=CandidateTree(tokens=(11, 12, 13, 14, 15, 16), parents=(-1, 0, 0, 1, 2, 1)),
    row_of_node=(0, 2, 1, 4, 3, 5),
    prefix_len=21,
    pad_rows=2,
)
UNITS = units("quick", 0, examples=72)
"""Of three cases one at least is plain: without quantised cache."""


def checked(case: VerifyCase, backend: Any = None) -> Checked:
    return check_case(case, backend or load(REFERENCE), CheckOptions())


def statuses(result: Checked) -> dict[str, str]:
    return {c.identity: c.status for c in result.cells if c.evidence == "measured"}


def case_of(*requests: Request, dtype: str = "float32", **fields: Any) -> VerifyCase:
    """Grouped query heads, a shuffled cache of pages of two slots."""
    window = fields.pop("window", None)
    shape = AttentionShape(
        num_q_heads=4, num_kv_heads=2, head_dim=32, v_head_dim=32, dtype=dtype,
        **{name: fields.pop(name) for name in ("softcap", "sinks", "alibi") if name in fields},
        **({} if window is None else {"visibility": Window(width=window)}),
    )  # fmt: skip
    return VerifyCase(
        requests=requests,
        shape=shape,
        layout=KVLayout(page_size=2, num_slots=64, order="shuffled"),
        **fields,
    )


@pytest.mark.parametrize(
    "unit",
    [
        pytest.param(unit, id=unit.shape.name, marks=[pytest.mark.long] * (i % 6 > 0))
        for i, unit in enumerate(UNITS)
    ],
)
def test_flex_attention_passes_on_a_generated_case_of_every_shape(unit: Any) -> None:
    able = load(REFERENCE).capabilities
    case = next(case for case in draw(unit) if able.refusal(case, "cpu") is None)

    result = checked(case)

    assert result.failures == ()
    found = statuses(result)
    assert (found["visibility"], found["output"], found["contract"]) == ("pass",) * 3


@pytest.mark.parametrize("mode", list(MaskMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("window", [None, 2, 9], ids=["full", "two-keys", "nine-keys"])
def test_flex_attention_passes_with_every_mask_and_window(
    mode: MaskMode, window: int | None
) -> None:
    mask = MaskLayout(mode=mode, slack=3, fill_prefix=False)

    result = checked(case_of(FORK, SIX, window=window, mask=mask))

    assert result.failures == ()
    assert [(k.name, k.mode) for k in result.kernels] == [("FlexAttentionAutogradOp", "eager")]
    assert statuses(result)["visibility"] == "pass"


@pytest.mark.parametrize(
    "scores",
    [
        {"softcap": 20.0, "sinks": True, "alibi": True},
        pytest.param({"softcap": 3.0}, marks=pytest.mark.long),
        pytest.param({"alibi": True}, marks=pytest.mark.long),
        pytest.param({"sinks": True}, marks=pytest.mark.long),
    ],
    ids=["all-three", "softcap", "alibi", "sinks"],
)
def test_scores_are_capped_biased_and_weighed_against_sinks(scores: dict[str, Any]) -> None:
    result = checked(case_of(SIX, window=9, **scores))

    assert result.failures == ()
    assert statuses(result)["output"] == "pass"


@pytest.mark.parametrize(
    "lost",
    [
        "sinks",
        pytest.param("softcap", marks=pytest.mark.long),
        pytest.param("alibi_slopes", marks=pytest.mark.long),
    ],
)
def test_a_cap_a_bias_or_a_sink_left_out_is_seen(lost: str) -> None:
    class Without(Wrapped):
        def attend(self, x: Any, *tensors: Any) -> Any:
            if lost == "softcap":
                plain = msgspec.structs.replace(x.shape, softcap=None)
                return self.right.attend(replace(x, shape=plain), *tensors)
            return self.right.attend(replace(x, **{lost: None}), *tensors)

    scores = {"softcap": 3.0} if lost == "softcap" else {lost.removesuffix("_slopes"): True}
    result = checked(case_of(SIX, **scores), replace(load(REFERENCE), make=Without))

    found = {f.kind for f in result.failures if f.identity == "output"}
    assert found == {"outside-bound", "wrong-lse"}


def test_the_compiled_backend_calls_what_torch_compile_gives_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here eager; compiled it runs on CUDA."""
    compiled = []
    whole = torch.compile  # the eager one calls it as well, to compile nothing

    def compile_nothing(function: Any, **options: Any) -> Any:
        if function is not flex_attention.flex_attention:
            return whole(function, **options)
        compiled.append(options)
        return function

    monkeypatch.setattr(torch, "compile", compile_nothing)
    flex_attention._compiled.cache_clear()
    backend = load(REFERENCE + "-compiled")
    able = msgspec.structs.replace(backend.capabilities, devices={"cpu"})
    try:
        result = checked(
            case_of(FORK, dtype="bfloat16", sinks=True),
            replace(backend, capabilities=able, kernels=frozenset()),
        )
    finally:
        flex_attention._compiled.cache_clear()

    assert backend.capabilities.refusal(case_of(FORK), "cpu") == "device cpu"
    assert result.failures == ()
    assert compiled == [{"dynamic": True, "fullgraph": True}]


@pytest.mark.parametrize("requests", [(SIX,), (SIX, FORK)], ids=["alone", "beside a shorter one"])
def test_evicted_pages_and_negative_slots_in_the_lists_are_never_read(
    requests: tuple[Request, ...],
) -> None:
    """A shorter one is filled up, and not with a page that was given back."""
    layout = KVLayout(page_size=2, num_slots=64, pad_slot=-1, page_table_pad=-1, evicted=True)

    result = checked(replace_layout(case_of(*requests, window=5), layout))

    assert result.failures == ()


def replace_layout(case: VerifyCase, layout: KVLayout) -> VerifyCase:
    return VerifyCase(requests=case.requests, shape=case.shape, layout=layout)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("spread", [1.0, 8.0])
def test_half_precision_keeps_scores_in_float32_and_rounds_the_weights(
    dtype: str, spread: float
) -> None:
    """A score of 8 sigma kept in bfloat16 would be off by 2**-8 of itself, far outside the bound."""
    result = checked(case_of(SIX, dtype=dtype, score_spread=spread))

    assert result.failures == ()
    assert result.margin is not None
    assert 0.1 < result.margin < 1


def test_declaring_weights_in_float32_is_found_out() -> None:
    backend = replace(load(REFERENCE), numerics=Numerics(p="float32"))

    result = checked(case_of(SIX, dtype="bfloat16"), backend)

    assert {f.kind for f in result.failures} == {"outside-bound"}


class Wrapped:
    """FlexAttention with something changed on the way in or out."""

    def __init__(self) -> None:
        self.right: Any = load(REFERENCE).make()


class BaseTwo(Wrapped):
    def attend(self, x: Any, *tensors: Any) -> Any:
        attended = self.right.attend(x, *tensors)
        return replace(attended, lse=attended.lse / math.log(2))


class EverythingVisible(Wrapped):
    def attend(self, x: Any, *tensors: Any) -> Any:
        return self.right.attend(replace(x, custom_mask=torch.ones_like(x.custom_mask)), *tensors)


@pytest.mark.parametrize(
    ("wrong", "kinds"),
    [
        (BaseTwo, {"wrong-lse"}),
        (EverythingVisible, {"reads-sibling", "reads-descendant", "outside-bound", "wrong-lse"}),
    ],
    ids=["log-base-two", "no-mask"],
)
def test_a_wrong_log_base_and_a_dropped_mask_are_seen(wrong: type, kinds: set[str]) -> None:
    result = checked(case_of(FORK), replace(load(REFERENCE), make=wrong))

    assert {f.kind for f in result.failures} == kinds


def test_a_torch_that_is_too_old_makes_the_backend_unavailable() -> None:
    script = (
        "import torch.nn.attention.flex_attention as flex\n"
        "del flex.AuxRequest\n"
        "from treeproof.contract.registry import BackendUnavailable, load\n"
        "try:\n"
        f"    load({REFERENCE!r})\n"
        "except BackendUnavailable as error:\n"
        "    print(error)\n"
    )

    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert printed.stdout.strip().endswith("pip install 'torch>=2.9'"), printed.stderr


@pytest.mark.parametrize(
    ("scores", "longer", "calls"),
    [
        (1, 256, [(1, 3), (1, 3), (1, 3), (1, 8)]),
        (600, 256, [(3, 3), (1, 8)]),
        (flex_attention._SCORES, 256, [(4, 8)]),
        (flex_attention._SCORES, 7, [(4, 8)]),
        (flex_attention._SCORES, 6, [(3, 3), (1, 8)]),
    ],
)
def test_a_batch_that_would_be_filled_up_too_much_is_right_in_several_calls(
    scores: int, longer: int, calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four heads: a FORK has 3 x 4 x 4 scores, and SIX 8 x 17 x 4 in a window of nine; filled up to SIX, all four
    have 2,176. A FORK has a prefix of one key, the window of SIX nine."""
    monkeypatch.setattr(flex_attention, "_SCORES", scores)
    monkeypatch.setattr(flex_attention, "_ANY_LENGTH", longer)
    seen: list[tuple[int, int]] = []
    right = flex_attention.flex_attention

    def counted(q: torch.Tensor, *given: Any, **options: Any) -> Any:
        seen.append((q.shape[0], q.shape[2]))
        return right(q, *given, **options)

    monkeypatch.setattr(flex_attention, "flex_attention", counted)
    case = case_of(FORK, FORK, SIX, FORK, window=9, sinks=True)
    result = checked(case)
    assert not result.failures, result.failures[0].message
    assert seen[: len(calls)] == calls
