"""A page as HTML: one file that opens from disk, fetches nothing, and trusts no string."""

from __future__ import annotations

import base64
import gzip
import hashlib
from functools import cache
from importlib.resources import files

import msgspec
from jinja2 import Environment, StrictUndefined, Template

from treeproof import __version__
from treeproof.contract.failure import COLUMNS
from treeproof.reports.acceptance import SHOWN_DEPTHS
from treeproof.reports.page.facts import Page

SCRIPTS = ("tree.js", "slots.js", "tracer.js", "drawing.js", "rounds.js", "page.js")


def render(page: Page) -> str:
    """The whole file. Strings reach it escaped, drawings as compressed JSON that no parser sees."""
    style, script = _part("page.css"), "\n".join(map(_part, SCRIPTS))
    return _template().render(
        page=page,
        columns=COLUMNS,
        most_depths=SHOWN_DEPTHS,
        identities=sorted({block.identity for block in page.blocks}),
        backends=sorted({block.backend for block in page.blocks}),
        version=__version__,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        island=_island(page),
    )


def _island(page: Page) -> str:
    packed = gzip.compress(msgspec.json.encode(page.drawings), 9, mtime=0)
    return base64.b64encode(packed).decode()


def _hash(text: str) -> str:
    """As a content security policy names what it allows."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _part(name: str) -> str:
    return files("treeproof.reports.page").joinpath(name).read_text("utf-8")


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_part("page.html.jinja"))
