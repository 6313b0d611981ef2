"""Help: quick, without heavy imports, and it teaches."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
from click.testing import CliRunner

from treeproof.cli import cli
from treeproof.generate.profiles import PROFILES

COMMANDS = tuple(sorted(cli.commands))


def test_the_commands_are_these() -> None:
    assert COMMANDS == (
        "backends",
        "check",
        "compare",
        "doctor",
        "faults",
        "fuzz",
        "init-backend",
        "merge",
        "reduce",
        "replay",
        "report",
        "schema",
        "show",
        "trace",
    )


def test_help_imports_neither_torch_nor_hypothesis() -> None:
    probe = (
        "import sys\n"
        "from treeproof.cli import main\n"
        "try:\n"
        "    main([{arguments}])\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0, end.code\n"
        "heavy = {{'torch', 'hypothesis', 'numpy', 'triton', 'rich'}} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    for arguments in ("'--help'", "'check', '--help'", "'--version'"):
        script = probe.format(arguments=arguments)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_help_takes_less_than_half_a_second() -> None:
    # Its own processor time: other tests on the same cores would stretch the time on the wall.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "treeproof", "--help"], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_shows_how_the_command_is_used(command: str) -> None:
    text = CliRunner().invoke(cli, [command, "--help"]).output
    assert f"\n  treeproof {command}" in text


def test_help_says_which_profiles_draw_their_seed_anew() -> None:
    text = " ".join(CliRunner().invoke(cli, ["check", "--help"]).output.split())
    assert "Default 0; nightly and soak draw one anew." in text
    seeds = {name: profile.fixed_seed for name, profile in PROFILES.items()}
    assert seeds == {"quick": 0, "ci": 0, "gpu": 0, "nightly": None, "soak": None}


@pytest.mark.parametrize("arguments", [["--help"], ["check", "--help"]])
def test_help_lists_the_exit_codes(arguments: list[str]) -> None:
    text = CliRunner().invoke(cli, arguments).output
    for code in (0, 1, 2, 3, 4, 130):
        assert f"\n  {code:>5}  " in text


def test_python_m_is_the_same_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "treeproof", "--version"], capture_output=True, text=True
    )
    assert done.stdout.startswith("treeproof, version ")
