"""What `treeproof faults` does: list, write as files, or plant and kill."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from treeproof.commands.asked import require_known
from treeproof.contract.failure import PROBES
from treeproof.contract.json_text import FileError
from treeproof.contract.registry import BackendError
from treeproof.engine.settings import cores
from treeproof.faults.catalog import FAULTS, RECORDS, named
from treeproof.faults.further import FURTHER
from treeproof.faults.out_of_reach import OUT_OF_REACH
from treeproof.reports.case_sheet import count
from treeproof.reports.confusion import diagnosis_lines
from treeproof.reports.console import open_console, prose, write
from treeproof.reports.kill_matrix import kill_lines, kill_markdown, kill_table
from treeproof.scoring.corpus import keep, read_corpus, replay
from treeproof.scoring.matrix import kill_all
from treeproof.scoring.pairs import SUBJECTS, Pair, pairs
from treeproof.scoring.planted_file import planted_file
from treeproof.scoring.result import Kill


def list_faults(names: tuple[str, ...]) -> int:
    """Every fault with its sources and the check that must see it."""
    lines: list[Text] = []
    for fault in named(names):
        head = f"{fault.name}  {fault.identity} ({fault.evidence})  {', '.join(fault.sources)}"
        lines += [prose(head, "bold"), prose(f"    {fault.says}")]
    if not names:
        lines += [Text(""), prose("out of reach", "bold")]
        lines += [prose(f"    {record}  {why}") for record, why in OUT_OF_REACH.items()]
    write(open_console(), lines)
    return 0


def write_files(names: tuple[str, ...], subjects: tuple[str, ...], folder: Path) -> int:
    """Each fault as a backend file, which `treeproof check` takes."""
    console = open_console()
    _writable_folder("--write", folder)
    for pair in _pairs(names, subjects, every_backend=bool(subjects)):
        write(console, [str(planted_file(pair.fault.name, pair.backend, folder))])
    return 0


def replay_corpus(folder: Path) -> int:
    """Each kept case must fail with its fault and pass without; 1 where one does not."""
    console = open_console()
    failed = 0
    kept = list(read_corpus(folder))
    for one in map(replay, kept):
        if not one.holds:
            failed += 1
            fault = one.kept.fault
            why = f"is not seen by {fault.identity} ({fault.evidence}) any more"
            if one.caught:
                why = f"fails without its fault: {one.false_alarms[0]}"
            write(console, [prose(f"✗ {one.kept.path} {why}", "bold red")])
    write(
        console,
        [f"{len(kept) - failed} of {len(kept)} kept cases fail with their fault and pass without"],
    )
    return int(failed > 0)


def score(
    names: tuple[str, ...],
    *,
    subjects: tuple[str, ...],
    every_backend: bool,
    no_reduce: bool,
    smallest_first: bool,
    without: tuple[str, ...],
    json_file: Path | None,
    markdown_file: Path | None,
    keep_in: Path | None,
    diagnosis: bool,
    workers: int | None,
) -> int:
    """Kill every pair and report; 1 where one survived or was seen only elsewhere."""
    console = open_console()
    probes = frozenset(PROBES) - set(without)
    chosen = _pairs(names, subjects, every_backend)
    if diagnosis and not names:
        chosen += pairs(FURTHER, subjects or SUBJECTS, every_backend=True)
    # Found out before minutes of work, and not after.
    for option, file in (("--json", json_file), ("--markdown", markdown_file)):
        if file is not None:
            _writable_file(option, file)
    if keep_in is not None:
        _writable_folder("--keep", keep_in)
    kills: list[Kill] = []

    def progress() -> Text:
        last = f"  {kills[-1].fault} in {kills[-1].backend}" if kills else "  starting"
        alive = sum(kill.status != "killed" for kill in kills)
        return Text(f"{len(kills)} of {len(chosen)} pairs, {alive} not killed{last}", no_wrap=True)

    def note(found: Kill) -> None:
        kills.append(found)
        if not console.is_terminal:  # what is found is not lost where the run is cut short
            write(console, [_plain_line(found)])

    live = Live(get_renderable=progress, console=console, transient=True)
    with live if console.is_terminal else nullcontext():
        kill_all(
            chosen,
            workers or cores(),
            reduced=not no_reduce,
            diagnosed=diagnosis,
            probes=probes,
            smallest_first=smallest_first,
            on_kill=note,
        )
    place = {(pair.fault.name, pair.backend): i for i, pair in enumerate(chosen)}
    kills.sort(key=lambda kill: place[kill.fault, kill.backend])
    own = {fault.name for fault in FURTHER}
    planted = [kill for kill in kills if kill.fault not in own]
    _report(console, planted, json_file, markdown_file)
    if diagnosis:
        write(console, [Text(""), *diagnosis_lines("planted faults", planted)])
        apart = [kill for kill in kills if kill.fault in own]
        if apart:
            words = "further defects, written without knowledge of the hypotheses"
            write(console, [Text(""), *diagnosis_lines(words, apart)])
    if keep_in is not None:
        for kill in kills:
            if kill.status == "killed":
                keep(kill, keep_in)
    return int(any(kill.status != "killed" for kill in kills))


def _writable_folder(option: str, folder: Path) -> None:
    """Make it. Raises FileError naming the option where nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FileError(f"{option} {folder}: {error.strerror or error}") from error


def _writable_file(option: str, file: Path) -> None:
    """Raises FileError naming the option where it cannot be written; what it holds is kept."""
    try:
        with file.open("ab"):
            pass
    except OSError as error:
        raise FileError(f"{option} {file}: {error.strerror or error}") from error


def _pairs(names: tuple[str, ...], subjects: tuple[str, ...], every_backend: bool) -> list[Pair]:
    require_known(subjects)
    found = pairs(named(names), subjects or SUBJECTS, every_backend=every_backend)
    if not found:
        where = ", ".join(subjects or SUBJECTS)
        raise BackendError(f"{', '.join(names) or 'no fault'} can be planted into none of {where}")
    return found


def _report(
    console: Console, kills: Sequence[Kill], json_file: Path | None, markdown_file: Path | None
) -> None:
    if console.is_terminal:
        console.print(kill_table(kills))
    write(console, [Text(""), *kill_lines(kills, FAULTS, RECORDS, OUT_OF_REACH)])
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(kills)) + b"\n")
    if markdown_file is not None:
        markdown_file.write_text(kill_markdown(kills, FAULTS, RECORDS, OUT_OF_REACH), "utf-8")


def _plain_line(kill: Kill) -> Text:
    """One pair, for a pipe: whole, however long."""
    smallest = f", smallest {kill.reduced}, known {kill.known}" if kill.reduced else ""
    return Text(
        f"{kill.status:<9} {kill.fault}  {kill.backend}  {kill.identity} ({kill.evidence})  "
        f"{count(kill.cases, 'case')}, {kill.seconds:.2f} s{smallest}",
        no_wrap=True,
    )
