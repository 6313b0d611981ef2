"""Given tree shapes reach every backend, in a case that it takes; one that reaches none is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_cli_commands import Run as Cli
from test_cli_commands import run as cli  # noqa: F401

from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import VerifyCase
from treeproof.generate.fitting import fitted
from treeproof.generate.treefile import NamedTree, cases_of

TREES = [
    NamedTree("fork", (-1, 0, 0, 1, 2, 1, 4)),
    NamedTree("chain", (-1, 0, 1, 2, 3)),
    NamedTree("wide", (-1, *[0] * 40)),
]
CASES = cases_of(TREES, (0, 1, 63, 1000), seed=3)

NARROW = {
    "one dtype": Capabilities(dtypes={"float16"}),
    "one head dim": Capabilities(head_dims={128}),
    "one page size": Capabilities(page_sizes={1}),
    "large pages": Capabilities(page_sizes={128}),
    "no window": Capabilities(windows=False),
    "windows only": Capabilities(full=False, min_window=8),
    "no groups": Capabilities(gqa=False),
    "no rotary": Capabilities(rotary=False),
    "slot 0 kept": Capabilities(pad_slots={0}),
    "full masks": Capabilities(mask_modes={"FULL_MASK"}),
    "parents first": Capabilities(row_order="parent-first"),
    "breadth first": Capabilities(row_order="breadth-first"),
    "one tree": Capabilities(same_tree=True, pad_rows=False),
    "a real kernel": Capabilities(
        dtypes={"bfloat16"}, head_dims={64, 128}, page_sizes={1}, windows=False, rotary=False,
        mask_modes={"QLEN_ONLY"}, row_order="breadth-first", same_tree=True, custom_scale=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NARROW)
def test_every_shape_is_fitted_to_what_a_backend_can_do(name: str) -> None:
    able = NARROW[name]
    changed = 0
    for case in CASES:
        fit = fitted(case, able, "cpu")
        assert fit is not None, case.id
        assert able.refusal(fit, "cpu") is None
        changed += fit != case
        # What was asked for is what is checked: the tree with its tokens, and the prefix.
        for before, after in zip(case.requests, fit.requests, strict=False):
            assert (after.tree, after.prefix_len) == (before.tree, before.prefix_len)
        assert VerifyCase(**{f: getattr(fit, f) for f in fit.__struct_fields__}) == fit
    assert changed, "no case of these needed it"


def test_a_case_that_a_backend_takes_stays_as_it_is() -> None:
    assert all(fitted(case, Capabilities(), "cpu") is case for case in CASES)


@pytest.mark.parametrize(
    "able",
    [
        Capabilities(max_rows=4),
        Capabilities(max_topk=1),
        Capabilities(devices={"cuda"}),
        Capabilities(empty_prefix=False),
        Capabilities(mask_modes={"QLEN_ONLY_BITPACKING"}),
    ],
)
def test_trees_prefixes_and_devices_are_not_changed_to_fit(able: Capabilities) -> None:
    unfit = [case for case in CASES if fitted(case, able, "cpu") is None]
    assert unfit
    assert all(able.refusal(case, "cpu") for case in unfit)


def test_a_dtype_that_was_asked_for_is_kept() -> None:
    able = Capabilities(dtypes={"float16"})
    case = next(case for case in CASES if case.shape.dtype == "float32")
    assert fitted(case, able, "cpu", dtype="float32") is None
    fit = fitted(case, able, "cpu")
    assert fit is not None
    assert fit.shape.dtype == "float16"


KERNEL = """
import treeproof

NARROW = treeproof.Capabilities(
    dtypes={"float32"}, head_dims={64}, page_sizes={4}, windows=False, rotary=False, max_rows=8,
    row_order="breadth-first", mask_modes={"QLEN_ONLY"},
)

@treeproof.register("narrow", capabilities=NARROW)
def attend(x, q, k, v, k_cache, v_cache):
    raise ValueError("reached")
"""


def test_shapes_reach_a_narrow_backend_and_one_that_reaches_none_is_named_with_exit_code_3(
    cli: Cli,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = tmp_path / "narrow.py"
    kernel.write_text(KERNEL)
    shapes = tmp_path / "shapes.json"
    shapes.write_text(json.dumps({"fork": [-1, 0, 0, 1], "star": [-1, *[0] * 12]}))
    code, out, _ = cli(
        "check", str(kernel), "--trees", str(shapes), "--in-process", "--no-reduce", "--prefix", "5"
    )
    assert "contract: raises" in out  # the fork reached the kernel
    assert "! shapes.json: star was checked on no backend" in out
    assert "all columns in 1 case unsupported (13 rows in a request)" in out
    assert code == 1
    (tmp_path / "again").mkdir()
    monkeypatch.chdir(tmp_path / "again")  # away from the failure that is kept
    shapes.write_text(json.dumps({"star": [-1, *[0] * 12]}))
    code, out, _ = cli(
        "check", str(kernel), "--trees", str(shapes), "--in-process", "--prefix", "5"
    )
    assert code == 3
    assert "! shapes.json: star was checked on no backend" in out
    code, out, _ = cli(
        "check", str(kernel), "topology", "--trees", str(shapes), "--in-process", "--prefix", "5",
        "--no-reduce",
    )  # fmt: skip
    assert "was checked on no backend" not in out  # topology has checked it
    assert "! backend narrow completed no check" in out


def test_a_shape_that_one_of_two_backends_does_not_take_is_named_with_that_backend(
    cli: Cli,  # noqa: F811
    tmp_path: Path,
) -> None:
    narrow = tmp_path / "narrow.py"
    narrow.write_text(
        "from dataclasses import replace\nimport treeproof\n"
        "from treeproof.contract.registry import load, register_backend\n"
        "able = treeproof.Capabilities(max_rows=8)\n"
        'register_backend(replace(load("direct-mask"), name="narrow", capabilities=able))\n'
    )
    shapes = tmp_path / "shapes.json"
    shapes.write_text(json.dumps({"fork": [-1, 0, 0, 1], "star": [-1, *[0] * 12]}))
    words = ("--trees", str(shapes), "--in-process", "--prefix", "5")
    code, out, _ = cli("check", str(narrow), "direct-mask", *words)
    assert code == 3
    assert "! backend narrow checked 1 of 2 shapes, not shapes.json: star\n" in out
    shapes.write_text(json.dumps({"fork": [-1, 0, 0, 1]}))
    assert cli("check", str(narrow), "direct-mask", *words)[0] == 0
