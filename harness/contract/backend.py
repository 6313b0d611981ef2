"""What a backend is: stages with a name, what they read, and what they can do."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.inputs import TENSOR_FIELDS

STAGES = (
    "draft",
    "select",
    "build",
    "attend",
    "merge",
    "process",
    "accept",
    "sample",
    "finish",
    "commit",
    "extend",
    "forward",
    "pool",
    "schedule",
)
"""What a backend may implement. `draft(step) -> Drafted` lays a drafting phase out, and `extend(x, accepted,
hidden (T, H)) -> Extended` what the drafter runs on after it (`contract.drafting`). `process(x, logits,
given: Constraints)` returns new logits, (T, vocabulary) float32 both (`contract.constraints`);
`sample(x, given: Sampling) -> Accepted` (`contract.sampling`); `finish(accepted, rules: StopRules) ->
Finished` (`contract.stopping`). `forward(x, prefix_tokens) -> logits (T, vocabulary)` is a whole
engine: a `VerifyInput`, and the tokens of each request's prefix, (P_b,) int64 each; logits are of
any float dtype, and those of padded rows are free. `pool(kv) -> PagePool` (`contract.serving`) makes
what hands out pages over many rounds, `schedule() -> Scheduler` what runs when."""
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class BackendError(Exception):
    """A backend was asked for that is not there, or was registered wrongly. A usage error."""


class BackendUnavailable(Exception):
    """A backend is known but cannot run here; the message says why and what to install."""


@dataclass(frozen=True)
class Backend:
    """One implementation of tree attention, or of some of its stages.

    `make` returns a fresh object whose methods are the stages (and may have `plan`, `replan` and `close`).
    """

    name: str
    stages: frozenset[str]
    consumes: frozenset[str]
    capabilities: Capabilities
    numerics: Numerics
    requires: tuple[str, ...]
    make: Callable[[], Any]
    source: str
    """How to load it again, `module:name` or `path.py:name`; empty where it is not registered."""
    unavailable: str = ""
    """Why it cannot run here and what to install; empty where it can, as far as is known."""
    note: str = ""
    """What people should know of it, a few words: `treeproof backends` prints them."""
    kernels: frozenset[str] = frozenset()
    """Names of the kernels that every launch of `attend` must run."""


def describe(
    implementation: Any,
    name: str,
    *,
    stages: Iterable[str] | None = None,
    consumes: Iterable[str] = TENSOR_FIELDS,
    capabilities: Capabilities | None = None,
    numerics: Numerics | None = None,
    requires: Iterable[str] = (),
    unavailable: str = "",
    note: str = "",
    kernels: Iterable[str] = (),
) -> Backend:
    """A function, a class or an object with stage methods as a backend, registered nowhere.

    The other arguments are those of `register`. An object belongs to its owner: its `close` is not
    called.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise BackendError(f"backend name {name!r}: accepted are names that match {NAME.pattern}")
    for value, kind in ((capabilities, Capabilities), (numerics, Numerics)):
        if value is not None and not isinstance(value, kind):
            raise BackendError(
                f"backend {name}: {kind.__name__.lower()} is {type(value).__name__}: "
                f"treeproof.{kind.__name__} is expected"
            )
    chosen = _stages(implementation, name, stages)
    launched = frozenset(_names(name, "kernels", kernels))
    if launched and "attend" not in chosen:
        raise BackendError(f"backend {name}: kernels are those of attend, a stage that it lacks")
    return Backend(
        name=name,
        stages=chosen,
        consumes=frozenset(_names(name, "consumes", consumes, TENSOR_FIELDS)),
        capabilities=capabilities or Capabilities(),
        numerics=numerics or Numerics(),
        requires=_names(name, "requires", requires),
        make=_maker(implementation, name, chosen),
        source="",
        unavailable=unavailable,
        note=note,
        kernels=launched,
    )


def _stages(implementation: Any, name: str, given: Iterable[str] | None) -> frozenset[str]:
    own = [stage for stage in STAGES if callable(getattr(implementation, stage, None))]
    has_methods = inspect.isclass(implementation) or bool(own)
    if not has_methods and not callable(implementation):
        raise BackendError(
            f"backend {name} is {type(implementation).__name__}: accepted are a function, a class "
            f"and an object with some of the methods {', '.join(STAGES)}"
        )
    if given is None:
        chosen = frozenset(own if has_methods else {"attend"})
    else:
        chosen = frozenset(_names(name, "stages", given, STAGES))
    if not chosen:
        raise BackendError(f"backend {name}: no stage; accepted are {', '.join(STAGES)}")
    if not has_methods and len(chosen) != 1:
        raise BackendError(f"backend {name}: a function is one stage, got {sorted(chosen)}")
    missing = sorted(chosen - set(own)) if has_methods else []
    if missing:
        raise BackendError(f"backend {name}: no method for stage {', '.join(missing)}")
    return chosen


def _maker(implementation: Any, name: str, stages: Set[str]) -> Callable[[], Any]:
    if inspect.isclass(implementation):
        return implementation
    if len(stages) == 1 and not hasattr(implementation, next(iter(stages))):
        return type(name, (), {next(iter(stages)): staticmethod(implementation)})
    kept = {*stages, *(name for name in ("plan", "replan") if hasattr(implementation, name))}
    return lambda: SimpleNamespace(**{method: getattr(implementation, method) for method in kept})


def _names(
    backend: str, what: str, given: Iterable[str], accepted: Iterable[str] | None = None
) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if isinstance(given, str) or not all(isinstance(name, str) and name for name in names):
        raise BackendError(f"backend {backend}: {what} is {given!r}: a set of names is expected")
    unknown = [] if accepted is None else sorted(set(names) - set(accepted))
    if accepted is not None and unknown:
        raise BackendError(
            f"backend {backend}: unknown {what} {', '.join(unknown)}; "
            f"accepted are {', '.join(accepted)}"
        )
    return names
