"""Selection: which candidates of the draft pool are verified, and which of them lost their parent."""

from __future__ import annotations

import numpy as np
import torch

from treeproof.backends.reference.tree import on_host, parent_rows
from treeproof.backends.reference.used import note
from treeproof.contract.inputs import DraftPool, Selected


def select(pool: DraftPool, num_rows: int) -> Selected:
    """The `num_rows - 1` candidates of highest cumulative score, in ascending pool index.

    Among equal scores the lower pool index wins. Scores alone decide: where a child's score is no
    lower than its parent's (a probability that rounds to 1), the child may be selected without its
    parent; it keeps its row, gets no link, and `orphans` names it. Tokens are the target's ids. Raises ValueError where the pool
    is too small or a score is NaN.
    """
    note("select")
    wanted, size = num_rows - 1, pool.scores.shape[1]
    if not 0 <= wanted <= size:
        raise ValueError(f"num_rows is {num_rows}: accepted are 1 to {size + 1}")
    bad = pool.scores.isnan().nonzero().tolist()
    if bad:
        raise ValueError(f"scores[{bad[0][0]}, {bad[0][1]}] is NaN: accepted are numbers")
    # A stable sort keeps equal scores in index order; torch.topk promises no order among them.
    ranked = torch.sort(pool.scores, dim=1, descending=True, stable=True).indices
    selected = ranked[:, :wanted].sort(dim=1).values
    width = pool.topk * (pool.spec_steps - 1) + 1 if pool.spec_steps > 1 else 0
    tokens = pool.tokens.gather(1, selected)
    return Selected(
        parent_list=pool.parents[:, :width],
        selected_index=selected,
        draft_token=tokens if pool.hot_token_id is None else pool.hot_token_id[tokens],
    )


def orphans(selected: Selected, topk: int) -> tuple[tuple[int, ...], ...]:
    """Rows of each request, ascending, whose parent was not selected; empty where all is well."""
    index = on_host(selected.selected_index)
    parents = parent_rows(index, np.ones_like(index, bool), on_host(selected.parent_list), topk)
    # Row 0 has no parent, and is no orphan.
    return tuple(tuple((np.flatnonzero(up[1:] < 0) + 1).tolist()) for up in parents)
