"""Results that are asked for again and again, by the very objects that they follow from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Items = TypeVar("Items", bound=tuple[Any, ...])


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


class OneOfEqual(Generic[Items]):
    """Of equal tuples always the same object, so that what follows from one is kept for all. Up to
    `most` items are held, then it begins anew: equal tuples may be two objects, never the reverse."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._found: dict[Items, Items] = {}

    def of(self, items: Items) -> Items:
        found = self._found.setdefault(items, items)
        if found is items:
            self._held += len(items)
            if self._held > self._most:
                self._found = {items: items}
                self._held = len(items)
        return found


class Replayed(Generic[T]):
    """What an iterator gives, drawn from it once however often it is gone through, and no further
    than anybody has gone. Where it raises, it does so each time."""

    def __init__(self, rest: Iterator[T]) -> None:
        self._rest = rest
        self._found: list[T] = []
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[T]:
        at = 0
        while at < len(self._found) or self._draw():
            yield self._found[at]
            at += 1

    def _draw(self) -> bool:
        if self._error is not None:
            raise self._error
        try:
            self._found.append(next(self._rest))
        except StopIteration:
            return False
        except Exception as error:
            self._error = error
            raise
        return True
