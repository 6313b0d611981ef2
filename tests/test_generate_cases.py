"""Drawn cases: what every profile holds, and what the tags say about a case."""

from collections import Counter

import msgspec
import pytest
from hypothesis import find, given, settings

from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import (
    AttentionShape,
    KVLayout,
    MaskLayout,
    MaskMode,
    Request,
    VerifyCase,
    Window,
)
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.tree import CandidateTree
from treeproof.generate.cases import Focus, cases
from treeproof.generate.profiles import PROFILES, run_seed, settings_of
from treeproof.generate.provider import no_constants
from treeproof.generate.shapes import GROUPS, SERVED_GROUPS
from treeproof.generate.tags import EDGE_ROWS, EVENT_CLASSES, tags
from treeproof.generate.units import draw, focus_of, units


@pytest.fixture(scope="module")
def quick():
    return [case for unit in units("quick", 0) for case in draw(unit)]


def counts(drawn):
    return Counter(tag for case in drawn for tag in tags(case))


def percentile(values, share):
    return sorted(values)[int(len(values) * share)]


def test_the_quick_profile_holds_what_it_promises(quick):
    rows = [len(request.tree) for case in quick for request in case.requests]
    assert len({case.id for case in quick}) >= 200
    assert percentile(rows, 0.5) >= 12
    assert percentile(rows, 0.9) >= 48
    assert sum(case.shape.head_dim >= 64 for case in quick) >= len(quick) / 2


def test_no_two_quick_cases_differ_in_their_seed_alone(quick):
    # Root-only trees at prefix 0 are few enough to meet again; nothing else may.
    unseeded = Counter(msgspec.structs.replace(case, seed=0).id for case in quick)
    assert max(unseeded.values()) == 1


@pytest.mark.parametrize("seed", [0, 1, 2**31])
def test_every_event_class_has_five_quick_cases_whatever_the_seed(seed):
    found = counts(case for unit in units("quick", seed) for case in draw(unit))
    assert {tag: found[tag] for tag in EVENT_CLASSES if found[tag] < 5} == {}


def test_quick_cases_stay_small(quick):
    # What keeps five backends under a minute on two cores.
    prefixes = [request.prefix_len for case in quick for request in case.requests]
    assert percentile(prefixes, 0.9) <= 256
    assert max(prefixes) <= 1200
    assert percentile([case.num_rows for case in quick], 0.5) <= 80
    assert max(case.num_rows for case in quick) <= 160


@pytest.mark.parametrize("profile", PROFILES)
def test_the_units_of_every_profile_guarantee_the_edge_sizes(profile):
    own = PROFILES[profile]
    assert set(EDGE_ROWS) <= set(own.pinned_rows)
    listed = units(profile, 0)
    assert sum(unit.count for unit in listed) == own.cases
    pinned = Counter(focus_of(unit, i).rows for unit in listed for i in range(unit.count))
    assert all(pinned[rows] >= 5 for rows in own.pinned_rows)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_group_of_every_profile_draws(profile):
    own = PROFILES[profile]
    drawn = [case for unit in units(profile, 4, len(own.groups)) for case in draw(unit)]
    assert len(drawn) == len(own.groups)
    assert max(len(case.requests[0].tree) for case in drawn) == max(own.pinned_rows)


def test_a_run_of_48_cases_has_every_edge_size():
    rows = {len(r.tree) for u in units("quick", 0, 48) for case in draw(u) for r in case.requests}
    assert set(EDGE_ROWS) <= rows


def test_a_pinned_row_count_is_drawn():
    for unit in units("quick", 3)[:4]:
        drawn = draw(unit)
        pins = [focus_of(unit, i).rows for i in range(unit.count)]
        assert [p for p in pins if p]
        for case, pin in zip(drawn, pins, strict=True):
            assert pin is None or len(case.requests[0].tree) == pin


def test_nightly_has_trees_of_1024_rows():
    assert max(PROFILES["nightly"].pinned_rows) == 1024

    @settings_of("nightly", examples=3)
    @given(cases(GROUPS[0], "nightly", Focus(rows=1024)))
    def check(case):
        assert len(case.requests[0].tree) == 1024

    check()


def test_shape_groups_cover_all_pairs_of_values():
    columns = ["dtype", ("num_q_heads", "num_kv_heads"), ("head_dim", "v_head_dim")]
    columns += ["page_size", "windowed", "mask_mode", "rotary"]
    columns += ["softcap", "sinks", "alibi", "custom_scale", "kv_dtype"]

    def value(group, column):
        names = column if isinstance(column, tuple) else (column,)
        return tuple(getattr(group, name) for name in names)

    for i, a in enumerate(columns):
        for b in columns[i + 1 :]:
            seen = {(value(g, a), value(g, b)) for g in GROUPS}
            wanted = {(value(g, a), value(h, b)) for g in GROUPS for h in GROUPS}
            assert seen == wanted, (a, b)
    assert {g.page_size for g in GROUPS} == {1, 2, 16, 64}
    assert {g.kv_dtype for g in GROUPS} == {None, "float8_e4m3fn", "int8"}
    assert len(GROUPS) == 24


def test_half_of_every_groups_cases_are_plain(quick):
    """A backend that takes no extras is sent cases of all groups, pairs of values and row counts."""
    plain = [case for case in quick if Capabilities().refusal(case, "cpu") is None]
    # A group without extras is plain altogether.
    assert 0.5 <= len(plain) / len(quick) <= 0.6
    for chosen in (plain, [case for case in quick if case not in plain]):
        rows = {len(request.tree) for case in chosen for request in case.requests}
        assert set(EDGE_ROWS) <= rows
    short = [case for unit in units("quick", 0, 48) for case in draw(unit)]
    assert 20 <= sum(Capabilities().refusal(case, "cpu") is None for case in short) <= 28


def test_group_names_are_distinct():
    groups = (*GROUPS, *SERVED_GROUPS)
    assert len({group.name for group in groups}) == len(groups)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_a_case_has_the_values_its_group_fixes(group):
    @settings_of("ci", examples=8)
    @given(cases(group))
    def check(case):
        shape = case.shape
        assert shape.dtype == group.dtype
        assert (shape.num_q_heads, shape.num_kv_heads) == (group.num_q_heads, group.num_kv_heads)
        assert (shape.head_dim, shape.v_head_dim) == (group.head_dim, group.v_head_dim)
        assert case.layout.page_size == group.page_size
        assert (shape.window is not None) == group.windowed
        assert case.mask.mode is group.mask_mode
        assert shape.rotary == group.rotary
        assert (shape.scale is not None) == group.custom_scale
        found = (shape.softcap is not None, shape.sinks, shape.alibi, shape.kv_dtype)
        extras = (group.softcap, group.sinks, group.alibi, group.kv_dtype)
        assert found in (extras, (False, False, False, None))
        SlotLedger.of(case)

    check()


@pytest.mark.parametrize(
    ("name", "predicate"),
    [
        ("anything", lambda case: True),
        ("a fork", lambda case: any("star" in tag for tag in tags(case))),
        ("two requests", lambda case: len(case.requests) == 2),
        ("a window", lambda case: case.shape.window is not None),
        ("child before parent", lambda case: "order:child-first" in tags(case)),
        ("aliased", lambda case: "layout:aliased" in tags(case)),
    ],
)
def test_failing_cases_shrink_to_small_ones(name, predicate):
    with no_constants():
        found = find(cases(), predicate, settings=settings(settings_of("ci"), max_examples=200))
    assert sum(len(request.tree) for request in found.requests) <= 4
    assert all(request.prefix_len <= 2 for request in found.requests)
    assert found.seed == 0


# ---------------------------------------------------------------- tags of hand-made cases

TREE = CandidateTree((0, 1, 2, 3), (-1, 0, 0, 1))  # depths 0 1 1 2


def hand_made(prefixes=(5,), *, page=1, window=None, rows=(0, 1, 2, 3), pad=0, **layout):
    extra = {} if window is None else {"visibility": Window(width=window)}
    return VerifyCase(
        requests=tuple(
            Request(tree=TREE, row_of_node=rows, prefix_len=p, pad_rows=pad) for p in prefixes
        ),
        shape=AttentionShape(num_q_heads=4, num_kv_heads=2, head_dim=32, v_head_dim=32, **extra),
        layout=KVLayout(page_size=page, num_slots=4096, **layout),
        mask=MaskLayout(mode=MaskMode.QLEN_ONLY),
    )


@pytest.mark.parametrize(
    ("case", "present", "absent"),
    [
        (hand_made((0,)), "prefix:zero", "prefix:one"),
        (hand_made((1,)), "prefix:one", "prefix:zero"),
        (hand_made((32,), page=16), "prefix:page", "page:straddle"),
        (hand_made((33,), page=16), "prefix:page+1", "prefix:page"),
        (hand_made((31,), page=16), "prefix:page-1", "prefix:page+1"),
        (hand_made((1,), page=16), "page:straddle", "prefix:page+1"),
        (hand_made((14,), page=16), "page:tree-spans", "prefix:page"),
        (hand_made((12,), page=16), "page:straddle", "page:tree-spans"),
        (hand_made((5,), window=5), "prefix:window", "prefix:window+1"),
        (hand_made((6,), window=5), "prefix:window+1", "prefix:window"),
        (hand_made((4,), window=5), "prefix:window-1", "prefix:window"),
        (hand_made((508,)), "prefix:context-limit", "prefix:long"),
        (hand_made((507,)), "prefix:context-limit", "prefix:long"),
        (hand_made((506,)), "order:breadth-first", "prefix:context-limit"),
        (hand_made((512,)), "prefix:long", "prefix:context-limit"),
        (hand_made((5,)), "window:none", "window:cuts-nothing"),
        (hand_made((5,), window=8), "window:cuts-nothing", "window:cuts-prefix"),
        (hand_made((5,), window=7), "window:cuts-prefix", "window:cuts-nothing"),
        (hand_made((5,), window=3), "window:cuts-prefix", "window:cuts-tree"),
        (hand_made((5,), window=2), "window:cuts-tree", "window:cuts-prefix"),
        (hand_made((5,), window=1), "window:width-1", "window:cuts-prefix"),
        (hand_made((9,), window=2, evicted=True), "layout:evicted", "layout:aliased"),
        (hand_made((1,), window=2, evicted=True), "prefix:one", "layout:evicted"),
        (hand_made((4, 5), shared_prefix=2), "layout:aliased", "batch:ragged"),
        (hand_made((4,), shared_prefix=2), "batch:1", "layout:aliased"),
        (hand_made(order="interleaved"), "batch:1", "layout:interleaved"),
        (hand_made((4, 4), order="interleaved"), "layout:interleaved", "layout:contiguous"),
        (hand_made(pad_slot=-1), "layout:no-pad-slot", "batch:padded"),
        (hand_made(page_table_pad=7), "table-pad:slot", "table-pad:zero"),
        (hand_made(page_table_pad=-1), "table-pad:none", "table-pad:slot"),
        (hand_made(pad=1), "batch:padded", "batch:ragged"),
        (hand_made(rows=(0, 1, 3, 2)), "order:depth-first", "order:breadth-first"),
        (hand_made(rows=(0, 2, 1, 3)), "order:breadth-first", "order:child-first"),
        (hand_made(rows=(0, 3, 2, 1)), "order:child-first", "order:parent-first"),
        (hand_made(), "heads:grouped", "heads:multi-head"),
    ],
)
def test_tags_say_what_a_case_exercises(case, present, absent):
    found = tags(case)
    assert present in found
    assert absent not in found


def test_rows_that_leave_a_branch_and_come_back_are_parent_first_only():
    tree = CandidateTree((0, 1, 2, 3, 4), (-1, 0, 1, 0, 2))
    # Rows: root, 1, 3, then 2 below 1 again, then 4: depths 0 1 1 2 3.
    by_depth = Request(tree=tree, row_of_node=(0, 1, 3, 2, 4), prefix_len=0)
    # Rows: root, 1, 2, 3 (back at the root), 4 below 2.
    back = Request(tree=tree, row_of_node=(0, 1, 2, 3, 4), prefix_len=0)
    base = hand_made()
    assert "order:breadth-first" in tags(msgspec.structs.replace(base, requests=(by_depth,)))
    assert "order:parent-first" in tags(msgspec.structs.replace(base, requests=(back,)))


def test_equal_tokens_are_those_of_cousins_not_of_siblings():
    base = hand_made()
    for tokens, expected in [((0, 1, 2, 2), True), ((0, 1, 2, 3), False), ((3, 1, 2, 3), False)]:
        tree = CandidateTree(tokens, TREE.parents)
        request = msgspec.structs.replace(base.requests[0], tree=tree)
        case = msgspec.structs.replace(base, requests=(request,))
        assert ("tokens:equal-cousins" in tags(case)) == expected


def test_tags_come_in_the_order_of_the_list_of_all(quick):
    assert len(set(EVENT_CLASSES)) == len(EVENT_CLASSES)
    for case in quick[:40]:
        found = tags(case)
        assert list(found) == [tag for tag in EVENT_CLASSES if tag in found]


# ---------------------------------------------------------------- profiles


def test_profiles_ignore_the_profile_a_user_has_loaded():
    before = settings_of("quick")
    settings.register_profile("users-own", derandomize=True, max_examples=3)
    settings.load_profile("users-own")
    try:
        now = settings_of("quick")
    finally:
        settings.load_profile("default")
    for own in (before, now):
        assert own.max_examples == PROFILES["quick"].cases
        assert own.derandomize is False
        assert own.database is None
        assert own.deadline is None
    assert settings_of("ci").derandomize is True
    assert settings_of("nightly").derandomize is False


def test_only_nightly_draws_a_new_seed_and_a_seed_asked_for_is_kept():
    assert run_seed("quick", None) == run_seed("quick", None) == 0
    assert run_seed("ci", None) == run_seed("ci", None)
    assert run_seed("nightly", None) != run_seed("nightly", None)
    assert {run_seed(profile, 7) for profile in PROFILES} == {7}


@pytest.mark.parametrize(("profile", "anew"), [("ci", False), ("nightly", True)])
def test_given_draws_anew_in_nightly_and_the_same_in_ci(profile, anew):
    def ids():
        found = []

        @settings_of(profile, examples=4)
        @given(cases(GROUPS[0], profile))
        def collect(case):
            found.append(case.id)

        collect()
        return found[1:]  # the first is the simplest case, always

    assert (ids() != ids()) == anew
