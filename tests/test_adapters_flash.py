"""FlashAttention's adapters against stand-ins with the documented signatures, on the CPU.

A stand-in computes by another route (`flash_dense`), and refuses what its build refuses. What the
real kernels compute shows on a GPU only.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from treeproof.backends.adapters import (
    flash_backend,
    flash_call,
    flash_cascade,
    flash_library,
    flash_page_table,
    flash_swa_window,
)
from treeproof.backends.adapters.flash_call import Flash, Keys, Layer
from treeproof.backends.adapters.row_lists import RowLists
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
from treeproof.contract.registry import Backend, BackendUnavailable, load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.faults.captured import frozen

STANDINS = Path(__file__).parent / "standins"
BUILDS = {
    "fa3_fwd": ("fa3", "fa3_fwd_interface"),
    "hopper": ("fa3", "flash_attn_interface"),
    "sglang": ("fa3", "sgl_kernel.flash_attn"),
    "fa4": ("fa4", "flash_attn.cute.interface"),
    "fa2": ("fa2", "flash_attn.flash_attn_interface"),
    "torch": ("torch-varlen", "torch.nn.attention.varlen"),
    "torch_2.11": ("torch-varlen", "torch.nn.attention.varlen"),
}
"""Folder of the stand-in: the generation it is, and the module it stands in for."""
MODULES = {
    "page-table": flash_page_table,
    "cascade": flash_cascade,
    "swa-window": flash_swa_window,
}
Open = Callable[[str, str], Backend]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Put a build on the path and load a backend on it, which may then run on the CPU in plain torch."""

    def forget() -> None:
        for name in [*sys.modules]:
            if name.partition(".")[0] in {"flash_attn", "sgl_kernel"} or name.startswith(
                ("fa3_fwd", "flash_attn_")
            ):
                del sys.modules[name]
        importlib.invalidate_caches()
        flash_library.find.cache_clear()
        flash_backend.opened.cache_clear()
        for module in MODULES.values():
            importlib.reload(module)

    def of_torch(file: Path) -> None:
        spec = importlib.util.spec_from_file_location("_standin_varlen", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", module)
        monkeypatch.setattr(flash_library, "_source", lambda name: file)

    def open_build(build: str, representation: str) -> Backend:
        if build.startswith("torch"):
            of_torch(STANDINS / build / "varlen.py")
        monkeypatch.syspath_prepend(STANDINS / build)
        forget()
        generation, _ = BUILDS[build]
        found = load(f"{MODULES[representation].__name__}:{generation}-{representation}")
        # A stand-in is a loop of Python, which nobody could capture.
        able = msgspec.structs.replace(found.capabilities, devices={"cpu"}, capturable=False)
        return replace(found, capabilities=able, kernels=frozenset())

    yield open_build
    monkeypatch.undo()
    forget()


def request(parents: list[int], prefix: int, order: tuple[int, ...] = (), pad: int = 0) -> Request:
    tree = CandidateTree(tokens=tuple(range(10, 10 + len(parents))), parents=tuple(parents))
    rows = order or tuple(range(len(parents)))
    return Request(tree=tree, row_of_node=rows, prefix_len=prefix, pad_rows=pad)


# A child before its parent, padded rows, and a request without a prefix.
FOUR = request([-1, 0, 1, 0], 18, (0, 3, 1, 2), pad=1)
PAIR = request([-1, 0, 0], 0)


def case_of(*requests: Request, page: int = 16, **fields: Any) -> VerifyCase:
    window = fields.pop("window", None)
    layout = fields.pop(
        "layout", KVLayout(page_size=page, num_slots=page * max(4, 96 // page), order="shuffled")
    )
    mask = fields.pop("mask", MaskLayout())
    shape = {"num_q_heads": 4, "num_kv_heads": 2, "head_dim": 16, "v_head_dim": 16} | fields
    if window is not None:
        shape["visibility"] = Window(width=window)
    return VerifyCase(
        requests=requests or (FOUR, PAIR),
        shape=AttentionShape(**{"dtype": "bfloat16"} | shape),
        layout=layout,
        mask=mask,
    )


def checked(case: VerifyCase, backend: Backend) -> Checked:
    return check_case(case, backend, CheckOptions())


def statuses(result: Checked) -> dict[str, str]:
    return {c.identity: c.status for c in result.cells if c.evidence == "measured"}


RIGHT = {
    "fa3_fwd-lists": ("fa3_fwd", "page-table", case_of(window=3)),
    "fa3_fwd-cascade": ("fa3_fwd", "cascade", case_of(softcap=20.0)),
    "hopper-pages": ("hopper", "page-table", case_of(dtype="float16", softcap=20.0)),
    "hopper-cascade": ("hopper", "cascade", case_of(page=2)),
    "hopper-window": ("hopper", "swa-window", case_of(window=3)),
    "sglang-cascade": ("sglang", "cascade", case_of(FOUR, mask=MaskLayout(mode=MaskMode.QLEN_ONLY))),
    "fa4-pages": ("fa4", "page-table", case_of(sinks=True, window=3)),
    "fa4-cascade": ("fa4", "cascade", case_of(sinks=True, mask=MaskLayout(mode=MaskMode.QLEN_ONLY_BITPACKING))),
    "fa4-window": ("fa4", "swa-window", case_of(window=1, sinks=True)),
    "fa2-lists": ("fa2", "page-table", case_of()),
    "fa2-cascade": ("fa2", "cascade", case_of(page=256)),
    "torch-lists": ("torch", "page-table", case_of(window=5)),
    "torch-cascade": ("torch", "cascade", case_of(page=256, scale=0.3)),
    "torch-window": ("torch_2.11", "swa-window", case_of(window=3, num_kv_heads=4)),
    "fa2-window": ("fa2", "swa-window", case_of(window=20, softcap=20.0)),
}  # fmt: skip


@pytest.mark.parametrize(("build", "representation", "case"), RIGHT.values(), ids=RIGHT)
def test_every_build_is_called_rightly_in_every_representation_it_has(
    installed: Open, build: str, representation: str, case: VerifyCase
) -> None:
    result = checked(case, installed(build, representation))

    assert result.failures == ()
    found = statuses(result)
    assert (found["visibility"], found["output"], found["contract"]) == ("pass",) * 3


def test_evicted_pages_are_named_by_no_negative_slot(installed: Open) -> None:
    layout = KVLayout(
        page_size=2, num_slots=64, pad_slot=-1, page_table_pad=-1, evicted=True, order="reversed"
    )

    result = checked(case_of(FOUR, window=3, layout=layout), installed("hopper", "swa-window"))

    assert result.failures == ()


def test_the_lists_that_were_launched_are_declared_and_judged(installed: Open) -> None:
    result = checked(case_of(FOUR), installed("hopper", "cascade"))

    (cell,) = [c for c in result.cells if (c.identity, c.evidence) == ("visibility", "declared")]
    assert (cell.status, cell.stage) == ("pass", "attend")


def test_lists_too_many_to_gather_at_once_are_gathered_in_parts(
    installed: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("fa3_fwd", "page-table")
    launches = []
    standin = importlib.import_module("fa3_fwd_interface")
    whole = standin.flash_attn_varlen_func
    monkeypatch.setattr(
        standin,
        "flash_attn_varlen_func",
        lambda q, *rest, **named: launches.append(len(q)) or whole(q, *rest, **named),
    )
    flash, generator = flash_backend.opened("fa3"), torch.Generator().manual_seed(0)
    cache, q = (
        torch.randn(rows, heads, 8, generator=generator).bfloat16()
        for rows, heads in ((40, 2), (7, 4))
    )
    layer = Layer(case_of(head_dim=8, v_head_dim=8).shape, cache, cache)
    lists = Keys(torch.arange(36).view(3, 12), torch.tensor([12, 4, 9]), page_size=1)
    bounds = torch.tensor([0, 4, 5, 7])

    at_once = flash.attend(layer, q, bounds, 4, lists)
    monkeypatch.setattr(flash_call, "_GATHERED", 24 * 2 * 8)
    in_parts = flash.attend(layer, q, bounds, 4, lists)

    assert launches == [7, 4, 3]
    assert all(torch.equal(a, b) for a, b in zip(at_once, in_parts, strict=True))


Attend = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def widened(
    right: Attend, self: Flash, *given: Any, window: int | None = None, **named: Any
) -> Any:
    return right(self, *given, window=window and window + 1, **named)


def narrowed(
    right: Attend, self: Flash, *given: Any, window: int | None = None, **named: Any
) -> Any:
    return right(self, *given, window=window and window - 1, **named)


def base_two(right: Attend, *given: Any, **named: Any) -> Any:
    out, lse = right(*given, **named)
    return out, lse / math.log(2)


def heads_as_rows(right: Attend, *given: Any, **named: Any) -> Any:
    out, lse = right(*given, **named)
    return out, lse.t().reshape(lse.shape)


def one_weight(right: Attend, *given: Any, **named: Any) -> Any:
    out, lse = right(*given, **named)
    return out, torch.where(lse.isinf(), lse, 0.0)


def of_the_neighbour(
    right: Attend, self: Flash, layer: Any, q: Any, indptr: Any, most: int, keys: Any, **named: Any
) -> Any:
    turned = replace(keys, table=keys.table.roll(1, 0), lengths=keys.lengths.roll(1, 0))
    return right(self, layer, q, indptr, most, turned, **named)  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "representation", "window", "kinds"),
    [
        (widened, "swa-window", 3, {"reads-outside-window", "outside-bound", "wrong-lse"}),
        (narrowed, "swa-window", 3, {"misses-prefix", "misses-ancestor", "outside-bound", "wrong-lse"}),
        (base_two, "page-table", None, {"wrong-lse"}),
        (heads_as_rows, "page-table", None, {"wrong-lse"}),
        (one_weight, "cascade", None, {"reads-twice", "wrong-prefix-sum", "outside-bound", "wrong-lse"}),
        (of_the_neighbour, "page-table", None, {"misses-self", "misses-ancestor", "reads-sibling", "outside-bound", "wrong-lse"}),
    ],
    ids=["window-too-wide", "window-too-narrow", "base-two", "transposed", "no-merge-weight", "neighbours-table"],
)  # fmt: skip
def test_what_would_be_wrong_in_a_call_is_seen(
    installed: Open,
    monkeypatch: pytest.MonkeyPatch,
    wrong: Callable[..., Any],
    representation: str,
    window: int | None,
    kinds: set[str],
) -> None:
    backend = installed("hopper", representation)
    right = Flash.attend

    def called(self: Flash, *given: Any, **named: Any) -> Any:
        return wrong(right, self, *given, **named)

    monkeypatch.setattr(Flash, "attend", called)

    result = checked(case_of(FOUR, window=window), backend)

    assert {f.kind for f in result.failures} == kinds


@pytest.mark.parametrize(
    ("build", "representation", "case", "reason"),
    [
        ("fa3_fwd", "page-table", case_of(dtype="float16"), "dtype float16"),
        ("hopper", "page-table", case_of(dtype="float32"), "dtype float32"),
        ("hopper", "page-table", case_of(sinks=True), "sinks"),
        ("hopper", "page-table", case_of(head_dim=128, v_head_dim=64), "head dims 128 and 64"),
        ("hopper", "page-table", case_of(head_dim=12, v_head_dim=12), "head dims 12 and 12"),
        ("hopper", "cascade", case_of(window=3), "a sliding window"),
        ("fa4", "cascade", case_of(page=2), "page size 2"),
        ("fa2", "cascade", case_of(page=16), "page size 16"),
        ("fa2", "page-table", case_of(head_dim=64, v_head_dim=32), "head dims 64 and 32"),
        ("torch", "page-table", case_of(softcap=20.0), "a softcap"),
        ("torch", "cascade", case_of(page=16), "page size 16"),
        ("torch_2.11", "page-table", case_of(), "grouped query heads"),
    ],
)
def test_what_a_build_does_not_do_is_unsupported_and_not_sent(
    installed: Open, build: str, representation: str, case: VerifyCase, reason: str
) -> None:
    result = checked(case, installed(build, representation))

    assert {(c.status, c.reason) for c in result.cells} == {("unsupported", reason)}


def test_a_build_without_local_attention_has_no_window_backend(installed: Open) -> None:
    with pytest.raises(BackendUnavailable, match=r"fa3_fwd_interface 0\.0\.3 was built without"):
        installed("fa3_fwd", "swa-window")


def test_an_absent_library_is_unavailable_with_what_to_install(
    installed: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flash_library, "_source", lambda module: None)
    for generation, said in (
        (
            "fa2",
            r"^flash_attn\.flash_attn_interface not installed; pip install flash-attn .*untested",
        ),
        ("fa3", r"fa3_fwd_interface not installed; pip install fa3-fwd==0\.0\.3, or "),
        (
            "fa4",
            r"^flash_attn\.cute\.interface not installed; pip install flash-attn-4==4\.0\.0b36$",
        ),
    ):
        with pytest.raises(BackendUnavailable, match=said):
            installed(generation.replace("fa3", "hopper"), "cascade")


def test_a_build_that_was_not_tried_is_marked_and_one_that_was_is_not(installed: Open) -> None:
    assert installed("fa3_fwd", "cascade").note == ""
    assert installed("hopper", "cascade").note.startswith("untested on hardware")


def test_another_release_is_warned_of_and_runs(
    installed: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = installed("fa3_fwd", "page-table")
    found = flash_library.find("fa3")
    monkeypatch.setattr(flash_library, "find", lambda generation: replace(found, version="0.9"))

    with pytest.warns(UserWarning, match=r"fa3-fwd 0\.9 is installed; checked is 0\.0\.3"):
        result = checked(case_of(PAIR), backend)

    assert result.failures == ()


@pytest.mark.parametrize(
    ("build", "device", "said"),
    [
        ("hopper", (8, 0), "flash_attn_interface needs sm_90; this device is sm_80"),
        ("fa3_fwd", (8, 0), ""),  # its flags say that kernels for sm_80 are in it
        ("fa4", (12, 0), "flash_attn.cute.interface needs sm_90 or sm_100 or sm_110; this device is sm_120"),
        ("fa2", (7, 5), "flash_attn.flash_attn_interface needs sm_80 or sm_90 or sm_100 or sm_110 or sm_120; this device is sm_75"),
    ],
)  # fmt: skip
def test_the_device_is_asked_whether_the_build_has_kernels_for_it(
    installed: Open,
    monkeypatch: pytest.MonkeyPatch,
    build: str,
    device: tuple[int, int],
    said: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: device)
    try:
        installed(build, "page-table")
    except BackendUnavailable as error:
        found = str(error).removesuffix(
            " (untested on hardware: written against the documented interface)"
        )
    else:
        found = ""

    assert found == said


def test_a_build_for_another_torch_is_unavailable_with_the_loaders_words(
    installed: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = installed("fa4", "page-table")
    monkeypatch.setattr(importlib, "import_module", _undefined_symbol)

    result = checked(case_of(PAIR), backend)

    assert {c.status for c in result.cells} == {"unavailable"}
    assert result.cells[0].reason == "flash_attn.cute.interface does not load: undefined symbol"


def _undefined_symbol(name: str) -> Any:
    raise ImportError("undefined symbol")


def test_an_interface_without_the_function_is_unavailable_by_name(
    installed: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flash_attn_interface.py").write_text("def flash_attn_func(q, k, v): ...\n")
    installed("fa3_fwd", "page-table")  # behind the one without
    monkeypatch.syspath_prepend(tmp_path)
    flash_library.find.cache_clear()

    said = flash_library.find("fa3")

    assert str(said).startswith("flash_attn_interface has no flash_attn_varlen_func; pip install")


def test_finding_a_build_imports_nothing_of_it(installed: Open) -> None:
    for build, (generation, module) in BUILDS.items():
        if generation != "torch-varlen":
            installed(build, "cascade")
            assert module not in sys.modules


def by_shape(q: Any, k: Any, v: Any, *, seqused_k: Any, softmax_scale: float, **_: Any) -> Any:
    """What a kernel does that is told how much of the room of each list is used: one query a list."""
    room = len(k) // len(q)
    group = q.shape[1] // k.shape[1]
    keys, values = (
        t.float()
        .view(len(q), room, *t.shape[1:])
        .repeat_interleave(group, 2, output_size=q.shape[1])
        for t in (k, v)
    )
    scores = torch.einsum("nhd,nlhd->nhl", q.float(), keys) * softmax_scale
    used = torch.arange(room) < seqused_k[:, None]
    scores = scores.masked_fill(~used[:, None], float("-inf"))
    out = torch.einsum("nhl,nlhd->nhd", scores.softmax(-1), values)
    return out.to(q.dtype), scores.logsumexp(-1).t().contiguous()


@pytest.mark.parametrize("window", [None, 3])
def test_a_launch_of_rows_decides_by_shapes_alone_and_can_be_captured(
    installed: Open, monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    backend = installed("fa3_fwd", "page-table")
    standin = importlib.import_module("fa3_fwd_interface")
    monkeypatch.setattr(standin, "flash_attn_varlen_func", by_shape)
    monkeypatch.setattr(flash_call, "_is_captured", lambda q: True)
    able = msgspec.structs.replace(backend.capabilities, capturable=True)
    backend = replace(backend, capabilities=able)
    only = CheckOptions(probes=frozenset({"captured"}))
    case = case_of(window=window)

    assert check_case(case, backend, only).failures == ()
    kept = frozen("kv_indices")(backend)
    assert {f.kind for f in check_case(case, kept, only).failures} == {"captured-tables"}


def test_builds_that_are_told_of_the_longest_list_do_not_say_that_they_can_be_captured(
    installed: Open,
) -> None:
    said = {}
    for build, (generation, _) in BUILDS.items():
        installed(build, "page-table")
        found = flash_library.find(generation)
        assert isinstance(found, flash_library.Library)
        able = found.capabilities(windows=True, page_sizes=None, by_rows=True)
        said[build] = able.capturable
        assert not found.capabilities(windows=True, page_sizes=None).capturable
    assert {build for build, capturable in said.items() if capturable} == {
        "fa3_fwd",
        "hopper",
        "sglang",
    }


def test_lists_stand_one_right_after_another_and_zeros_behind_them() -> None:
    lists = RowLists(
        torch.tensor([[5, 6, 0], [7, 0, 0], [0, 0, 0], [8, 9, 4]]), torch.tensor([2, 1, 0, 3])
    )
    assert lists.indices.tolist() == [5, 6, 7, 8, 9, 4, 0, 0, 0, 0, 0, 0]
    assert lists.indptr.tolist() == [0, 2, 3, 3, 6]
