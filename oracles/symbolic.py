"""Numbers that stand for all tables of probabilities at once: quotients of polynomials in positive unknowns.

A law with every probability above 0 is (a, b, c) / (a + b + c) for unknowns above 0. What a rule
computes of it are quotients of polynomials; where the difference of two has coefficients of one sign
alone, it has that sign whatever the unknowns are, and so is decided for all laws in one comparison.
Where it has both, the rule does one thing for some laws and another for others: `Undecided`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import count, product
from typing import Any

Monomial = tuple[int, ...]
"""Unknowns, by number, ascending; one that is squared stands twice."""
Polynomial = tuple[tuple[Monomial, int], ...]
"""Monomials in order, each with its coefficient, none of them 0."""
_ONE: Polynomial = (((), 1),)
_numbers = count()


class Undecided(ValueError):
    """A comparison that comes out differently for different tables."""


Factors = tuple[Polynomial, ...]


class Symbol:
    """A product of polynomials over a product of polynomials; those below have no coefficient below 0."""

    __slots__ = ("above", "below")

    def __init__(self, above: Factors, below: Factors) -> None:
        if above and below:
            above, below = _without(above, below), _without(below, above)
        self.above, self.below = above, below

    def __add__(self, other: Any) -> Symbol:
        term = _symbol(other)
        if () in term.above:  # 0
            return self
        if () in self.above:
            return term
        mine, its = _without(self.below, term.below), _without(term.below, self.below)
        # What both terms have as a factor is left as one: expanded, products of laws do not end.
        left, right = self.above + its, term.above + mine
        own = _without(left, right)
        both = _without(left, own)
        total = _sum(_expanded(own), _expanded(_without(right, both)))
        return Symbol(both + _factors(total), self.below + its)

    __radd__ = __add__

    def __neg__(self) -> Symbol:
        return self * -1

    def __sub__(self, other: Any) -> Symbol:
        return self + -_symbol(other)

    def __rsub__(self, other: Any) -> Symbol:
        return _symbol(other) - self

    def __mul__(self, other: Any) -> Symbol:
        other = _symbol(other)
        return Symbol(self.above + other.above, self.below + other.below)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Symbol:
        other = _symbol(other)
        if other.sign() <= 0:
            raise ZeroDivisionError("division by what is not above 0 for all tables")
        return Symbol(self.above + other.below, self.below + other.above)

    def __rtruediv__(self, other: Any) -> Symbol:
        return _symbol(other) / self

    def sign(self) -> int:
        """-1, 0 or 1, for all values of the unknowns. Raises Undecided where it depends on them."""
        signs = {1 if coefficient > 0 else -1 for _, coefficient in _expanded(self.above)}
        if len(signs) > 1:
            raise Undecided("the sign depends on the table")
        return next(iter(signs), 0)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Symbol | Fraction | int):
            return NotImplemented
        return not _expanded((self - other).above)

    __hash__ = None  # type: ignore[assignment]

    def _less(self, other: Any) -> int:
        """The sign of the difference."""
        return (self + -_symbol(other)).sign()

    def __lt__(self, other: Any) -> bool:
        return self._less(other) < 0

    def __gt__(self, other: Any) -> bool:
        return self._less(other) > 0

    def __le__(self, other: Any) -> bool:
        return self._less(other) <= 0

    def __ge__(self, other: Any) -> bool:
        return self._less(other) >= 0


def unknown() -> Symbol:
    """A new unknown above 0."""
    return Symbol(((((next(_numbers),), 1),),), ())


def any_law(support: tuple[int, ...], size: int) -> tuple[Any, ...]:
    """Any probabilities above 0 on the tokens of `support`, and 0 on the others of `size`."""
    weights = {token: unknown() for token in support}
    whole = sum(weights.values(), Fraction(0))
    return tuple(
        weights[token] / whole if token in weights else Fraction(0) for token in range(size)
    )


@dataclass(frozen=True)
class Face:
    """Pairs of laws p and q that compare alike: `more` are the tokens likelier by p, `less` those likelier
    by q, `common` those whose smaller probability of the two is not 0."""

    more: tuple[int, ...]
    less: tuple[int, ...]
    common: tuple[int, ...]

    def any_pair(self, size: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """p and q of this face, whichever: what they have in common, and for each token of `more` and each
        of `less` what p has of the one and q of the other. Whatever p and q have apart is so divided:
        it is as much in all."""
        least = {token: unknown() for token in self.common}
        moved = {pair: unknown() for pair in product(self.more, self.less)}
        whole = sum([*least.values(), *moved.values()], Fraction(0))

        def share(token: int, side: int) -> Any:
            apart = [weight for pair, weight in moved.items() if pair[side] == token]
            return sum(apart, least.get(token, Fraction(0))) / whole

        p, q = (tuple(share(token, side) for token in range(size)) for side in (0, 1))
        return p, q


def faces(size: int) -> list[Face]:
    """Every pair of laws lies on one of these; those without probabilities of 0 or equal ones first."""
    found = []
    for signs in product((1, -1, 0), repeat=size):
        more, less = (tuple(t for t in range(size) if signs[t] == sign) for sign in (1, -1))
        for held in product((True, False), repeat=size):
            common = tuple(t for t in range(size) if held[t])
            # No law has more than another everywhere; and none is 0 everywhere.
            if bool(more) == bool(less) and (more or common):
                found.append(Face(more, less, common))
    return sorted(found, key=lambda face: -len(face.common) - len(face.more + face.less))


def _symbol(value: Any) -> Symbol:
    return value if isinstance(value, Symbol) else _number(Fraction(value))


@cache
def _number(value: Fraction) -> Symbol:
    return Symbol(_factors({(): value.numerator}), _factors({(): value.denominator}))


def _factors(polynomial: Mapping[Monomial, int]) -> Factors:
    """One factor, but none where it is 1."""
    kept = tuple(sorted((m, c) for m, c in polynomial.items() if c))
    return () if kept == _ONE else (kept,)


def _without(factors: Factors, taken: Factors) -> Factors:
    """Those that are left when each of `taken` takes one like itself away."""
    left = list(factors)
    for factor in taken:
        if factor in left:
            left.remove(factor)
    return tuple(left)


def _sum(a: Polynomial, b: Polynomial) -> dict[Monomial, int]:
    total = dict(a)
    for monomial, coefficient in b:
        total[monomial] = total.get(monomial, 0) + coefficient
    return total


def _expanded(factors: Factors) -> Polynomial:
    if len(factors) == 1:
        return factors[0]
    product: dict[Monomial, int] = {(): 1}
    for factor in factors:
        grown: dict[Monomial, int] = {}
        for m, c in product.items():
            for n, d in factor:
                both = tuple(sorted(m + n))
                grown[both] = grown.get(both, 0) + c * d
        product = grown
    return tuple(sorted((m, c) for m, c in product.items() if c))
