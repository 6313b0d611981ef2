"""Tree files: what is read, what is refused and with which words, and the cases made of them."""

import json
from collections import Counter

import pytest

from treeproof.contract.case import Request
from treeproof.contract.ledger import SlotLedger
from treeproof.contract.wire import FileError
from treeproof.generate.tags import tags
from treeproof.generate.treefile import NamedTree, cases_of, read_trees

# The root, two children, and under the first two more: paths 0, 1, 00, 01.
FIVE = (-1, 0, 0, 1, 1)


def written(folder, content, name="shapes.json"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    "content",
    [
        "[-1, 0, 0, 1, 1]",
        "[[0], [1], [0, 0], [0, 1]]",
        "[[0, 1], [0, 0], [1], [0]]",
        '"[(0,), (1,), (0, 0), (0, 1)]"',
        "[(0,), (1,), (0, 0), (0, 1)]",
        "  [(0,), (1,),\n   (0, 0), (0, 1)]\n",
        '{"parents": [-1, 0, 0, 1, 1], "source": "somewhere"}',
        "\ufeff[-1, 0, 0, 1, 1]\n",
        "# the tree we serve\n[-1, 0, 0, 1, 1]\n",
    ],
)
def test_one_tree_may_be_written_in_any_of_the_usual_ways(tmp_path, content):
    assert read_trees(written(tmp_path, content)) == [NamedTree("shapes", FIVE)]


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("[[-1, 0, 0, 1, 1], [-1, 0]]", ["shapes[0]", "shapes[1]"]),
        ("[[[0], [1], [0, 0], [0, 1]], [[0]]]", ["shapes[0]", "shapes[1]"]),
        ('["[(0,), (1,), (0, 0), (0, 1)]", [-1, 0]]', ["shapes[0]", "shapes[1]"]),
        ('{"a": [-1, 0, 0, 1, 1], "b": [[0]]}', ["a", "b"]),
        ('{"a": {"parents": [-1, 0, 0, 1, 1]}, "b": "[(0,)]"}', ["a", "b"]),
        ('{"a": {"source": "x", "parents": [[0], [1], [0, 0], [0, 1]]}, "b": [-1, 0]}', ["a", "b"]),
        ("[-1, 0, 0, 1, 1]\n\n[-1, 0]\n", ["shapes:1", "shapes:3"]),
        ("[(0,), (1,), (0, 0), (0, 1)]\n[[0]]\n", ["shapes:1", "shapes:2"]),
    ],
)
def test_several_trees_keep_their_order_and_get_names(tmp_path, content, names):
    found = read_trees(written(tmp_path, content))
    assert [tree.name for tree in found] == names
    assert [tree.parents for tree in found] == [FIVE, (-1, 0)]


def test_paths_are_numbered_as_medusa_numbers_them(tmp_path):
    # By length, then by rank: 0, 2, 00, 20, 200.
    content = "[[2, 0, 0], [2], [0, 0], [0], [2, 0]]"
    assert read_trees(written(tmp_path, content))[0].parents == (-1, 0, 0, 1, 2, 4)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ([-1, 0, 3, 0], (-1, 0, 0, 2)),  # node 2 hangs on node 3: they change places
        ([1, -1, 1], (-1, 0, 0)),  # the root is not first
        ([-1, 2, 3, 0], (-1, 0, 1, 2)),  # a chain, backwards
    ],
)
def test_parents_after_their_children_are_renumbered(tmp_path, given, read):
    assert read_trees(written(tmp_path, json.dumps(given)))[0].parents == read


def test_renumbering_keeps_the_tree(tmp_path):
    given = [-1, 4, 4, 0, 3, 2]

    def paths(parents):
        def sizes(node):
            return tuple(sorted(sizes(c) for c, p in enumerate(parents) if p == node))

        return sizes(parents.index(-1))

    assert paths(read_trees(written(tmp_path, json.dumps(given)))[0].parents) == paths(given)


DEEP = "[" * 900 + "0" + "]" * 900

MALFORMED = [
    ("", "shapes.json: the file is empty"),
    (" \n\n", "the file is empty"),
    ("# nothing\n", "holds no tree"),
    ("{}", "holds no tree"),
    ("[]", "tree 'shapes': expected a list of parents"),
    ("3", "tree 'shapes': expected a list of parents like"),
    ("null", "expected a list of parents"),
    (b"\x00\x01\xff\xfe", "not UTF-8 at byte 2"),
    (b"\x80\x04\x95", "not UTF-8 at byte 0"),
    ("\x00\x00", "column 1"),
    ("[-1, 0, 0", "line 1, column 10"),
    ('{"a": [-1, 0', "line 1, column 13"),
    ("[(0,), (1,", "no list of tuples"),
    ('"[(0,), (1,"', "tree 'shapes': no list of tuples"),
    ("[-1, 0, NaN]", "NaN is not a number"),
    ('{"a": [-1, Infinity]}', "Infinity is not a number"),
    ('{"a": [-1], "a": [-1, 0]}', "duplicate key 'a'"),
    ('{"a": {"parents": [-1], "parents": [-1]}}', "duplicate key 'parents'"),
    ('{"a": {"parents": [-1], "sorce": ""}}', "tree 'a': unknown field 'sorce'"),
    ('{"a": {"source": ""}}', "tree 'a': the field parents is missing"),
    ('{"a": {"parents": [-1], "source": 3}}', "tree 'a': source is no text"),
    ('{"a": {"parents": {"b": 1}}}', "tree 'a': expected a list of parents"),
    ('{"a\\u0000": [-1]}', "tree name 'a\\x00'"),
    ('{"": [-1]}', "tree name ''"),
    ("[0, 0, 1]", "no entry of parents is -1"),
    ("[-1, -1, 0]", "parents[0] and parents[1] are -1"),
    ("[-1, 2, 1]", "parents[1] is part of a cycle"),
    ("[-1, 0, 4, 2, 3, 1]", "parents[2] is part of a cycle"),
    ("[-1, 1]", "parents[1] is 1: accepted are other rows, 0 to 1"),
    ("[-1, 0, 3]", "parents[2] is 3: accepted are other rows, 0 to 2"),
    ("[-1, -2]", "parents[1] is -2"),
    ("[-1, 0.0]", "parents[1] is 0.0: a whole number is expected"),
    ("[-1, true]", "parents[1] is True: a whole number is expected"),
    ('[-1, "0"]', "tree 'shapes[0]': expected a list"),
    ("[-1, null]", "parents[1] is None"),
    ("[-1, 1e400]", "1e400 is too large - at `$[1]`"),
    (f"[-1, {10**15}]", "parents[1] is 1000000000"),
    (f"[-1, {'9' * 5000}]", "digits"),
    (f"[(0,), ({'9' * 5000},)]", "digits"),
    (f"[[0], [{10**15}]]", "paths[1][0] is 1000000000"),
    (f"[-1, {10**30}]", "31 digits"),
    ("[[0], [0, 0, 0]]", "paths[1] is [0, 0, 0], but its parent [0, 0] is missing"),
    ("[[1, 0]]", "paths[0] is [1, 0], but its parent [1] is missing"),
    ("[[0], [1], [0]]", "paths[2] and paths[0] are both [0]"),
    ("[[0], []]", "paths[1] is empty"),
    ("[[0], 1]", "expected a list of parents like [-1, 0, 0], or of paths"),
    ("[[0], [0.5]]", "paths[1][0] is 0.5"),
    ("[[0], [[1]]]", "tree 'shapes[0]': no entry of parents is -1"),
    ("[[[0]], [[-2]]]", "tree 'shapes[1]': paths[0][0] is -2"),
    ('{"a": [[0], [[0]]]}', "tree 'a': paths[1][0] is a list of 1"),
    (DEEP, "tree 'shapes[0]': paths[0][0] is a list of 1"),
    ('{"a": ' + DEEP + "}", "tree 'a': paths[0][0] is a list of 1"),
    ("[" * 100_000, "nested too deeply"),
    ("(" * 100_000, "column 4 is nested too deeply"),
    ('"' + "[" * 100 + '"', "column 4 is nested too deeply"),
    ("__import__('os').system('false')", "column 1 is '_'"),
    ("[(0,), (1,)] + [(2,)]", "column 14 is '+'"),
    ("[(0,)(1,)]", "no list of tuples"),
    (f"[-1{', 0' * 4096}]", "parents has 4097 nodes, at most 4096"),
    (json.dumps([[i] for i in range(4096)]), "paths has 4097 nodes, at most 4096"),
    ("[-1, 0]\n[-1, 0, x]\n", "tree 'shapes:2': column 9 is 'x'"),
    ("[-1, 0]\n[-1, 5]\n", "tree 'shapes:2': parents[1] is 5"),
]


@pytest.mark.parametrize(
    ("content", "words"),
    MALFORMED,
    ids=[f"{i}-{words[:30]}" for i, (_, words) in enumerate(MALFORMED)],
)
def test_a_malformed_file_is_refused_by_name(tmp_path, content, words):
    path = written(tmp_path, content)
    with pytest.raises(FileError) as refusal:
        read_trees(path)
    message = str(refusal.value)
    assert str(path) in message
    assert words in message
    assert len(message) < 400


def test_a_missing_file_and_a_folder_are_refused_by_name(tmp_path):
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(FileError, match=str(path)):
            read_trees(path)


def test_a_literal_runs_nothing(tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr("os.system", called.append)
    with pytest.raises(FileError):
        read_trees(written(tmp_path, "[__import__('os').system('x')]"))
    assert called == []


# ---------------------------------------------------------------- cases


def served():
    """Shapes of the kinds that are served, up to 512 rows."""
    star = (-1, *[0] * 8)
    chain = tuple(range(-1, 15))
    wide = (-1, *((node - 1) // 4 for node in range(1, 64)))
    large = (-1, *((node - 1) // 3 for node in range(1, 512)))
    return [
        NamedTree(f"{name}-{i}", parents)
        for i in range(6)
        for name, parents in (("star", star), ("chain", chain), ("wide", wide), ("large", large))
    ]


PREFIXES = (0, 1, 63, 1000)


@pytest.fixture(scope="module")
def drawn():
    return cases_of(served(), PREFIXES, seed=0)


def test_there_is_one_case_for_each_tree_and_prefix_in_order(drawn):
    expected = [(tree.parents, prefix) for tree in served() for prefix in PREFIXES]
    firsts = [case.requests[0] for case in drawn]
    assert [(r.tree.parents, r.prefix_len) for r in firsts] == expected
    assert len({case.id for case in drawn}) == len(drawn)


def test_every_tree_is_seen_with_a_window_and_without(drawn):
    for i in range(len(served())):
        of_tree = drawn[4 * i : 4 * i + 4]
        assert sum(case.shape.window is None for case in of_tree) == 2


def test_shapes_layouts_and_row_orders_take_turns(drawn):
    found = Counter(tag for case in drawn for tag in tags(case))
    for kind in ("dtype", "page", "layout", "order", "heads", "mask", "table-pad", "window"):
        assert sum(tag.startswith(kind + ":") for tag in found) >= 3, kind
    expected = ["mask:bit-packed", "layout:evicted", "order:child-first", "tokens:equal-cousins"]
    expected += ["batch:2", "rotary:on", "rotary:off", "scores:spread"]
    assert {tag: found[tag] for tag in expected if found[tag] < 2} == {}


def test_large_trees_come_alone_and_with_moderate_heads(drawn):
    large = [case for case in drawn if len(case.requests[0].tree) == 512]
    assert large
    assert all(len(case.requests) == 1 and case.shape.head_dim <= 64 for case in large)
    assert max(case.requests[0].prefix_len for case in large) == 1000


def test_cases_hold_a_ledger_and_their_ids_follow_the_seed(drawn):
    for case in drawn:
        SlotLedger.of(case)
        assert all(isinstance(request, Request) for request in case.requests)
    again, other = cases_of(served(), PREFIXES, seed=0), cases_of(served(), PREFIXES, seed=1)
    assert [case.id for case in again] == [case.id for case in drawn]
    assert not {case.id for case in other} & {case.id for case in drawn}


def test_very_long_prefixes_come_with_heads_that_tell_the_slots_apart():
    found = cases_of(served()[:4], (131_072,) * 8, seed=0)
    assert {case.requests[0].prefix_len for case in found} == {131_072}
    assert {case.shape.window is None for case in found} == {True, False}


def test_another_prefix_leaves_the_cases_before_it_alone(drawn):
    shorter = cases_of(served()[:2], PREFIXES[:2], seed=0)
    assert [case.id for case in shorter] == [drawn[i].id for i in (0, 1, 4, 5)]
