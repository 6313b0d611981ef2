"""The command line. Nothing here imports torch before a command needs it."""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

import treeproof
from treeproof.commands.backends import backends
from treeproof.commands.check import check
from treeproof.commands.compare import compare
from treeproof.commands.doctor import doctor
from treeproof.commands.exit_codes import (
    BROKEN_PIPE,
    CLEAN,
    EXIT_CODES,
    INTERRUPTED,
    OWN_FAULT,
    USAGE,
    leave,
)
from treeproof.commands.faults import faults
from treeproof.commands.fuzz import fuzz
from treeproof.commands.init_backend import init_backend
from treeproof.commands.merge import merge
from treeproof.commands.reduce import reduce
from treeproof.commands.replay import replay
from treeproof.commands.report import report
from treeproof.commands.schema import schema
from treeproof.commands.show import show
from treeproof.commands.trace import trace
from treeproof.config import ConfigError
from treeproof.contract.registry import BackendError, BackendUnavailable
from treeproof.contract.wire import FileError
from treeproof.engine.settings import SettingsError


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(treeproof.__version__, "-V", "--version", prog_name="treeproof")
def cli() -> None:
    """Is your tree attention right?

    treeproof draws trees of draft tokens, prefixes, batches and memory layouts, runs every
    root-to-node path alone as the truth, and holds each backend to five identities: candidate,
    position, visibility, traversal and KV. What fails comes back as the smallest tree that shows it,
    with one line that replays it.

    \b
    treeproof check                       the five built-in backends
    treeproof init-backend my-kernel      an adapter for a kernel of your own
    treeproof check my_kernel.py          is it right?
    treeproof check --trees shapes.json   the tree shapes that you serve
    treeproof fuzz --time 30m             new cases until the time is over
    treeproof replay CASE.json            is it fixed?
    """


for command in (
    check, fuzz, replay, reduce, show, trace, report, compare, merge, faults, init_backend, backends, doctor,
    schema,
):  # fmt: skip
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command line and leave with its exit code, whether or not its words could be written.

    Python leaves with 1 after an error, which means `identities violated` here, and with 120 where it
    cannot flush at its end.
    """
    code = OWN_FAULT
    try:
        code, words = _outcome(arguments)
        click.echo(words, err=True, nl=False)
    finally:
        leave(code)


def _outcome(arguments: Sequence[str] | None) -> tuple[int, str]:
    """The exit code of a command line, and what is to be said of it on stderr."""
    try:
        code = cli.main(arguments, prog_name="treeproof", standalone_mode=False)
        if sys.stdout is not None:  # None: closed by whoever called
            sys.stdout.flush()
    except click.ClickException as error:
        told = io.StringIO()
        error.show(told)
        return error.exit_code, told.getvalue()
    except (ConfigError, SettingsError, BackendError, BackendUnavailable, FileError) as error:
        return USAGE, f"Error: {error}\n"
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED, "interrupted\n"
    except BrokenPipeError:  # `treeproof show … | head`
        return BROKEN_PIPE, ""
    except BaseException:  # a SystemExit of somebody else's, too: its code is none of ours
        return OWN_FAULT, (
            f"{traceback.format_exc()}"
            f"\ntreeproof {treeproof.__version__} itself failed; this says nothing about a backend."
            "\nPlease report the lines above, the command line and the output of "
            "`treeproof doctor`\nwhere treeproof is developed.\n"
        )
    return code or CLEAN, ""
