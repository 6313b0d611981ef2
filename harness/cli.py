"""The command line. Nothing here imports torch before a command needs it."""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click

import treeproof
from treeproof.commands.adapter_text import READS
from treeproof.commands.asked import backend_for, read_case, require_known, require_row
from treeproof.commands.interrupt import interruptible
from treeproof.commands.leave_reports import leave_reports
from treeproof.commands.options import run_options, settings_from, soak_settings
from treeproof.config import ConfigError
from treeproof.contract.failure import PROBES
from treeproof.contract.registry import BackendError, BackendUnavailable, entry_points, load
from treeproof.contract.wire import FileError
from treeproof.engine.settings import SettingsError

BUILT_IN = ("direct-mask", "cascade", "page-table", "swa-window", "topology")
CLEAN, VIOLATED, USAGE, OWN_FAULT, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 4, 130, 141

EXIT_CODES = """\b
Exit codes:
    0  clean
    1  identities violated
    2  usage or environment: a wrong option, file, backend name or package
    3  a backend or identity that was asked for has no completed check, or nothing ran
    4  treeproof itself failed
  130  interrupted; what was found until then is kept and reported
"""


CASE_FILE = click.argument("case_file", metavar="CASE.json", type=click.Path(path_type=Path))
BACKEND = click.option("--backend", metavar="NAME|FILE", help="The backend to check the case on.")


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


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command line and leave with its exit code."""
    try:
        code = cli.main(arguments, prog_name="treeproof", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (ConfigError, SettingsError, BackendError, BackendUnavailable, FileError) as error:
        click.echo(f"Error: {error}", err=True)
        code = USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        code = INTERRUPTED
    except BrokenPipeError:  # `treeproof show … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = BROKEN_PIPE
    except Exception:
        traceback.print_exc()
        click.echo(
            f"\ntreeproof {treeproof.__version__} itself failed; this says nothing about a backend."
            "\nPlease report the lines above, the command line and the output of "
            "`treeproof doctor`\nwhere treeproof is developed.",
            err=True,
        )
        code = OWN_FAULT
    sys.exit(code or CLEAN)


@cli.command(epilog=EXIT_CODES)
@click.argument("targets", nargs=-1, metavar="[BACKEND|FILE]...")
@run_options()
def check(targets: tuple[str, ...], **options: Any) -> int:
    """Check backends against the five identities.

    BACKEND is a name (`treeproof backends` lists them), module:name, or a file that registers one:
    path/to/file.py or path/to/file.py:name. Without any, the five built-in backends are checked.

    \b
    treeproof check
    treeproof check cascade my_kernel.py --seed 7
    treeproof check --trees shapes.json --prefix 0 --prefix 4096
    treeproof check my_kernel.py --identity visibility --profile nightly --time 30m
    treeproof check my_kernel.py --in-process -x        then put a breakpoint into it

    The same seed draws the same cases, whatever the number of workers. Settings may stand in
    [tool.treeproof] of pyproject.toml under the names of the options; an option wins over it.
    """
    settings = settings_from(options, targets, BUILT_IN)
    require_known(settings.backends)
    from treeproof.engine.runner import run
    from treeproof.reports.console import open_console
    from treeproof.reports.progress import Progress
    from treeproof.reports.terminal import report

    console = open_console()
    with interruptible(), Progress(console) as progress:
        found = run(settings, progress)
    report(console, found)
    leave_reports([found], settings.report_dir, settings.junit)
    return found.exit_code


@cli.command(epilog=EXIT_CODES)
@click.argument("targets", nargs=-1, metavar="[BACKEND|FILE]...")
@run_options(
    "backend", "identity", "time", "profile", "dtype", "seed", "device", "ledger", "run-dir",
    "workers", "launch-timeout", "fail-fast", "reduce",
)  # fmt: skip
def fuzz(targets: tuple[str, ...], **options: Any) -> int:
    """Draw new cases until the time is over.

    As check, for as long as you like: 30 minutes unless --time says otherwise, with the profile soak
    (trees of up to 129 rows, prefixes of up to 4,096 keys, all dtypes) unless --profile does. Each
    run draws other cases; the seed is printed, and the same seed draws the same cases again.
    Failures are reduced and kept as those of check are, and replayed first in the next run; of
    cases that pass, only the counts are kept. Profile, seed and time of [tool.treeproof] are for
    check alone.

    \b
    treeproof fuzz --time 30m
    treeproof fuzz my_kernel.py --time 8h -x -n 16
    treeproof fuzz my_kernel.py --profile nightly --device cuda --dtype bfloat16 --time 1h
    """
    settings = soak_settings(options, targets, BUILT_IN)
    require_known(settings.backends)
    from treeproof.engine.runner import run
    from treeproof.reports.console import open_console
    from treeproof.reports.progress import Progress
    from treeproof.reports.terminal import report

    console = open_console()
    console.print(f"seed {settings.seed}, profile {settings.profile}", soft_wrap=True)
    with interruptible(), Progress(console, every=60.0) as progress:
        found = run(settings, progress)
    report(console, found)
    leave_reports([found], settings.report_dir, settings.junit)
    return found.exit_code


@cli.command()
@CASE_FILE
@BACKEND
@run_options("device", "launch-timeout")
def replay(case_file: Path, backend: str | None, device: str | None, **options: Any) -> int:
    """Run a failure again: FIXED or FAILED?

    Exit code 0: fixed; 1: it fails still; 2: ERROR, it could not be found out. A case file never
    makes code be imported, so a backend that is a file is given with --backend. It runs on the
    device that it failed on, unless another is given.

    \b
    treeproof replay .treeproof/runs/RUN/failures/cascade-kv-stray-write.json
    treeproof replay failure.json --backend my_kernel.py
    treeproof replay failure.json --backend my_kernel.py --in-process
    """
    _, reproducer = read_case(case_file)
    reference = backend_for(case_file, reproducer, backend)
    if reproducer is None:
        raise FileError(f"{case_file} is a plain case with no failure to replay: try reduce")
    settings = settings_from({**options, "device": device}, (reference,))
    from treeproof.engine import replay as engine
    from treeproof.reports.console import open_console, write
    from treeproof.reports.replayed import replay_lines

    done = engine.replay(
        reproducer,
        reference,
        device=settings.device if device else None,
        launch_timeout=settings.launch_timeout,
        in_process=settings.workers == 0,
    )
    words = ["treeproof", "replay", str(case_file), *(["--backend", backend] if backend else [])]
    write(open_console(), replay_lines(done, reproducer, shlex.join(words)))
    return {"FIXED": CLEAN, "FAILED": VIOLATED}.get(done.outcome, USAGE)


@cli.command()
@CASE_FILE
@BACKEND
@run_options("device", "launch-timeout", "run-dir", "workers")
def reduce(case_file: Path, backend: str | None, device: str | None, **options: Any) -> int:
    """Find the smallest case that fails alike.

    Writes a reproducer for each distinct failure of the case and prints how to replay it. Exit
    code 0: nothing fails; 1: something does.

    \b
    treeproof reduce .treeproof/runs/RUN/cases/CASE.json --backend my_kernel.py
    treeproof reduce failure.json
    """
    case, reproducer = read_case(case_file)
    reference = backend_for(case_file, reproducer, backend)
    settings = settings_from({**options, "device": device}, (reference,))
    if reproducer is not None and device is None:
        settings = replace(settings, device=reproducer.device)
    from treeproof.engine.runner import run
    from treeproof.reports.console import open_console, write
    from treeproof.reports.progress import Progress
    from treeproof.reports.replayed import reduction_lines

    console = open_console()
    with interruptible(), Progress(console) as progress:
        found = run(replace(settings, reduce=True, store=None, ledger=None), progress, cases=[case])
    write(console, reduction_lines(found))
    return found.exit_code


@cli.command()
@CASE_FILE
def show(case_file: Path) -> int:
    """Draw a case: trees, rows, layout and keys.

    \b
    treeproof show .treeproof/runs/RUN/cases/CASE.json
    treeproof show case.json | less
    """
    from treeproof.reports.case_sheet import case_lines
    from treeproof.reports.console import open_console, write

    case, reproducer = read_case(case_file)
    head = [] if reproducer is None else [f"{reproducer.backend}: {reproducer.message}", ""]
    write(open_console(), [*head, *case_lines(case)])
    return CLEAN


@cli.command()
@CASE_FILE
@click.option("--request", type=int, default=0, show_default=True, help="Request of the batch.")
@click.option("--row", type=int, required=True, help="Verify row within the request.")
@BACKEND
@run_options("device", "launch-timeout")
def trace(case_file: Path, request: int, row: int, backend: str | None, **options: Any) -> int:
    """Follow one row through the stages.

    Its token, position, visible keys, links and slot, as they must be.
    With --backend, what its check recovered or declared stands beside. It runs on the device that
    a failure was found on, unless another is given.

    \b
    treeproof trace case.json --row 2
    treeproof trace case.json --request 1 --row 5 --backend my_kernel.py
    """
    from treeproof.reports.console import open_console, write
    from treeproof.reports.trace import trace_lines

    case, reproducer = read_case(case_file)
    require_row(case, request, row)
    checked = None
    if backend is not None:
        require_known((backend,))
        settings = settings_from(options, (backend,))
        from treeproof.engine.alone import check_alone

        found_on = reproducer.device if reproducer is not None else settings.device
        checked = check_alone(
            case,
            backend,
            device=settings.device if options["device"] else found_on,
            launch_timeout=settings.launch_timeout,
            in_process=settings.workers == 0,
        )
    write(open_console(), trace_lines(case, request, row, checked))
    return CLEAN


PATH = click.Path(path_type=Path)


@cli.command()
@click.argument("names", nargs=-1, metavar="[FAULT|RECORD]...")
@click.option("--list", "listed", is_flag=True, help="List the faults and what is out of reach.")
@click.option("--backend", "subjects", metavar="NAME", multiple=True, help="Plant into this one.")
@click.option("--every-backend", is_flag=True, help="Plant each fault wherever it can be planted.")
@click.option("--no-reduce", is_flag=True, help="Do not look for the smallest cases.")
@click.option(
    "--smallest-first", is_flag=True, help="Begin with the smallest case known to show the fault."
)
@click.option(
    "--without",
    metavar="PROBE",
    multiple=True,
    type=click.Choice(PROBES),
    help="Leave a probe out.",
)
@click.option("--json", "json_file", type=PATH, help="Write the results here.")
@click.option("--markdown", "markdown_file", type=PATH, help="Write the matrix here.")
@click.option("--keep", "keep_in", type=PATH, help="Keep the smallest cases in this folder.")
@click.option("--diagnosis", is_flag=True, help="Score the causes named, further defects apart.")
@click.option("--corpus", type=PATH, help="Replay the cases kept in this folder, and nothing else.")
@click.option("--write", "folder", type=PATH, help="Write backends with a fault into this folder.")
@click.option("-n", "--workers", type=click.IntRange(1, 512), help="Processes; default one a core.")
def faults(
    names: tuple[str, ...], listed: bool, corpus: Path | None, folder: Path | None, **options: Any
) -> int:
    """Prove that the harness can fail.

    Plants faults taken from real reports into the built-in backends and says which check killed
    each, after how many drawn cases, and on how small a case. A fault that survives, or that only
    the wrong identity sees, is a hole in the harness: exit code 1.

    \b
    treeproof faults                              each fault in one backend
    treeproof faults --every-backend              in all that can have it
    treeproof faults window-by-row B031           some of them
    treeproof faults --without spike              what does this probe alone see?
    treeproof faults --diagnosis                  is the cause named right?
    treeproof faults --corpus FOLDER              are the kept cases as they were?
    treeproof faults window-by-row --write .      as a file: treeproof check FILE
    """
    from treeproof.commands.faults import list_faults, replay_corpus, score, write_files

    if listed:
        return list_faults(names)
    if corpus is not None:
        return replay_corpus(corpus)
    if folder is not None:
        return write_files(names, options["subjects"], folder)
    return score(names, **options)


@cli.command()
@click.argument("folders", nargs=-1, required=True, metavar="RUN...", type=PATH)
@click.option("-o", "--output", type=PATH, default=Path("report.html"), help="Default report.html.")
def report(folders: tuple[Path, ...], output: Path) -> int:
    """Write a run as one HTML page.

    RUN is a run folder, as check prints it. The page opens from disk, without a network; several runs
    make one page. Exit code 0: written, whatever the run found; 2: no run could be read.

    \b
    treeproof report .treeproof/runs/RUN
    treeproof report nightly/* -o nightly.html
    """
    from treeproof.engine.summary import Run
    from treeproof.reports.files import write_report
    from treeproof.reports.page.facts import page_of
    from treeproof.reports.page.render import render

    size = write_report(output, render(page_of([Run.read(folder) for folder in folders])))
    click.echo(f"wrote {output} ({size / 1e3:,.0f} kB)")
    return CLEAN


@cli.command()
@click.argument("before", metavar="A", type=PATH)
@click.argument("after", metavar="B", type=PATH)
def compare(before: Path, after: Path) -> int:
    """Say what changed from run A to run B.

    New failures, those that are still there, those that are gone, and margins that moved: is the new
    version of a kernel library right where the old one was? Two runs tell most where they drew the
    same cases (one seed, one profile); what differs besides is printed first. Exit code 1: B has a
    failure that A has not; 0: it has none.

    \b
    treeproof check fa3-page-table --seed 7 --run-dir old      before the upgrade
    treeproof check fa3-page-table --seed 7 --run-dir new      after it
    treeproof compare old new
    """
    from treeproof.engine.summary import Run
    from treeproof.reports.comparison import compare as compared
    from treeproof.reports.comparison_lines import comparison_lines
    from treeproof.reports.console import open_console, write

    found = compared(Run.read(before), Run.read(after))
    write(open_console(), comparison_lines(found))
    return VIOLATED if found.new else CLEAN


@cli.command("init-backend")
@click.argument("name")
@click.option("--folder", type=PATH, default=Path(), help="Where to write; default here.")
@click.option(
    "--reads",
    type=click.Choice(tuple(READS)),
    default=next(iter(READS)),
    help="How the kernel is told the tree; default mask.",
)
def init_backend(name: str, folder: Path, reads: str) -> int:
    """Write an adapter for your own kernel.

    NAME is what reports call it: a-z, 0-9, '.', '_' and '-'. Three files are written, and none over
    a file that is there: the adapter, its pytest test, and a GitHub workflow for a GPU runner. Until
    your kernel's call is put in, the adapter computes in plain torch, so all of it runs at once.

    \b
    treeproof init-backend my-kernel                      writes my_kernel.py, test_my_kernel.py
    treeproof init-backend my-kernel --reads page-table
    treeproof init-backend my-kernel --folder tests/kernels

    \b
    --reads mask         a flat mask of each row over prefix and tree, and lists of slots
    --reads page-table   a page table of each prefix, and a mask among the rows of its tree
    --reads row-lists    one list of slots a row: its prefix, its ancestors, itself
    """
    from treeproof.commands.init_backend import init_backend as write_files
    from treeproof.reports.console import command, open_console, write

    done = write_files(name, folder, reads)
    adapter, test = shlex.quote(str(done.adapter)), shlex.quote(str(done.test))
    write(
        open_console(),
        [
            f"wrote {done.adapter}: call your kernel at ①, and say at ② to ④ what it does",
            f"wrote {done.test}",
            f"wrote {done.workflow}: name your runner in it; it runs",
            command(f"      {done.gate}"),
            "",
            "It holds a stand-in until your kernel is in, so both of these pass now:",
            command(f"treeproof check {adapter}"),
            command(f"pytest {test}"),
        ],
    )
    return CLEAN


@cli.command()
def backends() -> int:
    """List backends and what they take.

    What cannot run here is listed with the reason and what to install.

    \b
    treeproof backends
    """
    from treeproof.reports.backends_table import backend_lines, entries
    from treeproof.reports.console import open_console, write

    write(open_console(), backend_lines(entries(entry_points(), load)))
    return CLEAN


@cli.command()
def doctor() -> int:
    """Say whether this machine is ready, and what to do.

    \b
    treeproof doctor

    Exit code 0: it can; 2: it cannot.
    """
    from treeproof.commands.doctor import examine
    from treeproof.reports.console import open_console, prose, write

    found = examine(Path.cwd())
    lines = []
    for finding in found:
        mark = "ok" if finding.ok else "NO"
        lines.append(prose(f"{mark}  {finding.name:<10}  {finding.found}"))
        lines += [prose(f"{'':16}{finding.advice}")] if finding.advice else []
    write(open_console(), lines)
    return CLEAN if all(finding.ok for finding in found) else USAGE


@cli.command()
def schema() -> int:
    """Print the JSON Schema of case files.

    \b
    treeproof schema > treeproof.schema.json
    """
    import json

    from treeproof.contract.wire import json_schema
    from treeproof.reports.console import command, open_console, write

    write(open_console(), map(command, json.dumps(json_schema(), indent=2).splitlines()))
    return CLEAN
