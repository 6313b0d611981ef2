"""The reference stages: draft layout, selection, tree build, greedy acceptance and KV commit, written plainly.

They complete what a backend does not implement, and are judged in a row of their own.
"""

from __future__ import annotations

from torch import Tensor

from treeproof.backends.reference.accept import accept as accept
from treeproof.backends.reference.build import build as build
from treeproof.backends.reference.commit import commit as commit
from treeproof.backends.reference.draft import draft as draft
from treeproof.backends.reference.extend import extend as extend
from treeproof.backends.reference.finish import finish as finish
from treeproof.backends.reference.process import process as process
from treeproof.backends.reference.sample import sample as sample
from treeproof.backends.reference.select import select as select
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.constraints import Constraints
from treeproof.contract.drafting import Drafted, DraftStep, Extended
from treeproof.contract.inputs import (
    Accepted,
    Candidates,
    Committed,
    DraftPool,
    Selected,
    VerifyInput,
)
from treeproof.contract.registry import register
from treeproof.contract.sampling import RULES, Sampling
from treeproof.contract.stopping import Finished, StopRules


@register(
    "reference",
    consumes={
        "draft_token",
        "seq_lens",
        "qo_indptr",
        "out_cache_loc",
        "retrieve_index",
        "retrieve_next_token",
        "retrieve_next_sibling",
    },
    capabilities=Capabilities(
        draft_vocabulary=True, sampling=frozenset(RULES), sibling_order="ascending"
    ),
)
class Reference:
    """Nine stages; it has no attention of its own."""

    def draft(self, step: DraftStep) -> Drafted:
        return draft(step)

    def select(self, pool: DraftPool, num_rows: int) -> Selected:
        return select(pool, num_rows)

    def build(self, c: Candidates) -> VerifyInput:
        return build(c)

    def accept(self, x: VerifyInput, target_predict: Tensor) -> Accepted:
        return accept(x, target_predict)

    def process(self, x: VerifyInput, logits: Tensor, given: Constraints) -> Tensor:
        return process(x, logits, given)

    def finish(self, accepted: Accepted, rules: StopRules) -> Finished:
        return finish(accepted, rules)

    def sample(self, x: VerifyInput, given: Sampling) -> Accepted:
        return sample(x, given)

    def commit(
        self, x: VerifyInput, accepted: Accepted, k_cache: Tensor, v_cache: Tensor
    ) -> Committed:
        return commit(x, accepted, k_cache, v_cache)

    def extend(self, x: VerifyInput, accepted: Accepted, hidden: Tensor) -> Extended:
        return extend(x, accepted, hidden)
