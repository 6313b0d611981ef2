"""The small model around any attention, and its truth on a plain sequence: two codes, one answer."""

from __future__ import annotations

import msgspec
import pytest
import torch
from target_models import MODELS

from treeproof.backends.decoder import Decoder
from treeproof.contract.target_model import TargetModel
from treeproof.contract.tree import CandidateTree
from treeproof.oracles.sequence import Continuing, continue_greedily, sequence_logits
from treeproof.oracles.target import target_logits
from treeproof.oracles.target_steps import Steps, with_limit

MODEL = TargetModel()


class Growing:
    """Attention of a decoder that is fed in pieces: a row reads all before it, and itself."""

    def __init__(self, model: TargetModel) -> None:
        self.model = model
        self.held: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, layer, q, k, v):
        old_k, old_v = self.held.get(layer, (k[:0], v[:0]))
        keys, values = torch.cat((old_k, k)), torch.cat((old_v, v))
        self.held[layer] = keys, values
        group, cap, out = q.shape[1] // k.shape[1], self.model.softcap, []
        for i in range(len(q)):
            end = len(old_k) + i + 1
            begin = max(0, end - (self.model.window(layer) or end))
            seen_k, seen_v = (x[begin:end].repeat_interleave(group, 1) for x in (keys, values))
            scores = torch.einsum("hd,nhd->hn", q[i], seen_k) * self.model.score_scale
            scores = scores if cap is None else cap * torch.tanh(scores / cap)
            out.append(torch.einsum("hn,nhd->hd", scores.softmax(1), seen_v))
        return torch.stack(out)


def decoded(model: TargetModel, tokens: list[int], pieces: list[int], **kept) -> torch.Tensor:
    decoder, attention, made, begin = Decoder(model, **kept), Growing(model), [], 0
    for size in pieces:
        positions = torch.arange(begin, begin + size)
        made.append(
            decoder.forward(torch.tensor(tokens[begin : begin + size]), positions, attention)
        )
        begin += size
    return torch.cat(made)


TOKENS = [(7 * i * i + 3) % 61 for i in range(23)]


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_the_decoder_in_float64_is_the_oracle_and_in_float32_within_its_limit(model) -> None:
    logits, limit = sequence_logits(model, TOKENS)
    assert (decoded(model, TOKENS, [23], dtype=torch.float64) - logits).abs().max() < 1e-12
    ratio = (decoded(model, TOKENS, [10, 1, 12]).double() - logits).abs() / limit
    assert 0 < ratio.max() <= 1


def test_a_position_one_too_far_is_outside_the_limit() -> None:
    logits, limit = sequence_logits(MODEL, TOKENS)
    decoder, positions = Decoder(MODEL), torch.arange(23)
    positions[11] += 1  # all of them would be no change: rotary is relative
    moved = decoder.forward(torch.tensor(TOKENS), positions, Growing(MODEL))
    assert ((moved.double() - logits).abs() / limit).amax(1)[11] > 100


def test_a_sequence_read_in_pieces_is_the_same_sequence() -> None:
    whole, sequence = sequence_logits(MODEL, TOKENS)[0], Continuing(MODEL)
    pieces = [sequence.read(TOKENS[a:b])[0] for a, b in ((0, 5), (5, 6), (6, 23))]
    assert (torch.cat(pieces) - whole).abs().max() < 1e-13


def test_the_last_token_of_a_sequence_is_a_path_of_its_tree() -> None:
    tree = CandidateTree(tokens=(1, 2, 3, 4), parents=(-1, 0, 0, 2))
    found = target_logits(MODEL, TOKENS, tree, [5, 6, 7, 8])
    wanted = sequence_logits(MODEL, [*TOKENS, 5, 7, 8])[0]
    assert (found.logits[[0, 2, 3]] - wanted[-3:]).abs().max() < 1e-13


def test_what_is_continued_greedily_is_the_argmax_after_every_prefix() -> None:
    prompt, model = TOKENS[:4], TargetModel(seed=5)
    made = continue_greedily(model, prompt, 9)
    logits = sequence_logits(model, [*prompt, *made])[0]
    assert made == logits[3:-1].argmax(1).tolist()
    assert continue_greedily(model, prompt, 0) == []


def test_empty_prompts_and_strange_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="the prompt is empty"):
        continue_greedily(MODEL, [], 3)
    with pytest.raises(ValueError, match="there are no tokens"):
        sequence_logits(MODEL, [])
    with pytest.raises(ValueError, match="token 61: accepted are 0 to 60"):
        sequence_logits(MODEL, [3, 61])


class InFloat32(Decoder):
    """Angles as most engines take them."""

    def _turns(self, positions: torch.Tensor, base: float) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = self.model.turned_lanes // 2
        speed = 1.0 / base ** (torch.arange(pairs, dtype=torch.float32) / pairs)
        angle = positions[:, None, None].float() * speed
        return angle.cos(), angle.sin()


def test_angles_in_float32_are_further_off_far_away_and_have_a_limit_of_their_own() -> None:
    far, tree = 1_000_000, CandidateTree(tokens=(1, 2, 3), parents=(-1, 0, 1))
    attention = Growing(MODEL)
    found = InFloat32(MODEL).forward(
        torch.tensor(tree.tokens), torch.tensor([far, far + 1, far + 2]), attention
    )
    ratios = []
    for angles in ("float64", "float32"):
        steps = Steps(msgspec.structs.replace(MODEL, angles=angles))
        turned = steps.turns(range(far, far + 3))
        x = steps.embedded(tree.tokens)
        for layer in range(MODEL.layers):
            q, seen = steps.projected(layer, x, turned)
            out = [steps.attended(q[:, :, i : i + 1], seen.of(slice(0, i + 1))) for i in range(3)]
            x = steps.carried(layer, x, torch.cat(out, 2))
        logits, limit = with_limit(steps.logits(x))
        ratios.append(float(((found - logits).abs() / limit).max()))
    assert ratios[0] > 1 > ratios[1]
