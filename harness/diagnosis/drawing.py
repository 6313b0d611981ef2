"""What sampled acceptance emits where one thing about its coins, sums or weights is as stated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from treeproof.contract.case import VerifyCase
from treeproof.contract.sampling import TARGET_ONLY
from treeproof.diagnosis.evidence import Walk
from treeproof.properties.plans import Plan
from treeproof.properties.sampled import Sampled
from treeproof.properties.sampling_rules import launches

_NEXT_TO_NOTHING = 2.0**-60

Draws = tuple[tuple[Walk, ...], ...]


@dataclass(frozen=True)
class Drawing:
    """A right walk as it stands. `coin`: whose coin decides about a row's children. `edge`: what a
    coin on an edge does all the same; "nothing": what has no probability has next to none. `last`: the
    coin that draws. `weights`: what it draws from after a refusal, and what that counts as its whole.
    `bonus`: whose law the last token is drawn by after a whole path. `law`: whose law the children are
    weighed by; that of an only child. `thresholds`, `greedy`: as they say.
    """

    coin: Literal["own", "root", "next row", "row before"] = "own"
    edge: Literal["", "accepts", "draws", "nothing"] = ""
    last: Literal["own", "refusing"] = "own"
    weights: Literal["residual", "all", "all but the first", "residual of 1"] = "residual"
    bonus: Literal["own", "parent", "root"] = "own"
    thresholds: Literal["own", "swapped", "ignored", "where 0"] = "own"
    of_child: bool = False
    greedy: bool = False


RIGHT = Drawing()


def drawn(case: VerifyCase, how: Drawing) -> Draws:
    """A line a launch of rule `target-only`, a walk a request."""
    return tuple(
        tuple(_walk(launch, b, plan, how) for b, plan in enumerate(launch.plans))
        for launch in launches(case, TARGET_ONLY)
    )


def _walk(launch: Sampled, b: int, plan: Plan, how: Drawing) -> Walk:
    tree, first = plan.tree, launch.case.qo_indptr[b]
    single, acc = launch.threshold_single, launch.threshold_acc
    if how.thresholds == "swapped":
        single, acc = acc, single
    if how.thresholds == "ignored":
        single, acc = 1.0, 1.0
    if how.thresholds == "where 0":
        single, acc = single or 1.0, acc or 1.0
    path, last = [0], float(launch.last[b])
    while True:
        node = path[-1]
        law = _law(launch, plan, b, node, how)
        coin = _coin(launch, plan, b, node, how)
        children = tree.children(node)
        reached, taken = 0.0, None
        for child in children:
            share = law[tree.tokens[child]]
            reached += share
            # Halves of a quotient would be rounded: both sides are multiplied by the threshold.
            low = coin * acc <= reached if how.edge == "accepts" else coin * acc < reached
            if share > 0 and (low or share >= single):
                taken = child
                break
        if taken is not None:
            path.append(taken)
            continue
        if how.last == "refusing" and children:
            last = float(launch.coins[first + plan.rows[node]])
        refused = [tree.tokens[child] for child in children]
        token = _draw(_weights(launch, plan, b, path, law, refused, how), last, refused, how)
        rows = tuple(plan.rows[on] for on in path)
        return Walk(rows, len(rows), (*(tree.tokens[on] for on in path[1:]), token))


def _row(launch: Sampled, plan: Plan, b: int, node: int) -> int:
    return launch.case.qo_indptr[b] + plan.rows[node]


def _coin(launch: Sampled, plan: Plan, b: int, node: int, how: Drawing) -> float:
    row = _row(launch, plan, b, 0 if how.coin == "root" else node)
    shift = {"next row": 1, "row before": -1}.get(how.coin, 0)
    return float(launch.coins[(row + shift) % len(launch.coins)])


def _law(launch: Sampled, plan: Plan, b: int, node: int, how: Drawing) -> list[float]:
    children = plan.tree.children(node)
    if how.of_child and len(children) == 1:
        node = children[0]
    law: list[float] = launch.probs[_row(launch, plan, b, node)].tolist()
    if how.greedy:
        best = law.index(max(law))
        return [float(token == best) for token in range(len(law))]
    return [max(share, _NEXT_TO_NOTHING) for share in law] if how.edge == "nothing" else law


def _weights(
    launch: Sampled, plan: Plan, b: int, path: Sequence[int], law: list[float],
    refused: Sequence[int], how: Drawing,
) -> list[float]:  # fmt: skip
    if not refused and how.bonus != "own":
        whose = 0 if how.bonus == "root" or len(path) == 1 else path[-2]
        return _law(launch, plan, b, whose, how)
    gone = {"all": [], "all but the first": refused[:1]}.get(how.weights, refused)
    return [0.0 if token in gone else share for token, share in enumerate(law)]


def _draw(weights: Sequence[float], coin: float, refused: Sequence[int], how: Drawing) -> int:
    aim = coin if how.weights == "residual of 1" else coin * sum(weights)
    reached = 0.0
    for token, weight in enumerate(weights):
        reached += weight
        if reached > aim or (how.edge == "draws" and weight and 0 < aim == reached):
            return token
    return len(weights) - 1
