"""No reduced case is larger than the smallest known without a reason, and no reason outlives its need."""

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from treeproof.contract.failure import COLUMNS
from treeproof.contract.registry import load
from treeproof.faults.catalog import FAULTS, exactly
from treeproof.reports.kill_matrix import kill_lines, kill_markdown
from treeproof.scoring.asking import asking
from treeproof.scoring.kill import catches, kill
from treeproof.scoring.pairs import Pair
from treeproof.scoring.result import Kill, Size

MATRIX = Path(__file__).parents[1] / "ci" / "kill_matrix.md"
WEIGHTS = exactly("base-2-lse.weights")


def tokens(size: str) -> int:
    return sum(int(number) for number in re.findall(r"(\d+)(?=n|p)", size))


def sizes() -> dict[str, tuple[int, int]]:
    """Of each fault: how small it was reduced, and how small it is known."""
    found = {}
    for line in MATRIX.read_text("utf-8").split("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if line.startswith("| `"):
            found[cells[1].strip("`")] = (tokens(cells[9]), tokens(cells[10]))
    return found


def test_a_reason_stands_where_a_reduced_case_is_larger_and_nowhere_else() -> None:
    assert sizes().keys() == {fault.name for fault in FAULTS}
    larger = {name for name, (reduced, known) in sizes().items() if reduced > known}
    assert larger == {fault.name for fault in FAULTS if fault.larger}


@pytest.mark.parametrize(
    ("words", "count"), [("3n", 3), ("1n+2p", 3), ("3n+7pad in 2", 10), ("35n+4p+12pad", 51)]
)
def test_a_size_is_read_as_it_was_written(words: str, count: int) -> None:
    assert tokens(words) == count


def test_only_a_probe_of_parts_of_its_own_sees_a_wrong_merge_of_one_node() -> None:
    pair = Pair(WEIGHTS, "cascade")
    with asking(pair, WEIGHTS.into(load("cascade"))) as ask:
        for probe, seen in (("random", False), ("merge", True)):
            checked = ask(WEIGHTS.smallest, frozenset(COLUMNS), frozenset({probe}))
            assert (catches(WEIGHTS, checked, probe) is not None) == seen


@pytest.fixture(scope="module")
def killed() -> Kill:
    return kill(Pair(WEIGHTS, "cascade"))


def test_the_reason_stands_in_the_report_and_in_the_matrix(killed: Kill) -> None:
    assert (killed.reduced, killed.known) == (
        Size(requests=1, nodes=1, prefix=1, padding=0),
        Size(requests=1, nodes=1, prefix=0, padding=0),
    )
    said = "reduced to 1n+1p, and 1n is known to show it: one node shows it to the probe merge"
    assert said in kill_lines([killed], [WEIGHTS], (), {})[0].plain
    written = kill_markdown([killed], [WEIGHTS], (), {})
    assert "## Reduced to more than the smallest known: 1" in written
    assert f"| cascade | 1n+1p | 1n | {WEIGHTS.larger} |" in written


def test_a_difference_without_a_reason_stands_out(killed: Kill) -> None:
    unexplained = replace(WEIGHTS, larger="")
    assert kill_lines([killed], [unexplained], (), {})[0].plain.startswith("! base-2-lse.weights")
    assert "| **not explained** |" in kill_markdown([killed], [unexplained], (), {})


def test_no_section_is_written_where_there_is_no_difference(killed: Kill) -> None:
    small = msgspec.structs.replace(killed, reduced=killed.known)
    assert "Reduced to more" not in kill_markdown([small], [WEIGHTS], (), {})
    assert "is known to show it" not in kill_lines([small], [WEIGHTS], (), {})[0].plain
