"""What an exception says, in one line for a terminal, and the line of code that it came from."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MOST = 300
"""Characters of an exception's own words."""
_LIBRARIES = ("torch", "triton")
_OURS = ("treeproof",)


def in_one_line(error: BaseException) -> str:
    """Type and first useful words: of a compiler that also quotes sources, the kernel, line and reason."""
    compiling = [one for one in chain(error) if hasattr(one, "src") and hasattr(one, "node")]
    if compiling:
        return _not_compiled(compiling[-1])
    lines = [line.strip() for line in words_of(error).splitlines() if line.strip()]
    # The first line of a tool's error may only say which tool it was.
    said = [line for line in lines[1:] if re.search(r"\b(error|fatal)\b", line)]
    words = "; ".join([*lines[:1], *(said[:1] if from_triton(error) else [])])
    return f"{type(error).__name__[:_MOST]}: {words[:_MOST]}"


def words_of(error: BaseException) -> str:
    """What it says, or that it cannot be made to: making its text is code of its own."""
    try:
        return str(error)
    except Exception as failing:
        return f"(making its text raises {type(failing).__name__})"


def chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, what it was raised from, and so on."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:  # one may be raised from itself
        seen.append(cause)
        yield cause
        cause = cause.__cause__


def from_triton(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "triton"


def _not_compiled(error: Any) -> str:
    """Triton's CompilationError: it holds the kernel's text, a node of its tree, and the reason."""
    source = (error.src or "").splitlines()
    name = re.search(r"def (\w+)", error.src or "")
    at = f" in kernel {name[1]}" if name else ""
    line = getattr(error.node, "lineno", 0)
    if line:
        quoted = f" ({source[line - 1].strip()})" if 0 < line <= len(source) else ""
        at += f", line {line} of it{quoted}"
    reason = str(getattr(error, "error_message", None) or error.__cause__ or "no reason is given")
    first = next((part.strip() for part in reason.splitlines() if part.strip()), "")
    return f"{type(error).__name__}{at}: {first}"[: 2 * _MOST]


def where(error: BaseException) -> str:
    """` (file, line, function)` of the deepest frame that is neither a library's nor ours, if any is."""
    frames = list(traceback.walk_tb(error.__traceback__))
    for not_in in ((*_LIBRARIES, *_OURS), _LIBRARIES, ()):
        for frame, line in reversed(frames):
            if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in not_in:
                code = frame.f_code
                return f" ({Path(code.co_filename).name}, line {line}, in {code.co_name})"
    return ""
