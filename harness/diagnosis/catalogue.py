"""All hypotheses, likeliest first: where two cannot be told apart, the earlier one is named."""

from __future__ import annotations

from treeproof.diagnosis.accepting import ACCEPTING
from treeproof.diagnosis.bonus import BONUS
from treeproof.diagnosis.candidate import CANDIDATE
from treeproof.diagnosis.clipped_mask import CLIPPED_MASK
from treeproof.diagnosis.committing import COMMITTING
from treeproof.diagnosis.contract import CONTRACT
from treeproof.diagnosis.drafting import DRAFTING
from treeproof.diagnosis.extending import EXTENDING
from treeproof.diagnosis.heads import HEADS
from treeproof.diagnosis.hypothesis import Hypothesis
from treeproof.diagnosis.kept_prefix import KEPT_PREFIX
from treeproof.diagnosis.keys import KEYS
from treeproof.diagnosis.layer import LAYER
from treeproof.diagnosis.layers import LAYERS
from treeproof.diagnosis.links import LINKS
from treeproof.diagnosis.masks import MASKS
from treeproof.diagnosis.numbers import NUMBERS
from treeproof.diagnosis.pages import PAGES
from treeproof.diagnosis.position import POSITION
from treeproof.diagnosis.precision import PRECISION
from treeproof.diagnosis.prefix_length import PREFIX_LENGTH
from treeproof.diagnosis.processing import PROCESSING
from treeproof.diagnosis.sampling import SAMPLING
from treeproof.diagnosis.selecting import SELECTING
from treeproof.diagnosis.slots import SLOTS
from treeproof.diagnosis.stale import STALE
from treeproof.diagnosis.visibility import VISIBILITY
from treeproof.diagnosis.window import WINDOW

HYPOTHESES: tuple[Hypothesis, ...] = (
    *POSITION,
    *VISIBILITY,
    *MASKS,
    *WINDOW,
    *CLIPPED_MASK,
    *PREFIX_LENGTH,
    *KEYS,
    *KEPT_PREFIX,
    *PAGES,
    *HEADS,
    *LINKS,
    *ACCEPTING,
    *BONUS,
    *COMMITTING,
    *SLOTS,
    *CANDIDATE,
    *SELECTING,
    *DRAFTING,
    *EXTENDING,
    *SAMPLING,
    *PROCESSING,
    *NUMBERS,
    *PRECISION,
    *LAYER,
    *LAYERS,
    *STALE,
    *CONTRACT,
)
