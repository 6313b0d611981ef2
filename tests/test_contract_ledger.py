"""The slot ledger: who owns which slot, by hand for small cases and by its rules for drawn ones."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treeproof.contract.case import (
    AttentionShape,
    Full,
    KVLayout,
    Order,
    Request,
    VerifyCase,
    Window,
)
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.tree import CandidateTree

steadily = settings(derandomize=True, database=None, deadline=None, max_examples=150)


def request(prefix: int, nodes: int, pad_rows: int = 0) -> Request:
    """A chain; the ledger asks for no more of a tree than how many nodes it has."""
    tree = CandidateTree(tokens=(0,) * nodes, parents=(-1, *range(nodes - 1)))
    return Request(tree=tree, row_of_node=tuple(range(nodes)), prefix_len=prefix, pad_rows=pad_rows)


def case(
    *requests: Request, window: int | None = None, seed: int = 0, **layout: object
) -> VerifyCase:
    return VerifyCase(
        requests=requests,
        shape=AttentionShape(
            num_q_heads=1,
            num_kv_heads=1,
            head_dim=16,
            v_head_dim=16,
            visibility=Full() if window is None else Window(width=window),
        ),
        layout=KVLayout(**layout),  # type: ignore[arg-type]
        seed=seed,
    )


@st.composite
def cases(draw: st.DrawFn) -> VerifyCase:
    page = draw(st.sampled_from((1, 2, 3, 16)))
    drawn = [
        request(draw(st.integers(0, 40)), draw(st.integers(1, 9)), draw(st.integers(0, 3)))
        for _ in range(draw(st.integers(1, 4)))
    ]
    window = draw(st.none() | st.integers(1, 30))
    pad_slot = draw(st.sampled_from((0, -1)))
    pages = draw(st.integers(0, 5)) + (pad_slot == 0)
    pages += sum(-(-(r.prefix_len + r.num_nodes) // page) for r in drawn)
    whole = min(r.prefix_len for r in drawn) // page
    return case(
        *drawn,
        window=window,
        seed=draw(st.integers(0, 2**63 - 1)),
        page_size=page,
        num_slots=pages * page,
        order=draw(st.sampled_from(("contiguous", "reversed", "interleaved", "shuffled"))),
        pad_slot=pad_slot,
        page_table_pad=draw(st.integers(-1, pages * page - 1)),
        shared_prefix=page * draw(st.just(0) | st.integers(0, whole)),
        evicted=window is not None and draw(st.booleans()),
    )


# Two requests of 5 and 3 columns in pages of 2: three pages and two. Page 0 is the pad page and
# pages 6 and 7 are free.
@pytest.mark.parametrize(
    ("order", "pad_slot", "columns"),
    [
        ("contiguous", 0, ((2, 3, 4, 5, 6), (8, 9, 10))),
        ("contiguous", -1, ((0, 1, 2, 3, 4), (6, 7, 8))),
        ("reversed", 0, ((14, 15, 12, 13, 10), (8, 9, 6))),
        ("reversed", -1, ((14, 15, 12, 13, 10), (8, 9, 6))),
        ("interleaved", 0, ((2, 3, 6, 7, 10), (4, 5, 8))),
        ("interleaved", -1, ((0, 1, 4, 5, 8), (2, 3, 6))),
    ],
)
def test_pages_are_handed_out_in_the_order_that_is_asked_for(
    order: Order, pad_slot: int, columns: tuple[tuple[int, ...], ...]
) -> None:
    made = case(
        request(3, 2), request(0, 3), page_size=2, num_slots=16, order=order, pad_slot=pad_slot
    )
    ledger = SlotLedger.of(made)
    assert ledger.columns == columns
    assert ledger.row_slots(0) == columns[0][3:]
    assert ledger.row_slots(1) == columns[1]
    assert ledger.unowned == tuple(sorted(set(range(16)) - {*columns[0], *columns[1]}))


def test_a_shared_prefix_is_request_0s_and_saves_its_pages() -> None:
    made = case(
        request(5, 1),
        request(4, 2),
        page_size=2,
        num_slots=12,
        shared_prefix=4,
        order="interleaved",
    )
    # Round robin: page 1 to request 0, 2 to request 1, which needs no other, then 3 and 4 to 0.
    ledger = SlotLedger.of(made)
    assert ledger.columns == ((2, 3, 6, 7, 8, 9), (2, 3, 6, 7, 4, 5))
    assert ledger.owner[2] == (0, 0)
    assert ledger.owner[4] == (1, 4)


def test_evicted_pages_are_nobodys_and_their_cells_hold_the_pad() -> None:
    made = case(
        request(7, 2),
        window=3,
        page_size=2,
        num_slots=14,
        page_table_pad=1,
        evicted=True,
    )
    # The root, at 7, sees 5, 6 and 7: the pages of columns 0 to 3 are given back.
    ledger = SlotLedger.of(made)
    assert ledger.columns == ((-1, -1, -1, -1, 6, 7, 8, 9, 10),)
    assert ledger.unowned == (0, 1, 2, 3, 4, 5, 11, 12, 13)
    (slot,) = ledger.request_slots
    assert ledger.req_to_token[slot][:9] == (1, 1, 1, 1, 6, 7, 8, 9, 10)


def test_a_prefix_page_evicted_by_its_owner_belongs_to_who_still_holds_it() -> None:
    made = case(
        request(8, 1), request(4, 1), window=3, page_size=2, num_slots=20, shared_prefix=4,
        evicted=True,
    )  # fmt: skip
    ledger = SlotLedger.of(made)
    assert ledger.columns[0][:6] == (-1,) * 6
    assert ledger.columns[1][:4] == (-1, -1, 4, 5)
    assert ledger.owner[4] == (1, 2)


@steadily
@given(cases())
def test_every_owned_slot_has_one_owner_but_for_the_shared_prefix(case: VerifyCase) -> None:
    ledger = SlotLedger.of(case)
    shared = case.layout.shared_prefix
    uses = Counter(slot for columns in ledger.columns for slot in columns if slot != -1)
    for b, columns in enumerate(ledger.columns):
        drawn = case.requests[b]
        assert len(columns) == drawn.prefix_len + drawn.num_nodes
        assert columns.count(-1) == case.evicted_columns(b)
        for c, slot in enumerate(columns):
            if slot == -1:
                assert c < case.evicted_columns(b)
                continue
            assert 0 <= slot < case.layout.num_slots
            if c >= shared:
                assert uses[slot] == 1
                assert ledger.owner[slot] == (b, c)
            else:
                owner, column = ledger.owner[slot]
                assert column == c
                assert owner <= b
    assert ledger.owner.keys() == uses.keys()


@steadily
@given(cases())
def test_a_page_holds_consecutive_columns_in_order(case: VerifyCase) -> None:
    page = case.layout.page_size
    for columns in SlotLedger.of(case).columns:
        for c, slot in enumerate(columns):
            if slot != -1:
                assert slot % page == c % page
                assert slot // page == columns[c // page * page] // page


@steadily
@given(cases())
def test_the_pad_page_and_spare_slots_are_unowned(case: VerifyCase) -> None:
    ledger = SlotLedger.of(case)
    assert sorted([*ledger.owner, *ledger.unowned]) == list(range(case.layout.num_slots))
    if case.layout.pad_slot == 0:
        assert set(range(case.layout.page_size)) <= set(ledger.unowned)


@steadily
@given(cases())
def test_the_table_holds_each_requests_columns_and_padding(case: VerifyCase) -> None:
    ledger = SlotLedger.of(case)
    pad, page = case.layout.page_table_pad, case.layout.page_size
    assert len(ledger.req_to_token) == len(case.requests) + 2
    (width,) = {len(row) for row in ledger.req_to_token}
    assert width % page == 0
    assert width >= max(map(len, ledger.columns)) + 2 * page
    for row, cells in enumerate(ledger.req_to_token):
        if row in ledger.request_slots:
            own = ledger.columns[ledger.request_slots.index(row)]
            expected = [pad if slot == -1 else slot for slot in own]
        else:
            expected = []
        assert list(cells) == expected + [pad] * (width - len(expected))


@steadily
@given(cases())
def test_no_request_holds_the_table_row_of_its_own_number(case: VerifyCase) -> None:
    slots = SlotLedger.of(case).request_slots
    assert len(set(slots)) == len(slots) == len(case.requests)
    assert all(0 <= slot < len(slots) + 2 for slot in slots)
    assert all(slot != b for b, slot in enumerate(slots))


def test_table_rows_and_shuffled_pages_depend_on_the_seed() -> None:
    made = [
        case(request(9, 3), request(2, 2), page_size=1, num_slots=30, order="shuffled", seed=seed)
        for seed in range(20)
    ]
    ledgers = [SlotLedger.of(one) for one in made]
    assert len({ledger.columns for ledger in ledgers}) == 20
    assert len({ledger.request_slots for ledger in ledgers}) > 5
    assert SlotLedger.of(made[0]).columns == ledgers[0].columns


def test_one_case_keeps_its_shuffled_pages_and_table_rows() -> None:
    """A reproducer of today must mean the same tomorrow."""
    made = case(request(3, 2), request(0, 3), page_size=2, num_slots=16, order="shuffled", seed=7)
    ledger = SlotLedger.of(made)
    # Sorted by address_hash(7, 101, i), pages 1 to 7 come as 2, 4, 1, 5, 7, 6, 3; by
    # address_hash(7, 102, i), table rows go round the circle 2, 1, 3, 0.
    assert ledger.columns == ((4, 5, 8, 9, 2), (10, 11, 14))
    assert ledger.request_slots == (2, 3)


def test_shuffled_pages_are_neither_ascending_nor_descending() -> None:
    slots = SlotLedger.of(case(request(30, 3), page_size=1, num_slots=64, order="shuffled")).columns
    steps = {b - a for a, b in zip(slots[0], slots[0][1:], strict=False)}
    assert len(steps) > 10
    assert min(steps) < 0 < max(steps)


def test_one_slot_less_than_needed_is_no_case() -> None:
    made = case(request(3, 2), request(0, 3), page_size=2, num_slots=12)
    assert max(SlotLedger.of(made).owner) == 10
    with pytest.raises(ValueError, match=r"^layout.num_slots is 10: these requests need 12$"):
        msgspec.structs.replace(made, layout=KVLayout(page_size=2, num_slots=10))
