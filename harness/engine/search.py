"""The smallest failing case so far, and what has been tried on the way to it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import ValidationError

from treeproof.contract.case import VerifyCase
from treeproof.engine.removals import Edit


class Search:
    """A case that fails, and attempts to put a smaller one in its place."""

    def __init__(
        self, case: VerifyCase, still_fails: Callable[[VerifyCase], bool], limit: int
    ) -> None:
        self.case = case
        self.evaluations = 0
        self.exhausted = False
        """A candidate was left untried because of the limit."""
        self.thorough = True
        """The first round is, and one after a removal that no pass has found. The others look for
        what the passes made possible for each other, which is little: they try a small cut first,
        and big ones only where it holds."""
        self._still_fails = still_fails
        self._limit = limit
        self._tried = {case.id: True}
        """By case: whether it fails."""

    def attempt(self, edit: Edit, known: bool = False) -> bool:
        """Take the edit if the edited case is valid, new, and fails still; a `known` one needs not
        be new, which is for edits that can only make a case smaller: others might go in circles."""
        try:
            candidate = edit(self.case)
        except (ValueError, ValidationError):
            return False
        if candidate.id in self._tried:
            if not known or not self._tried[candidate.id]:
                return False
        elif self.evaluations >= self._limit:
            self.exhausted = True
            return False
        else:
            self.evaluations += 1
            self._tried[candidate.id] = self._still_fails(candidate)
        if not self._tried[candidate.id]:
            return False
        self.case = candidate
        return True

    def lower(
        self, read: Callable[[VerifyCase], int], least: int, set_to: Callable[[int], Edit]
    ) -> None:
        """Lower a number as far as the failure allows; one less than the result has been tried."""
        if read(self.case) <= least or self.attempt(set_to(least)):
            return
        if not self.thorough and not self.attempt(set_to(read(self.case) - 1)):
            return
        step = read(self.case) - least
        while step > 1:
            step = (step + 1) // 2
            while read(self.case) - step > least and self.attempt(set_to(read(self.case) - step)):
                pass
