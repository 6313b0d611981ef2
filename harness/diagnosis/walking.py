"""Accept walks as links and comparisons lead them, right or wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from treeproof.diagnosis.evidence import Walk
from treeproof.diagnosis.ground import Ground

Walks = tuple[tuple[Walk, ...], ...]


@dataclass(frozen=True)
class Step:
    """One request's walk in one round: tokens drafted and predicted, by row of the launch."""

    ground: Ground
    b: int
    drafted: Sequence[int]
    predicted: Sequence[int]

    @property
    def first(self) -> int:
        return self.ground.case.qo_indptr[self.b]

    def children(self, row: int) -> list[int]:
        """Real rows under a real row of the request, ascending."""
        up = self.ground.requests[self.b].parent_rows
        return [r for r, parent in enumerate(up) if parent == row]

    def draft(self, row: int) -> int:
        """Token of a row of the request; rows outside the launch carry none."""
        flat = self.first + row
        return self.drafted[flat] if 0 <= flat < len(self.drafted) else -1

    def want(self, row: int) -> int:
        flat = self.first + row
        return self.predicted[flat] if 0 <= flat < len(self.predicted) else -1

    def believing(self, predicted: Mapping[int, int]) -> Step:
        """The same where other tokens stand for what the target predicts after these rows."""
        tokens = list(self.predicted)
        for row, token in predicted.items():
            tokens[self.first + row] = token
        return replace(self, predicted=tokens)

    def emitted(self, rows: Sequence[int]) -> tuple[int, ...]:
        """What the target predicts after each row."""
        return tuple(self.want(row) for row in rows)


def steps(ground: Ground) -> list[list[Step]]:
    """Each round, each request."""
    drafted: list[int] = []
    for request in ground.requests:
        drafted += [request.tree.tokens[node] for node in request.node_of_row]
        drafted += [0] * request.pad_rows
    return [
        [Step(ground, b, drafted, prediction.tokens) for b in range(len(ground.requests))]
        for prediction in ground.rounds
    ]


def walked(ground: Ground, walk: Callable[[Step], Walk]) -> Walks:
    return tuple(tuple(walk(step) for step in line) for line in steps(ground))


def as_walk(step: Step, rows: Sequence[int]) -> Walk:
    return Walk(tuple(rows), len(rows), step.emitted(rows))


def most_rows(ground: Ground) -> int:
    """Rows that a walk may take, the root included: the deepest tree of the batch decides."""
    return 1 + max(1, *(max(request.tree.depth) for request in ground.requests))


def along(ground: Ground, links: Mapping[str, Sequence[Sequence[int]]]) -> Walks:
    """Greedy walks from link to link; a cell outside the table ends one."""
    down, right = links["retrieve_next_token"], links["retrieve_next_sibling"]
    index, most = links["retrieve_index"], most_rows(ground)

    def walk(step: Step) -> Walk:
        b, width = step.b, len(index[step.b])

        def flat(row: int) -> int:
            return index[b][row] - step.first if 0 <= row < width else -step.first - 1

        row, rows = 0, [flat(0)]
        while len(rows) < most:
            child, tries = down[b][row], 0
            while 0 <= child < width and tries < width:
                if step.draft(flat(child)) == step.want(rows[-1]):
                    break
                child, tries = right[b][child], tries + 1
            else:
                break
            row = child
            rows.append(flat(row))
        return as_walk(step, rows)

    return walked(ground, walk)
