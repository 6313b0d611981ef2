"""`treeproof init-backend`: an adapter, its test and a CI workflow, none of them over a file."""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from treeproof.commands.adapter_text import ADAPTER, READS, TEST
from treeproof.commands.exit_codes import CLEAN
from treeproof.commands.options import PATH
from treeproof.commands.origin import Origin, origin
from treeproof.commands.workflow_text import UNKNOWN, WORKFLOW
from treeproof.contract.backend import NAME
from treeproof.contract.json_text import FileError
from treeproof.contract.registry import BackendError, entry_points


@click.command("init-backend")
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
    from treeproof.reports.console import command, open_console, prose, write

    done = write_adapter(name, folder, reads)
    adapter, test = shlex.quote(str(done.adapter)), shlex.quote(str(done.test))
    write(
        open_console(),
        [
            prose(f"wrote {done.adapter}: call your kernel at ①, and say at ② to ④ what it does"),
            f"wrote {done.test}",
            prose(
                f"wrote {done.workflow}: name your runner in it{_and_origin(done.origin)}; it runs"
            ),
            command(f"      {done.gate}"),
            "",
            "It holds a stand-in until your kernel is in, so both of these pass now:",
            command(f"treeproof check {adapter}"),
            command(f"pytest {test}"),
        ],
    )
    return CLEAN


def _and_origin(found: Origin) -> str:
    return "" if found.known else ", and where it gets treeproof from"


@dataclass(frozen=True)
class Written:
    """What there is now. Paths as one would type them in the current folder."""

    adapter: Path
    test: Path
    workflow: Path
    gate: str
    """The command of the workflow, which runs where its repository begins."""
    origin: Origin
    """Where the workflow gets treeproof from."""


def write_adapter(name: str, folder: Path, reads: str) -> Written:
    """Write the files of a backend `name`, whose kernel reads one of `READS`, into `folder`.

    The workflow goes where GitHub looks for it, at the root of the repository that `folder` lies in,
    or into `folder` where it lies in none. Raises BackendError where the name cannot be used, and
    FileError naming a file that is there already or cannot be written; then nothing is written.
    """
    module = module_name(name)
    file, test = f"{module}.py", f"test_{module}.py"
    root = _repository(folder)
    adapter = folder / file
    path = Path(file) if root is None else (folder.resolve() / file).relative_to(root.resolve())
    gate = shlex.join(
        [
            "treeproof",
            "check",
            path.as_posix(),
            "--device",
            "cuda",
            "--profile",
            "gpu",
            "--time",
            "10m",
        ]
    )
    source = origin()
    workflow = (root or folder) / ".github" / "workflows" / f"treeproof-{module}.yml"
    texts = {
        adapter: ADAPTER.format(name=name, file=file, **_parts(reads)),
        folder / test: TEST.format(name=name, file=file, test=test, module=module),
        workflow: WORKFLOW.format(
            name=name,
            command=gate,
            requirement=json.dumps(source.requirement),
            unknown="" if source.known else UNKNOWN,
        ),
    }
    for place in texts:
        if place.exists():
            raise FileError(f"{place} is there already, and is left as it is: choose another name")
    _refuse_hiding(name, module, folder)
    _write_all(texts)
    return Written(adapter, folder / test, workflow, gate, source)


def module_name(name: str) -> str:
    """The Python module for a backend: dots and dashes become `_`, and a digit is not its beginning.

    Raises BackendError naming the characters that a backend's name may have.
    """
    if not NAME.fullmatch(name):
        near = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:64]
        raise BackendError(
            f"backend name {name!r}: accepted are 1 to 64 of a-z, 0-9, '.', '_' and '-', the first "
            f"a letter or digit{f'; did you mean {near}?' if near else ''}"
        )
    module = re.sub(r"[.-]", "_", name)
    return module if module.isidentifier() and not keyword.iskeyword(module) else f"kernel_{module}"


def _parts(reads: str) -> dict[str, str]:
    parts = READS[reads]
    return {
        "consumes": parts.consumes,
        "capabilities": parts.capabilities,
        "explained": parts.explained,
        "arguments": parts.arguments,
        "stand_in": parts.stand_in,
    }


def _refuse_hiding(name: str, module: str, folder: Path) -> None:
    """A file called as the kernel's own package would be imported in its place."""
    if name in entry_points():
        raise BackendError(f"backend name {name!r} is that of an installed one: choose another")
    beside = any((place / module).is_dir() for place in (folder, Path()))
    if beside or importlib.util.find_spec(module) is not None:
        raise BackendError(
            f"backend name {name!r}: {module}.py would stand in the way of `import {module}`, which "
            f"there is already; choose another, such as {name}-adapter"
        )


def _repository(folder: Path) -> Path | None:
    """The closest folder, from this one upwards, that is a git repository."""
    absolute = folder.resolve()
    for above in (absolute, *absolute.parents):
        if (above / ".git").exists():
            here = Path.cwd()
            return above.relative_to(here) if above.is_relative_to(here) else above
    return None


def _write_all(texts: Mapping[Path, str]) -> None:
    written: list[Path] = []
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        for done in written:
            done.unlink()
        raise FileError(f"{path}: {error.strerror or error}") from error
