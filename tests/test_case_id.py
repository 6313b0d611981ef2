import pickle

import msgspec
import pytest

from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase, Window
from treeproof.contract.tree import CandidateTree
from treeproof.contract.wire import decode_case, encode_case


def make_case(**fields: object) -> VerifyCase:
    tree = CandidateTree(tokens=(5, 6, 7), parents=(-1, 0, 0))
    given = {
        "requests": (Request(tree=tree, row_of_node=(0, 2, 1), prefix_len=7),),
        "shape": AttentionShape(num_q_heads=2, num_kv_heads=1, head_dim=8, v_head_dim=8),
        "layout": KVLayout(page_size=1, num_slots=16),
    } | fields
    return VerifyCase(**given)  # type: ignore[arg-type]


def fresh(text: str) -> str:
    """The same text in another object, as a file or another process would give it."""
    return "".join(list(text))


def test_a_case_read_back_has_the_id_it_was_written_with() -> None:
    case = make_case()
    assert decode_case(encode_case(case)).id == case.id
    assert pickle.loads(pickle.dumps(make_case())).id == case.id


def test_values_equal_to_a_default_do_not_change_the_id() -> None:
    shape = msgspec.structs.replace(make_case().shape, dtype=fresh("float32"))
    layout = KVLayout(page_size=1, num_slots=16, order=fresh("contiguous"))  # type: ignore[arg-type]
    assert make_case(shape=shape, layout=layout, score_spread=float("1")).id == make_case().id


def test_equal_numbers_of_two_types_give_one_id() -> None:
    assert make_case(score_spread=2).id == make_case(score_spread=2.0).id


@pytest.mark.parametrize(
    "fields",
    [
        {"seed": 1},
        {"score_spread": 2.0},
        {"layout": KVLayout(page_size=1, num_slots=16, order="reversed")},
        {
            "shape": AttentionShape(
                num_q_heads=2,
                num_kv_heads=1,
                head_dim=8,
                v_head_dim=8,
                visibility=Window(width=3),
            )
        },
    ],
)
def test_another_case_has_another_id(fields: dict[str, object]) -> None:
    assert make_case(**fields).id != make_case().id
