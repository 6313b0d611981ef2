"""assert_tree_attention: one tree, one backend, all probes, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import treeproof
from treeproof import assert_tree_attention
from treeproof.backends import reference
from treeproof.contract.registry import load

EXAMPLES = Path(__file__).parent.parent / "examples"
MASKED = {
    "custom_mask", "mask_indptr", "qo_indptr", "seq_lens", "out_cache_loc", "request_slots",
    "req_to_token",
}  # fmt: skip


# The functions themselves, as a user's own test has them; registered in the file's own namespace.
RIGHT = load(str(EXAMPLES / "third_party_backend.py")).make.attend  # type: ignore[attr-defined]
FAULTY = load(str(EXAMPLES / "faulty_backend.py")).make.attend  # type: ignore[attr-defined]


def masked(x: Any, q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any) -> Any:
    """The right example as a plain function that is registered nowhere."""
    return RIGHT(x, q, k, v, k_cache, v_cache)


@pytest.mark.parametrize("backend", ["cascade", str(EXAMPLES / "third_party_backend.py"), RIGHT])
def test_a_right_backend_passes(backend: object) -> None:
    assert_tree_attention(backend, parents=[-1, 0, 0, 1, 1, 2], prefix=5)


def test_a_plain_function_passes_with_what_the_call_says_of_it() -> None:
    assert_tree_attention(
        masked,
        parents=[[-1, 0, 0], [-1, 0, 1, 0]],
        prefix=[4, 0],
        dtype="bfloat16",
        page_size=2,
        consumes=MASKED,
        numerics=treeproof.Numerics(p="float32"),
    )


def test_a_causal_mask_raises_the_class_of_its_failure_and_explains_it() -> None:
    with pytest.raises(treeproof.TreeAttentionError) as caught:
        assert_tree_attention(FAULTY)
    error = caught.value
    assert type(error).__name__ == "VisibilityReadsSibling"
    assert error.case.requests[0].tree.parents == (-1, 0, 0)
    first = error.failures[0]
    assert (first.row, first.column) == (2, 8)
    lines = str(error).splitlines()
    assert lines[0].startswith("✗ causal  visibility: reads-sibling  (measured, stage attend)")
    assert (
        lines[1].strip()
        == "row 2 (node 2, path 0→2) reads row 1 (node 1), which is not an ancestor"
    )
    assert lines[-1] == "treeproof.assert_tree_attention(attend, parents=[-1, 0, 0], prefix=7)"


def test_a_causal_mask_is_right_for_a_chain() -> None:
    assert_tree_attention(FAULTY, parents=[-1, 0, 1, 2])


def test_the_call_that_shows_it_again_names_what_is_not_the_default() -> None:
    with pytest.raises(treeproof.TreeAttentionError) as caught:
        assert_tree_attention(FAULTY, [[-1, 0, 0], [-1]], torch.tensor([1, 2]), head_dim=32, seed=5)
    assert str(caught.value).splitlines()[-1] == (
        "treeproof.assert_tree_attention(attend, parents=[[-1, 0, 0], [-1]], prefix=[1, 2], "
        "head_dim=32, seed=5)"
    )


def test_a_backend_that_raises_breaks_the_contract() -> None:
    def attend(*tensors: Any) -> Any:
        raise RuntimeError("no kernel image")

    with pytest.raises(treeproof.TreeAttentionError, match="no kernel image") as caught:
        assert_tree_attention(attend)
    assert type(caught.value).__name__ == "ContractRaises"


class Kept:
    """An object with stage methods, which its owner goes on using."""

    closed = False

    def attend(self, *arguments: Any) -> Any:
        return masked(*arguments)

    def accept(self, *arguments: Any) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True


def test_an_object_is_not_closed_by_the_check() -> None:
    kept = Kept()
    with pytest.raises(treeproof.TreeAttentionError) as caught:
        assert_tree_attention(kept, consumes=MASKED)
    assert {f.stage for f in caught.value.failures} == {"accept"}
    assert not kept.closed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "no-such"}, "no backend named 'no-such'; known are cascade,"),
        ({"backend": 5}, "backend int is int: accepted are a function, a class"),
        ({"parents": [-1, 1]}, "request 0: parents[1] is 1: accepted are 0 to 0"),
        ({"parents": []}, "parents is []"),
        ({"parents": "tree"}, "parents is 'tree': a sequence of whole numbers"),
        ({"prefix": -1}, "prefix_len is -1: accepted are 0 to"),
        ({"prefix": [1, 2]}, "prefix has 2 entries for 1 trees: one a request"),
        ({"dtype": "float64"}, "dtype is 'float64': accepted are float32, bfloat16, float16"),
        ({"num_q_heads": 3}, "num_q_heads is 3: accepted are multiples of num_kv_heads 2"),
        ({"head_dim": "64"}, "head_dim"),
        ({"window": 0}, "width is 0"),
        ({"page_size": 0}, "page_size is 0: accepted are 1 to 1024"),
        ({"mask_mode": "CAUSAL"}, "mask_mode is 'CAUSAL': accepted are FULL_MASK, QLEN_ONLY"),
        ({"device": "tpu"}, "device is 'tpu': accepted are cpu, cuda"),
        ({"seed": -1}, "seed is -1: accepted are 0 to"),
        ({"consumes": {"mask"}}, "unknown consumes mask; accepted are draft_token"),
        ({"head_dim": 8, "prefix": 300}, "at most 256 slots can be told apart"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_an_argument_that_cannot_be_used_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        assert_tree_attention(**{"backend": "cascade", **arguments})
    assert message in str(caught.value)


def test_a_case_outside_the_capabilities_is_no_pass() -> None:
    with pytest.raises(ValueError, match="outside what causal says it can do: a sliding window"):
        assert_tree_attention(FAULTY, window=3)


def test_a_kernel_whose_package_is_missing_is_no_pass() -> None:
    def attend(*arguments: Any) -> Any:
        import no_such_kernels  # type: ignore[import-not-found]

        return no_such_kernels

    said = r"attend cannot run here: attend: No module named 'no_such_kernels'; pip install no_such_kernels"
    with pytest.raises(treeproof.BackendUnavailable, match=said):
        assert_tree_attention(attend)


def test_a_backend_that_gives_no_evidence_is_no_pass() -> None:
    class Borrows:
        def accept(self, *arguments: Any) -> Any:
            return reference.accept(*arguments)

    with pytest.raises(ValueError, match="gives no evidence of any identity: nothing was checked"):
        assert_tree_attention(Borrows)
