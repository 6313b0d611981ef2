"""Hugging Face decoders as black boxes: what they read, from logits alone, fed rightly and wrongly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hf_models import ARCHITECTURES, built, optional
from msgspec.structs import replace as with_fields

from treeproof.backends.adapters.hf_causal_lm import HfCausalLM, TinyLlama
from treeproof.backends.adapters.hf_weights import fill
from treeproof.contract.backend import describe
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.event import Checked
from treeproof.contract.inputs import VerifyInput
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.explain import about
from treeproof.engine.look import look

pytestmark = optional

TREE = CandidateTree(tokens=(11, 12, 13, 14, 15), parents=(-1, 0, 0, 1, 2))
CASE = VerifyCase(
    requests=(
        Request(tree=TREE, row_of_node=(0, 3, 1, 2, 4), prefix_len=9, pad_rows=2),
        Request(tree=TREE, row_of_node=(0, 1, 2, 3, 4), prefix_len=0),
    ),
    shape=AttentionShape(num_q_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16),
    layout=KVLayout(page_size=1, num_slots=64),
)


def engine(make: Any) -> Any:
    return describe(
        make, "engine", stages={"forward"}, consumes=HfCausalLM.CONSUMES,
        capabilities=Capabilities(windows=False, vocab_size=61),
    )  # fmt: skip


def check(make: Any) -> Checked:
    return check_case(CASE, engine(make), CheckOptions())


def keys(checked: Checked) -> set[tuple[str, str]]:
    return {f.key for f in checked.failures}


def cause(make: Any, identity: str, kind: str) -> str:
    """On a fork behind two keys, which takes a tenth of the time."""
    fork = CandidateTree(tokens=(11, 12, 13), parents=(-1, 0, 0))
    small = with_fields(CASE, requests=(Request(tree=fork, row_of_node=(0, 1, 2), prefix_len=2),))
    return about(identity, kind, look(small, engine(make), CheckOptions())).cause


class Known(HfCausalLM):
    """An architecture of others on weights that the oracle knows."""

    name = "Llama"

    def __init__(self) -> None:
        self.model = with_fields(ARCHITECTURES[self.name][1], angles="float32")
        super().__init__()

    def load(self) -> Any:
        return fill(built(self.name).float(), self.model)


class Qwen(Known):
    name = "Qwen3"


class Glm(Known):
    name = "Glm"


class Gemma(HfCausalLM):
    """Weights of its own: only what it reads can be judged."""

    def load(self) -> Any:
        return built("Gemma2").float()


@pytest.mark.parametrize("make", [TinyLlama, Qwen, Glm, Gemma])
def test_a_tree_in_positions_and_masks_is_every_path_alone(make: Any) -> None:
    checked = check(make)
    assert checked.failures == ()
    cells = {(c.identity, c.status) for c in checked.cells if c.stage == "forward"}
    told = "not-checked" if make is Gemma else "pass"
    assert cells == {("visibility", "pass"), ("output", told)}


class Causal(TinyLlama):
    """Masks as generation makes them: who comes first in the launch is read."""

    def _masks(self, visible: Any, position: Any) -> Any:
        return super()._masks(torch.ones_like(visible).tril(), position)


class ByRow(TinyLlama):
    """Positions as generation counts them: one after another in the launch."""

    def forward(self, x: VerifyInput, prefix_tokens: Any) -> Any:
        counts = x.qo_indptr.diff()
        own = torch.arange(len(x.positions)) - x.qo_indptr[:-1].repeat_interleave(counts)
        first = torch.tensor([len(tokens) for tokens in prefix_tokens]).repeat_interleave(counts)
        return super().forward(replace(x, positions=first + own), prefix_tokens)


class OneMaskForAll(Qwen):
    """A model with windows is handed one mask, in which there are none."""

    def _masks(self, visible: Any, position: Any) -> Any:
        return self._additive(visible)


def test_a_causal_mask_is_found_by_influence_and_named() -> None:
    checked = check(Causal)
    assert ("visibility", "reads-sibling") in keys(checked)
    # Rows 0 to 4 hold nodes 0, 2, 3, 1, 4: node 3's row comes before its parent's.
    found = {(f.row, f.column, f.kind) for f in checked.failures if f.request == 0}
    assert (2, 9 + 1, "reads-sibling") in found or (2, 9 + 1, "reads-descendant") in found
    assert (2, 9 + 3, "misses-ancestor") in found
    assert cause(Causal, "visibility", "reads-sibling") == "causal-mask"


def test_positions_of_rows_are_found_in_the_logits_and_named() -> None:
    assert keys(check(ByRow)) == {("output", "wrong-logits")}
    assert cause(ByRow, "output", "wrong-logits") == "position-is-row"


def test_one_mask_for_all_layers_leaves_windows_out() -> None:
    assert keys(check(OneMaskForAll)) == {("output", "wrong-logits")}
