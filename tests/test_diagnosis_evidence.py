"""What a diagnosis takes for evidence: right tables behind a wrong build, and cells that say nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from backend_scene import CHAIN, DEEP, FORK, ROOT, Situation, case_of
from diagnosis_situations import EVICTED, PAGED, TWO, WINDOW

from treeproof.backends import reference
from treeproof.contract.registry import load
from treeproof.diagnosis.agreement import fits
from treeproof.diagnosis.diagnose import wrong_groups
from treeproof.diagnosis.evidence import TableReads
from treeproof.diagnosis.ground import Ground
from treeproof.diagnosis.world import truth
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.mend import mended
from treeproof.engine.observe import observe
from treeproof.generate.pool import candidates
from treeproof.properties.scene import Scene
from treeproof.properties.tables import recover_lists

SHARED = ("page_table", "cache_seqlens", "kv_indptr", "kv_indices", "kv_start")
SITUATIONS = {
    "plain": TWO,
    "pages": PAGED,
    "no prefix": Situation(trees=(ROOT, FORK), prefixes=(0, 0), pads=(0, 0)),
    "padded": Situation(trees=(FORK, CHAIN), prefixes=(9, 3), pads=(2, 1), page=4),
    "window": WINDOW,
    "window of pages": Situation(
        trees=(FORK, DEEP), prefixes=(30, 5), pads=(0, 3), window=6, page=4
    ),
    "window of one": Situation(trees=(CHAIN,), prefixes=(3,), pads=(0,), window=1),
    "evicted": EVICTED,
}


def built(situation):
    case = case_of(situation)
    scene = Scene.of(case)
    return scene, load("cascade").make().build(candidates(case, scene.ledger))


def named(scene, x):
    """Slots of the shared part of each request, and those of each row's list behind its start."""
    page, bounds = scene.case.layout.page_size, x.kv_indptr.tolist()
    shared = [
        [int(line[i // page]) * page + i % page for i in range(int(length))]
        for line, length in zip(x.page_table, x.cache_seqlens, strict=True)
    ]
    own = [
        x.kv_indices.tolist()[begin + start : end]
        for begin, end, start in zip(bounds, bounds[1:], x.kv_start.tolist(), strict=False)
    ]
    return shared, own


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
def test_wrong_tables_of_a_shared_part_and_lists_behind_it_are_mended(situation):
    scene, right = built(situation)
    made = {name: getattr(right, name) for name in SHARED}
    wrong = {name: torch.zeros_like(table) for name, table in made.items()}
    ruined = replace(right, **wrong)
    true = reference.build(candidates(scene.case, scene.ledger))
    mended_x = mended(scene, ruined, true, wrong)
    assert named(scene, mended_x) == named(scene, right)
    for name in SHARED:
        assert getattr(mended_x, name).dtype == made[name].dtype


def test_lists_that_a_window_cuts_by_no_field_are_left_as_they_were_built():
    scene, right = built(WINDOW)
    wrong = {name: torch.zeros_like(getattr(right, name)) for name in SHARED if name != "kv_start"}
    ruined = replace(right, **wrong, kv_start=None)
    true = reference.build(candidates(scene.case, scene.ledger))
    assert mended(scene, ruined, true, wrong).kv_indices is wrong["kv_indices"]


@pytest.mark.parametrize("name", ["direct-mask", "topology", "page-table", "swa-window", "cascade"])
@pytest.mark.parametrize("pad", [-1, 0, 1])
def test_cells_of_evicted_pages_are_no_evidence_against_a_right_backend(name, pad):
    case = case_of(replace(EVICTED, table_pad=pad))
    seen = observe(case, load(name), CheckOptions())
    assert seen is not None
    assert wrong_groups(seen) == ()


def test_a_statement_about_masks_is_none_about_a_kernel_that_reads_lists():
    case = case_of(TWO)
    right = truth(Ground.of(case))
    of_masks = replace(right, masks_alone=True)
    for name, reads_lists in (("direct-mask", False), ("page-table", True)):
        seen = observe(case, load(name), CheckOptions())
        assert (
            any(isinstance(t, TableReads) and t.closed for t in seen.found["tables"]) is reads_lists
        )
        assert fits(seen, "attend", right)
        assert fits(seen, "attend", of_masks) is not reads_lists


@pytest.mark.parametrize(
    ("bounds", "says"), [([0, 1, 3], r"kv_indptr\[2\] is 3"), ([0, -1, 2], r"kv_indptr\[1\] is -1")]
)
def test_a_list_that_ends_outside_the_slots_cannot_be_decoded(bounds, says):
    slots = np.array([4, 5])
    assert [one.tolist() for one in recover_lists([0, 1, 2], slots, None)] == [[4], [5]]
    with pytest.raises(ValueError, match=says):
        recover_lists(bounds, slots, None)
