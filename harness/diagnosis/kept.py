"""Results that are asked for again and again, by the very objects that they follow from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Kept(Generic[T]):
    """Up to `most` results, then it begins anew. Objects are the same where they are one object."""

    def __init__(self, most: int) -> None:
        self._most = most
        # What is held cannot be freed, so that no other object gets its id.
        self._found: dict[tuple[int, ...], tuple[tuple[object, ...], T]] = {}

    def of(self, *objects: object, make: Callable[[], T]) -> T:
        place = tuple(map(id, objects))
        if place not in self._found:
            if len(self._found) >= self._most:
                self._found.clear()
            self._found[place] = objects, make()
        return self._found[place][1]
