"""How long a stage may take: a kernel's time is the user's to set, what is not the kernel's is not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.tree import CandidateTree
from treeproof.engine.watchdog import PATIENCE, heaviness, seconds_for


@pytest.mark.parametrize("stage", ["plan", "build", "attend", "accept", "commit", "close"])
def test_a_stage_of_the_backend_has_the_time_that_was_set(stage: str) -> None:
    assert seconds_for(stage, 2.0) == 2.0
    assert seconds_for(stage, 900.0) == 900.0


@pytest.mark.parametrize("stage", ["load", "oracle"])
def test_importing_packages_and_the_oracle_are_never_called_a_hang_for_a_short_limit(
    stage: str,
) -> None:
    assert seconds_for(stage, 2.0) == PATIENCE
    assert seconds_for(stage, 900.0) == 900.0


def test_a_launch_of_much_work_has_more_time_and_an_ordinary_one_what_was_set() -> None:
    def of(rows: int, prefix: int, requests: int = 1) -> VerifyCase:
        tree = CandidateTree(tuple(range(rows)), tuple(range(-1, rows - 1)))
        one = Request(tree=tree, row_of_node=tuple(range(rows)), prefix_len=prefix)
        return VerifyCase(
            requests=(one,) * requests,
            shape=AttentionShape(num_q_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128),
            layout=KVLayout(page_size=16, num_slots=1 << 24),
        )

    # 100 rows of 100,000 keys, 32 heads of 256 multiply-adds a key: 8.2e10.
    assert heaviness(of(100, 99_900), "cpu") == pytest.approx(8.192)
    assert heaviness(of(100, 99_900), "cuda") == 1.0
    assert heaviness(of(60, 4_000, requests=128), "cuda") == 1.0
    assert heaviness(of(8, 1_000), "cpu") == 1.0


PROGRAM = """
import sys, time
from pathlib import Path
from treeproof.engine.watchdog import watchdog
with watchdog(0.3, Path(sys.argv[1])) as watch:
    watch.arm(sys.argv[2])
    time.sleep(1.2)
print("came to its end")
"""


@pytest.mark.parametrize(("stage", "ends"), [("attend", True), ("oracle", False)])
def test_the_watch_ends_a_process_in_a_backends_stage_only(
    tmp_path: object, stage: str, ends: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"{tmp_path}/trace", stage],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode != 0) is ends
    assert ("came to its end" in done.stdout) is not ends
