"""Times of generation, and what the quick profile holds: python ci/bench/generate.py [seed].

Mean processor times of one thread, so that others may share the machine; import and a first
warm-up run apart. Ratios are to the targets: a tree of up to 64 rows under 1 ms, a case under 5 ms,
data of 600 keys x 4 heads x 64 lanes about 5 ms.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable

import torch
from hypothesis import given, seed

from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.tree import CandidateTree
from treeproof.generate.data import logical_data
from treeproof.generate.draft_pool import draft_pool
from treeproof.generate.pool import candidates
from treeproof.generate.profiles import settings_of
from treeproof.generate.tags import EVENT_CLASSES, tags
from treeproof.generate.trees import trees
from treeproof.generate.units import draw, units


def mean_ms(action: Callable[[], object], count: int) -> float:
    """Milliseconds for each of the `count` things that `action` makes, after one warm-up call."""
    action()
    start = time.process_time()
    action()
    return (time.process_time() - start) * 1e3 / count


def shown(what: str, ms: float, target: float | None = None) -> None:
    ratio = "" if target is None else f"  {ms / target:5.2f} of {target:g} ms"
    print(f"{what:<44}{ms:9.3f} ms{ratio}")


def draw_trees() -> None:
    @seed(1)
    @settings_of("quick", examples=1000)
    @given(trees())
    def collect(tree: CandidateTree) -> None:
        pass

    collect()


def long_case() -> VerifyCase:
    """600 keys, 4 key-value heads of 64 lanes."""
    tree = CandidateTree(tuple(range(64)), tuple(range(-1, 63)))
    return VerifyCase(
        requests=(Request(tree=tree, row_of_node=tuple(range(64)), prefix_len=536),),
        shape=AttentionShape(
            num_q_heads=4, num_kv_heads=4, head_dim=64, v_head_dim=64, dtype="bfloat16"
        ),
        layout=KVLayout(page_size=1, num_slots=1024),
    )


def spread(values: list[int]) -> str:
    ordered = sorted(values)
    picked = [ordered[int(len(ordered) * share)] for share in (0.5, 0.9)]
    return f"p50 {picked[0]}, p90 {picked[1]}, most {ordered[-1]}"


def main() -> None:
    torch.set_num_threads(1)
    run = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    listed = units("quick", run)
    cases = [case for unit in listed for case in draw(unit)]
    ledgers = [SlotLedger.of(case) for case in cases]
    count = len(cases)
    shown("tree, up to 64 rows", mean_ms(draw_trees, 1000), 1)
    shown("case, quick", mean_ms(lambda: [draw(unit) for unit in listed], count), 5)
    shown("tags", mean_ms(lambda: [tags(case) for case in cases], count))
    shown("slot ledger", mean_ms(lambda: [SlotLedger.of(case) for case in cases], count))
    shown(
        "candidates",
        mean_ms(lambda: [candidates(c, s) for c, s in zip(cases, ledgers, strict=True)], count),
    )
    shown("draft pool", mean_ms(lambda: [draft_pool(case) for case in cases], count))
    shown("data, quick", mean_ms(lambda: [logical_data(case) for case in cases], count))
    one = long_case()
    shown("data, 600 keys x 4 heads x 64", mean_ms(lambda: logical_data(one), 1), 5)
    requests = [request for case in cases for request in case.requests]
    print(f"\n{count} cases, {len({case.id for case in cases})} distinct, {len(requests)} trees")
    print("rows of a request:", spread([len(request.tree) for request in requests]))
    print("rows of a case:   ", spread([case.num_rows for case in cases]))
    print("prefix:           ", spread([request.prefix_len for request in requests]))
    found = Counter(tag for case in cases for tag in tags(case))
    print("  ".join(f"{tag} {found[tag]}" for tag in EVENT_CLASSES))


if __name__ == "__main__":
    main()
