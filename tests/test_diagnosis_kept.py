"""What is worked out once: found again by the very objects, and dropped before it grows too large."""

import pytest

from treeproof.diagnosis.ground import Key, as_keys
from treeproof.diagnosis.kept import Kept, OneOfEqual, Replayed


def test_equal_keys_are_one_object_and_others_are_not():
    first = as_keys([Key(0, 3, 3), Key(1, 4, 4)])
    assert as_keys(Key(i, 3 + i, 3 + i) for i in range(2)) is first
    assert as_keys([Key(1, 4, 4), Key(0, 3, 3)]) == (Key(1, 4, 4), Key(0, 3, 3))
    assert as_keys([Key(0, 3, 3)]) == (Key(0, 3, 3),)


def test_no_more_items_are_held_than_asked_for_and_the_last_ones_still_are():
    def numbers(first):
        return tuple(range(first, first + 3))

    held = OneOfEqual[tuple[int, ...]](5)
    first = held.of(numbers(0))
    assert held.of(numbers(0)) is first
    last = held.of(numbers(7))
    assert held.of(numbers(7)) is last
    assert held.of(numbers(0)) is not first


def test_a_result_is_kept_for_the_same_objects_and_not_for_equal_ones():
    kept, made = Kept[int](2), []

    def ask(*objects):
        return kept.of(*objects, make=lambda: made.append(objects) or len(made))

    one, equal = [1], [1]
    assert [ask(one), ask(one), ask(equal), ask(one, equal), ask(one)] == [1, 1, 2, 3, 4]


def test_what_is_gone_through_again_is_the_same_and_drawn_no_further_than_asked_for():
    drawn = []
    every = Replayed(drawn.append(i) or [i] for i in range(4))
    first = next(iter(every))
    assert drawn == [0]
    one, other = iter(every), iter(every)
    pairs = [(next(one), next(other)) for _ in range(3)]
    assert all(a is b for a, b in pairs)
    assert pairs[0][0] is first
    assert drawn == [0, 1, 2]
    assert [*every] == [*every] == [[0], [1], [2], [3]]
    assert drawn == [0, 1, 2, 3]


def test_what_breaks_off_is_never_taken_for_its_end():
    def broken():
        yield 1
        raise LookupError("lost")

    every = Replayed(broken())
    for _ in range(2):
        with pytest.raises(LookupError, match="lost"):
            list(every)
