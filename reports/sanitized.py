"""What compute-sanitizer said of a failing case, in words."""

from __future__ import annotations

from treeproof.contract.event import Invalid, Sanitized


def sanitized_lines(found: Sanitized) -> list[str]:
    """One for each thing that a kernel does; or why there is none."""
    said = [_one(one) for one in found.findings] or [found.said]
    return [f"compute-sanitizer: {text}" for text in said]


def _one(one: Invalid) -> str:
    at = f" ({one.at})" if one.at else ""
    kernel = f" in kernel {one.kernel}{at}" if one.kernel else ""
    times = f", {one.times} times" if one.times > 1 else ""
    first = "first " if one.times > 1 else ""
    by = f", {first}by thread {one.thread} in block {one.block}" if one.thread else ""
    address = f": {one.address[0].lower()}{one.address[1:]}" if one.address else ""
    return f"{one.what}{kernel}{times}{by}{address}"
