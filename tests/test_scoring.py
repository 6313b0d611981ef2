"""The harness scored against its own faults: kills, survivors, and faults that the wrong check sees."""

import subprocess
import sys
from dataclasses import replace

import msgspec
import pytest

from treeproof.contract.registry import load
from treeproof.engine.check import CheckOptions, check_case
from treeproof.faults.catalog import named
from treeproof.faults.plant import wrapped
from treeproof.reports.kill_matrix import kill_lines, kill_markdown
from treeproof.scoring.asking import asking
from treeproof.scoring.kill import kill, search
from treeproof.scoring.pairs import Pair, pairs
from treeproof.scoring.planted_file import planted_file

BY_ROW = next(fault for fault in named(("window-by-row",)) if fault.applies(load("direct-mask")))


def harmless(backend):
    return wrapped(backend, "attend", lambda right, *arguments: right(*arguments))


def hanging(backend):
    def hang(right, *arguments):
        while True:
            pass

    return wrapped(backend, "accept", hang)


def looked_for(fault):
    """What came of the fault on one case, not reduced."""
    pair = Pair(fault, "direct-mask")
    with asking(pair, fault.into(load("direct-mask"))) as ask:
        return search(pair, ask, [BY_ROW.smallest], reduced=False)


def lines_of(kills):
    return "\n".join(line.plain for line in kill_lines(kills, [BY_ROW], ("B031",), {}))


def test_a_planted_fault_is_killed_and_reduced_to_what_is_known():
    found = kill(Pair(BY_ROW, "direct-mask"))
    assert found.status == "killed"
    assert "visibility (measured)" in found.seen
    assert (found.reduced.nodes, found.reduced.prefix, found.reduced.requests) == (3, 0, 1)
    assert found.minimal
    checked = check_case(found.case, BY_ROW.into(load("direct-mask")), CheckOptions())
    assert any(failure.identity == "visibility" for failure in checked.failures)


def test_a_fault_that_changes_nothing_survives_and_is_named():
    nothing = replace(BY_ROW, plant=harmless)
    found = looked_for(nothing)
    assert (found.status, found.seen, found.cases) == ("survived", (), 1)
    assert f"✗ {BY_ROW.name} in direct-mask survived 1 case" in lines_of([found])


def test_a_fault_that_only_other_checks_see_counts_as_missed():
    elsewhere = replace(BY_ROW, identity="candidate", evidence="declared")
    found = looked_for(elsewhere)
    assert found.status == "elsewhere"
    assert "visibility (measured)" in found.seen
    assert "is for candidate (declared) to see, and only" in lines_of([found])


def test_a_fault_that_hangs_is_killed_in_a_worker(monkeypatch):
    from treeproof.scoring import asking as module

    hang = replace(
        BY_ROW, family="hang", plant=hanging, identity="contract", stage="accept", fatal=True
    )
    monkeypatch.setattr(module, "LAUNCH_SECONDS", 1.0)
    monkeypatch.setattr(module, "planted_file", hanging_file)
    found = looked_for(hang)
    assert found.status == "killed"
    assert "accept" in found.message


def hanging_file(fault, backend, folder):
    path = folder / "hang.py"
    path.write_text(
        "from dataclasses import replace\n"
        "from treeproof.contract.registry import load, register_backend\n"
        "right = load('direct-mask')\n"
        "def make():\n"
        "    instance = right.make()\n"
        "    def accept(*arguments):\n"
        "        while True: pass\n"
        "    instance.accept = accept\n"
        "    return instance\n"
        "register_backend(replace(right, name='hanging', make=make))\n"
    )
    return path


def test_a_faulty_backend_can_be_written_as_a_file_and_loaded(tmp_path):
    path = planted_file(BY_ROW.name, "direct-mask", tmp_path)
    loaded = load(str(path))
    assert loaded.name == f"direct-mask.{BY_ROW.name}"
    assert check_case(BY_ROW.smallest, loaded, CheckOptions()).failures


def test_each_fault_goes_to_one_backend_or_to_all_that_can_have_it():
    every = pairs([BY_ROW], every_backend=True)
    assert pairs([BY_ROW])[0] in every
    assert all(pair.fault.applies(load(pair.backend)) for pair in every)


def test_the_markdown_says_nothing_about_the_machine():
    found = kill(Pair(BY_ROW, "direct-mask"), reduced=False)
    slower = msgspec.structs.replace(found, seconds=99.0, reduction_seconds=99.0)
    assert kill_markdown([found], [BY_ROW], ("B031",), {}) == kill_markdown(
        [slower], [BY_ROW], ("B031",), {}
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["faults", "window-by-rows"],
            2,
            "no fault named 'window-by-rows'; near it: window-by-row",
        ),
        (["faults", "--backend", "cascades", "B031"], 2, "no backend named 'cascades'"),
        (["faults", "B031", "--list"], 0, "window-by-row"),
    ],
)
def test_the_command_names_what_it_does_not_know(arguments, code, words):
    done = subprocess.run(
        [sys.executable, "-m", "treeproof", *arguments], capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    assert words in done.stdout + done.stderr
