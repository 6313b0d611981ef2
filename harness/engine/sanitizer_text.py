"""What compute-sanitizer prints, read: which kernel did what, where, how often."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from treeproof.contract.event import Invalid

_HEAD = re.compile(r"={5,} (?P<text>\S.*)")
_DETAIL = re.compile(r"={5,} {2,}(?P<text>\S.*)")
_NO_FINDING = (
    "COMPUTE-SANITIZER",
    "ERROR SUMMARY",
    "LEAK SUMMARY",
    "Error: ",
    "Warning: ",
    "Target ",
)
"""Beginnings of lines that are the tool's word on itself and on the process."""
_SUMMARY = re.compile(r"={5,} ERROR SUMMARY: (\d+) errors?")
_ITS_OWN = re.compile(r"={5,} (?:Internal )?Error: (.*)")
_OF_CALLS = "Program hit "
"""Of a finding that is no kernel's: a call that returned an error, which an earlier finding explains."""

# A kernel is named before its offset, or after place and line, by release.
_AT = (
    re.compile(r"at 0x[0-9a-f]+ in (?:(?P<file>\S+:\d+):)?(?P<kernel>.+)"),
    re.compile(r"at (?P<kernel>.+?)(?:\+|:)0x[0-9a-f]+(?: in (?P<file>\S+:\d+))?$"),
)
_THREAD = re.compile(r"by thread (?P<thread>\([\d,]+\)) in block (?P<block>\([\d,]+\))")
_ADDRESS = re.compile(r"(?:Address|Access (?:to|at)) 0x[0-9a-f]+ .+|and is .+")
MOST = 8
"""Findings that are kept; of one kernel that does one thing, one."""


def findings(text: str) -> tuple[Invalid, ...]:
    """Those of kernels; where there are none, calls that failed. Alike but for thread and address, they
    are one, with the first thread and address."""
    found: dict[tuple[str, str, str], Invalid] = {}
    for one in _each(text):
        key = one.what, one.kernel, one.at
        times = found[key].times + 1 if key in found else 1
        found[key] = msgspec.structs.replace(found.get(key, one), times=times)
    kernels = [one for one in found.values() if not one.what.startswith(_OF_CALLS)]
    return tuple((kernels or list(found.values()))[:MOST])


def errors(text: str) -> int | None:
    """How many it counted; None where it did not come so far."""
    counts = _SUMMARY.findall(text)
    return sum(map(int, counts)) if counts else None


def complaint(text: str) -> str:
    """What the tool says went wrong with itself or the process; empty where nothing did."""
    said = [m[1] for m in map(_ITS_OWN.match, text.splitlines()) if m]
    return said[-1].strip() if said else ""


def _each(text: str) -> Iterator[Invalid]:
    one: Invalid | None = None
    for line in text.splitlines():
        detail = _DETAIL.match(line)
        if detail is not None:
            one = None if one is None else _with(one, detail["text"].strip())
            continue
        head = _HEAD.match(line)
        if one is not None and head is not None:
            yield one
            one = None
        if head is not None and not head["text"].startswith(_NO_FINDING):
            one = Invalid(what=head["text"].strip())
    if one is not None:
        yield one


def _with(one: Invalid, detail: str) -> Invalid:
    """What a further line tells of it. Of the stack of the host, nothing."""
    for form in _AT:
        at = form.match(detail)
        if at is not None and not one.kernel:
            file = (at["file"] or "").rpartition("/")[2]
            return msgspec.structs.replace(one, kernel=at["kernel"], at=file)
    if (by := _THREAD.search(detail)) is not None:
        return msgspec.structs.replace(one, thread=by["thread"], block=by["block"])
    if _ADDRESS.match(detail):
        return msgspec.structs.replace(one, address=f"{one.address} {detail}".strip())
    return one
