"""Backend `hf-llama`: a decoder of Hugging Face transformers as a black box, a tree in one forward.

Prefix and rows of a request go in as one sequence, with position ids and a 4-D mask that say what they
are: the two doors by which a tree gets into code that knows none. Nothing is cached: a forward costs
prefix and rows. A decoder of one's own is a subclass with `load`:

    @treeproof.register("my-llm", consumes=HfCausalLM.CONSUMES,
                        capabilities=treeproof.Capabilities(windows=False, vocab_size=32000))
    class Mine(HfCausalLM):
        def load(self):
            return AutoModelForCausalLM.from_pretrained("…", attn_implementation="eager")
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from treeproof.backends.adapters.hf_weights import fill
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.inputs import VerifyInput
from treeproof.contract.registry import register
from treeproof.contract.target_model import NORM_FLOOR, TargetModel


class HfCausalLM:
    """One forward a request. `model` names what the decoder computes, where that is plain data."""

    CONSUMES = frozenset({"draft_token", "positions", "qo_indptr", "retrieve_parent_token"})
    model: TargetModel | None = None

    def __init__(self) -> None:
        self.net = self.load().eval()

    def load(self) -> Any:
        """A `...ForCausalLM` that takes 4-D masks: eager attention, or torch's own."""
        raise NotImplementedError

    @torch.no_grad()
    def forward(self, x: VerifyInput, prefix_tokens: Sequence[Tensor]) -> Tensor:
        """Logits (T, vocabulary) after each row; padded rows are free."""
        if x.retrieve_parent_token is None:
            raise ValueError("retrieve_parent_token was not built")
        if self.net.device != x.draft_token.device:
            self.net = self.net.to(x.draft_token.device)
        logits = torch.zeros(
            len(x.draft_token), self.net.config.vocab_size,
            dtype=self.net.dtype, device=self.net.device,
        )  # fmt: skip
        for first, prefix, parents in zip(
            x.qo_indptr[:-1].tolist(), prefix_tokens, x.retrieve_parent_token, strict=True
        ):
            sees = _closure(parents)
            own = slice(first, first + len(sees))
            index = torch.arange(len(prefix), device=prefix.device)
            position = torch.cat((index, x.positions[own]))
            out = self.net(
                input_ids=torch.cat((prefix, x.draft_token[own]))[None],
                position_ids=position[None],
                attention_mask=self._masks(_visible(len(prefix), sees), position),
                use_cache=False,
            )
            logits[own] = out.logits[0, len(prefix) :]
        return logits

    def _masks(self, visible: Tensor, position: Tensor) -> Any:
        """What each kind of layer is to read, (1, 1, n, n). A window has to be in the mask: handed one
        mask for all, a layer with a window takes it as it is."""
        config = self.net.config
        kinds = set(getattr(config, "layer_types", None) or ())
        if "sliding_attention" not in kinds:
            return self._additive(visible)
        near = position[:, None] - position < config.sliding_window
        of = {"full_attention": visible, "sliding_attention": visible & near}
        return {kind: self._additive(of[kind]) for kind in kinds}

    def _additive(self, visible: Tensor) -> Tensor:
        hidden = torch.finfo(self.net.dtype).min
        mask = torch.zeros(visible.shape, dtype=self.net.dtype, device=visible.device)
        return mask.masked_fill(~visible, hidden)[None, None]


@register(
    "hf-llama",
    consumes=HfCausalLM.CONSUMES,
    capabilities=Capabilities(windows=False, vocab_size=TargetModel().vocab_size),
    requires={"transformers=pip install 'treeproof[hf]'"},
    note="a tiny Llama of random weights, to try the adapter on",
)
class TinyLlama(HfCausalLM):
    """Llama's code on weights that the oracle knows, too."""

    model = TargetModel(
        heads=4, kv_heads=2, head_dim=8, v_head_dim=8, rotary=500.0, angles="float32"
    )

    def load(self) -> Any:
        transformers: Any = importlib.import_module("transformers")
        model = self.model
        assert model is not None
        config = transformers.LlamaConfig(
            vocab_size=model.vocab_size, hidden_size=model.width, intermediate_size=model.hidden,
            num_hidden_layers=model.layers, num_attention_heads=model.heads,
            num_key_value_heads=model.kv_heads, head_dim=model.head_dim, rms_norm_eps=NORM_FLOOR,
            rope_parameters={"rope_type": "default", "rope_theta": model.rotary},
            attn_implementation="eager",
        )  # fmt: skip
        return fill(transformers.LlamaForCausalLM(config), model)


def _closure(parents: Tensor) -> Tensor:
    """(nodes, nodes) bool from a request's parent rows, -1 past its nodes: each row's ancestors and
    itself."""
    up = parents.tolist()
    while len(up) > 1 and up[-1] < 0:
        up.pop()
    sees = torch.eye(len(up), dtype=torch.bool)
    for row in range(len(up)):
        above, steps = up[row], 0
        while above >= 0 and steps < len(up):  # a ring of links ends, too
            sees[row, above] = True
            above, steps = up[above], steps + 1
    return sees.to(parents.device)


def _visible(prefix: int, sees: Tensor) -> Tensor:
    """(n, n) bool: the prefix is causal, and each row reads all of it and what `sees` says."""
    rows = len(sees)
    visible = sees.new_ones(prefix + rows, prefix + rows).tril()
    visible[prefix:, prefix:] = sees
    return visible
