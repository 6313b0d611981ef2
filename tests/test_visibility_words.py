"""How often a key was read, as a message says it."""

import pytest

from treeproof.properties.visibility import _count


@pytest.mark.parametrize(
    ("reads", "words"),
    [
        (0.0, "not read"),
        (1.0, "read once"),
        (0.998, "read once"),
        (2.0, "read twice"),
        (3.0, "read 3 times"),
        (0.5, "read 0.50 times"),
        (1.01, "read 1.01 times"),
    ],
)
def test_a_count_is_said_as_people_say_it(reads: float, words: str) -> None:
    assert _count(reads) == words
