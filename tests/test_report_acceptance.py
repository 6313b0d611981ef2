"""Drafts accepted by depth: counted in checks, and shown beside what the oracle expects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from report_runs import checked as judged
from report_runs import run_of, star

from treeproof.contract.backend import Backend
from treeproof.contract.case import VerifyCase
from treeproof.contract.event import MOST_DEPTHS, Acceptance, Checked
from treeproof.contract.inputs import Accepted
from treeproof.contract.registry import load
from treeproof.contract.script import Admit, Prefill, Round, Turn
from treeproof.engine.accepted import counted, once, together
from treeproof.engine.check import CheckOptions, check_case
from treeproof.faults.catalog import exactly
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import case, request, script
from treeproof.reports.acceptance import acceptance_lines, share_shown
from treeproof.reports.page.facts import page_of
from treeproof.reports.page.render import render


def ways(backend: Backend, probe: str, of: VerifyCase | None = None) -> dict[str, Acceptance]:
    of = of or case(request((-1, 0, 1)))
    result = check_case(of, backend, CheckOptions(probes=frozenset({probe})))
    return {one.way: one for one in result.acceptance}


def test_walks_are_counted_at_every_depth_that_they_reach() -> None:
    found = counted("greedy", once([2, 0, 1]), [(1, 0.5), (0, 0.25), (2, 0.25)])
    assert found.expected == (3, 2, 1)
    assert found.observed == (1, 0.75, 0.25)
    assert together(None, found) == found
    both = together(found, counted("greedy", once([0]), once([3])))
    assert (both.expected, both.observed) == ((4, 2, 1), (2, 1.75, 1.25, 1))


def test_what_a_wrong_backend_says_to_have_accepted_is_cut_off() -> None:
    found = counted("greedy", once([1]), once([-7, 10**9]))
    assert found.observed == (2, *[1] * MOST_DEPTHS)


def stays_at_the_root(right: Any, x: Any, predicted: Any) -> Accepted:
    done: Accepted = right(x, predicted)
    index, tokens = done.accept_index.clone(), done.tokens.clone()
    index[:, 1:] = tokens[:, 1:] = -1
    return Accepted(index, done.accept_len.clamp(max=1), tokens)


def test_greedy_walks_down_a_chain_and_as_far_as_the_target_goes() -> None:
    """One walk, down to the leaf."""
    right = ways(load("topology"), "walk")["greedy"]
    assert right.expected == right.observed
    assert (right.expected[0], right.expected[2]) == (1, 1)
    wrong = ways(wrapped(load("topology"), "accept", stays_at_the_root), "walk")["greedy"]
    assert (wrong.expected, wrong.observed) == (right.expected, (1,))


def test_given_coins_lead_as_deep_as_the_oracle_goes_with_them() -> None:
    right = ways(load("topology"), "sample")["sampled"]
    assert right.expected == right.observed
    wrong = ways(exactly("silently-greedy").plant(load("topology")), "sample")["sampled"]
    assert wrong.expected == right.expected
    assert wrong.observed != right.expected


def test_over_all_coins_a_draft_is_accepted_as_often_as_its_probability_says() -> None:
    """Of 4 requests on a root, 16 with a draft of probability 1/2, and 16 with two of 3/4 together."""
    (found,) = ways(load("topology"), "law").values()
    assert found == Acceptance(way="law", expected=(36, 20), observed=(36, 20))


def test_what_the_reference_accepts_is_no_figure_of_a_backend() -> None:
    assert ways(load("direct-mask"), "sample") == {}
    assert set(ways(load("direct-mask"), "walk")) == {"greedy"}


def test_rounds_of_a_script_tell_how_deep_they_went() -> None:
    steps = (
        Admit(request=0),
        Prefill(request=0, tokens=8),
        Round(turns=(Turn(request=0, accept=2),)),
        Round(turns=(Turn(request=0, accept=0),)),
    )
    of = script(request((-1, 0, 1), 3), steps=steps)
    (found,) = ways(load("topology"), "rounds", of=of).values()
    assert found == Acceptance(way="rounds", expected=(2, 1, 1), observed=(2, 1, 1))


def events(name: str, *found: Acceptance) -> tuple[VerifyCase, Checked]:
    of = star(len(name))
    return of, msgspec.structs.replace(judged(of, name), acceptance=found)


def greedy(*observed: float) -> Acceptance:
    return Acceptance(way="greedy", expected=(200, 100, 1), observed=observed)


def test_backends_that_accept_as_the_oracle_share_a_line_and_others_have_one_each(
    tmp_path: Path,
) -> None:
    law = Acceptance(way="law", expected=(8, 4), observed=(8, 4.0000000001))
    found = [
        events("a", greedy(200, 100, 1), law),
        events("bb", greedy(200, 100, 1)),
        events("ccc", greedy(200, 50)),
    ]
    run = run_of(tmp_path, found, backends=("a", "bb", "ccc"))
    assert acceptance_lines(run) == [
        "accepted greedy, 2 backends: 400 walks, 50 0.5 % to depth 1 and on, as the oracle",
        "         greedy, ccc: 200 walks, 25 0 % to depth 1 and on, the oracle 50 0.5 %",
        "         law, a: 8 walks, 50 % to depth 1 and on, as the oracle",
    ]
    page = re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", render(page_of([run]))))
    assert "greedy, ccc 200 25 % due 50 % 0 % due 0.5 %" in page
    assert "greedy, 2 backends 400 50 % 0.5 %" in page


def test_a_run_without_walks_says_nothing_of_them(tmp_path: Path) -> None:
    run = run_of(tmp_path, [events("a")], backends=("a",))
    assert acceptance_lines(run) == []
    assert "Drafts accepted" not in render(page_of([run]))


def test_events_of_an_earlier_release_are_read() -> None:
    old = b'{"type":"checked","case":"c","backend":"b","cells":[]}'
    assert msgspec.json.decode(old, type=Checked).acceptance == ()


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0"), (0.001, "0.1"), (0.0049, "0.49"), (0.5, "50"), (1.0, "100")]
)
def test_a_share_is_shown_in_whole_per_cent_but_for_the_rarest(share: float, text: str) -> None:
    assert share_shown(share) == text
