"""What is worked out once: found again by the very objects, and dropped before it grows too large."""

from treeproof.diagnosis.ground import Key, as_keys
from treeproof.diagnosis.kept import Kept, OneOfEqual


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
