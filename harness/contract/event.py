"""What a run writes down, one line each; every report is made from these and nothing else."""

from __future__ import annotations

from typing import Literal

import msgspec

from treeproof.contract.failure import Cell, Failure, Identity, Recovered
from treeproof.contract.kernels import Kernel


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """Unknown fields are ignored on reading, here and in what events hold, so that older readers
    survive newer writers."""


class CaseDrawn(_Event, frozen=True, tag="case"):
    """A distinct case of the run, and the event classes it falls in."""

    case: str
    unit: str
    tags: tuple[str, ...]
    rows: tuple[int, ...]
    """Real rows of each request."""
    prefixes: tuple[int, ...]
    trees: tuple[str, ...] = ()
    """Ids of the requests, padding apart: what is counted as one tree."""
    seconds: float = 0.0


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """What a script came to. `requests` had a round and came to their end; `tokens` were emitted, of
    which `ties` differ from plain decoding where rounding leaves the choice open."""

    requests: int
    rounds: int
    tokens: int
    ties: int


Way = Literal["greedy", "sampled", "law", "rounds"]
"""How drafts are accepted: by what the target predicts, by given coins, by all cells of the coins or a
generator of the backend's own, and in the rounds of a script."""


class Acceptance(msgspec.Struct, frozen=True, kw_only=True):
    """How many walks took d drafts or more, d = 0, 1, … up to `MOST_DEPTHS`: all of them at d = 0.

    `expected` by the oracle, where it is given the same coins or, for `law`, in the mean of all.
    """

    way: Way
    expected: tuple[float, ...]
    observed: tuple[float, ...]


MOST_DEPTHS = 32
"""Of an `Acceptance`, the root apart."""


class Checked(_Event, frozen=True, tag="checked"):
    """One backend's verdicts on one case."""

    case: str
    backend: str
    cells: tuple[Cell, ...]
    failures: tuple[Failure, ...] = ()
    recovered: tuple[Recovered, ...] = ()
    """Kept where something failed."""
    margin: float | None = None
    """Largest err / bound over all outputs; 1 is the limit."""
    margin_rest: float | None = None
    """The same with the rounding of the output itself taken out of both."""
    seconds: dict[str, float] = {}
    """Time split: build, backend, probe, oracle, check."""
    kernels: tuple[Kernel, ...] = ()
    """Those that the backend names and that a launch of its attend was seen to run."""
    generated: Generated | None = None
    """Of a case with a script."""
    out_of_memory: bool = False
    """Nothing was judged: a launch of the case did not fit into memory."""
    acceptance: tuple[Acceptance, ...] = ()
    """Of the stages `accept` and `sample`, one a way; where they are the backend's own."""


class Halved(_Event, frozen=True, tag="halved"):
    """A launch did not fit into memory: two of half as many requests are checked in its place."""

    case: str
    backend: str
    requests: int
    into: tuple[str, ...]
    """Ids of the halves."""


class WorkerLost(_Event, frozen=True, tag="worker-lost"):
    """A worker process died or hung. A backend is blamed that ends another by itself, on this case."""

    case: str
    backend: str
    """Empty: nothing that had run in it does, and nobody is blamed."""
    how: str
    detail: str = ""
    shared: tuple[str, ...] = ()
    """Where nobody is blamed: the backends that had run in it, the last one last."""


class Reduced(_Event, frozen=True, tag="reduced"):
    """The smallest case found for one failure key."""

    backend: str
    identity: str
    kind: str
    original: str
    reduced: str
    evaluations: int
    seconds: float
    complete: bool = True


class Diagnosed(_Event, frozen=True, tag="diagnosed"):
    """The cause of one failure key, found on its smallest case."""

    backend: str
    identity: str
    kind: str
    case: str
    cause: str
    """Name of a hypothesis that reproduces everything that was seen, or `unknown`."""
    says: str = ""
    """The same as a sentence."""
    detail: str = ""
    """In which way it holds: by how much, in which requests, rows or heads."""
    candidates: tuple[str, ...] = ()
    """Names that explain every case tried, the cause first."""
    ruled_out: tuple[str, ...] = ()
    """Names that do not."""
    cases_tried: int = 0
    """Cases that the backend was run on for it."""
    seconds: float = 0.0


class Invalid(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that compute-sanitizer saw, in its words. `kernel` empty: a call of the host's failed."""

    what: str
    kernel: str = ""
    at: str = ""
    """File and line, where it knows them."""
    thread: str = ""
    block: str = ""
    address: str = ""
    """Where the address lies, beside which allocation."""
    times: int = 1


class Sanitized(_Event, frozen=True, tag="sanitized"):
    """A failing case was run again under compute-sanitizer."""

    case: str
    backend: str
    findings: tuple[Invalid, ...]
    said: str = ""
    """Why there are no findings."""
    seconds: float = 0.0


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """What one row was seen, or told, to read."""

    prefix: float
    """Keys of its own prefix."""
    slots: tuple[tuple[int, float], ...]
    """Other slots, and how often each."""


class ShownTurn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request in one round of a script: its tree, by rows, behind what was ready of it."""

    request: int
    ready: int
    """Columns that held keys when the round began."""
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    """Parent rows, -1 above the root."""
    due: tuple[int, ...]
    """Rows of the path that the script has accepted."""
    pages: tuple[int, ...]
    """In logical order; -1 where the window has moved on."""
    accepted: tuple[int, ...] = ()
    """Rows that were accepted; empty where the round did not come so far."""
    emitted: tuple[int, ...] = ()
    """Tokens, the bonus last."""
    ready_after: int | None = None


class ShownRound(msgspec.Struct, frozen=True, kw_only=True):
    """One round of a script; `step` counts its steps from 1."""

    step: int
    turns: tuple[ShownTurn, ...]


class Shown(_Event, frozen=True, tag="shown"):
    """What one backend showed on the smallest case of a failure, for pictures of it. Rows are flat over
    the batch; a field is empty where the backend gave no such evidence."""

    backend: str
    case: str
    errors: tuple[tuple[float, ...], ...] = ()
    """Of each real row and query head, the largest error over its bound; 1e9 stands for no number."""
    reads: tuple[Read, ...] = ()
    """What each real row was seen to read."""
    shares: tuple[tuple[float, float], ...] = ()
    """How much of each real row's weight lies on its prefix, with the case's own data: seen and due."""
    declared: dict[str, tuple[Read, ...]] = {}
    """Form of a table to what it tells each real row to read."""
    writes: tuple[tuple[int, int, int], ...] = ()
    """Slot that changed, and the rows whose K and V it holds: -1 as before, -2 nobody's, -3 padding."""
    positions: tuple[int, ...] = ()
    slots: tuple[int, ...] = ()
    links: dict[str, tuple[tuple[int, ...], ...]] = {}
    """Field to its rows, one a request."""
    rounds: tuple[ShownRound, ...] = ()
    """Of a script, its last rounds."""
    step: int = 0
    """Of a script, the step in which it went wrong, from 1; past the last one: once it was over."""


class Tolerated(_Event, frozen=True, tag="tolerated"):
    """A failure of a check that an entry of the run's ledger tolerates."""

    case: str
    backend: str
    identity: Identity
    kind: str
    entry: int
    """Number of the entry; meta.json has all of it."""


class Covered(_Event, frozen=True, tag="covered"):
    """How often one process reached an entry of the ledger.

    `checks` in the scope of the entry that judged its identity; of a quarantine, those that were
    not launched.
    """

    entry: int
    checks: int


class Left(_Event, frozen=True, tag="left"):
    """Cases of one part of a run that it was asked for and did not come to, on these backends."""

    unit: str
    backends: tuple[str, ...]
    cases: int
    tags: tuple[str, ...] = ()
    """Event classes that they fall in; empty where they were not drawn yet."""


class Began(_Event, frozen=True, tag="began"):
    """What the run does now, in words, where that shows in no other event for a while. It is told to
    listeners and not written down."""

    what: str


class Underway(_Event, frozen=True, tag="underway"):
    """How much of what is to be checked has been begun. It is told to listeners and not written down."""

    share: float
    """From 0 to 1, by what it is thought to cost."""


class Finished(_Event, frozen=True, tag="finished"):
    """The run came to its end; without this event it was cut short."""

    exit_code: int
    seconds: float
    reason: str = ""
    checking: float = 0.0
    """Seconds between the first verdict and the last: without start, imports and first compilation,
    and without the reduction of failures."""
    written: tuple[tuple[str, int], ...] = ()
    """Each file of events, and its bytes by then: one that holds fewer has lost its end since."""


Event = (
    CaseDrawn
    | Checked
    | Halved
    | WorkerLost
    | Reduced
    | Diagnosed
    | Sanitized
    | Shown
    | Tolerated
    | Covered
    | Left
    | Began
    | Underway
    | Finished
)
