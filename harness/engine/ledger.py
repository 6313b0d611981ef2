"""The ledger in a run: what is not launched, what is tolerated, and which entries were reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from msgspec.structs import replace

from treeproof.contract.case import VerifyCase
from treeproof.contract.event import Checked, Covered, Tolerated
from treeproof.contract.failure import Failure
from treeproof.contract.known_failure import KnownFailure
from treeproof.contract.registry import entry_points
from treeproof.contract.wire import FileError
from treeproof.engine.ledger_file import read_entries
from treeproof.engine.ledger_versions import elsewhere
from treeproof.engine.run_folder import BackendMeta

JUDGED = ("pass", "fail", "tie")


@dataclass
class Ledger:
    """The entries that hold today, on one device, and how often each was reached in this process."""

    entries: tuple[KnownFailure, ...] = ()
    """All of the file; expired ones and those of other releases too, which are named and tolerate
    nothing."""
    device: str = "cpu"
    today: date = field(default_factory=date.today)
    reached: Counter[int] = field(default_factory=Counter)
    """By entry: checks in its scope that judged its identity; of a quarantine, those not launched."""

    @classmethod
    def read(cls, path: Path | None, device: str, today: date) -> Ledger:
        """The ledger of a file; an empty one where there is none. Raises FileError."""
        entries = () if path is None else read_entries(path)
        here = (replace(entry, elsewhere=elsewhere(entry.versions)) for entry in entries)
        return cls(tuple(here), device, today)

    def require_known_backends(self, path: Path, backends: Collection[BackendMeta]) -> None:
        """Every entry is about an installed backend, one of the run, or a file that is there.

        A name that is none of them is a typing error, and would tolerate nothing without a word.
        Raises FileError naming entry and field.
        """
        known = {*entry_points(), *(b.name for b in backends), *(b.reference for b in backends)}
        for entry in self.entries:
            file, suffix, _ = entry.backend.partition(".py")
            if entry.backend in known or (suffix and Path(file + suffix).is_file()):
                continue
            if not suffix and ":" in entry.backend:  # module:name, which is not imported to see
                continue
            raise FileError(
                f"{path}: entry {entry.number}: backend is {entry.backend!r}: accepted are "
                f"{', '.join(sorted(known))}, module:name and files that are there"
            )

    def quarantine(self, case: VerifyCase, backend: BackendMeta) -> KnownFailure | None:
        """The entry that keeps this case from being launched, if any does."""
        return next((e for e in self._holding(case, backend) if e.treatment == "quarantined"), None)

    def asking(self, case: VerifyCase, backend: BackendMeta) -> tuple[KnownFailure, ...]:
        """Entries that tolerate a failure of this case where it has the cause that they name."""
        return tuple(entry for entry in self._tolerating(case, backend) if entry.cause)

    def untolerated(
        self, case: VerifyCase, backend: BackendMeta, checked: Checked
    ) -> tuple[Failure, ...]:
        """The failures of a check that no entry tolerates."""
        entries = self._tolerating(case, backend)
        return tuple(f for f in checked.failures if not any(e.tolerates(f) for e in entries))

    def note(self, case: VerifyCase, backend: BackendMeta, checked: Checked) -> list[Tolerated]:
        """What to write down about a check: each of its failures that an entry tolerates.

        The entries whose scope it was in are counted.
        """
        found = []
        for entry in self._tolerating(case, backend):
            if any(c.identity == entry.identity and c.status in JUDGED for c in checked.cells):
                self.reached[entry.number] += 1
            keys = dict.fromkeys(f.key for f in checked.failures if entry.tolerates(f))
            found += [
                Tolerated(
                    case=case.id,
                    backend=backend.name,
                    identity=entry.identity,
                    kind=kind,
                    entry=entry.number,
                )
                for _, kind in keys
            ]
        return found

    def counts(self) -> list[Covered]:
        """How often each entry was reached here: to be written down once, at the end."""
        return [Covered(entry=entry, checks=n) for entry, n in sorted(self.reached.items())]

    def _holding(self, case: VerifyCase, backend: BackendMeta) -> Sequence[KnownFailure]:
        names = (backend.name, backend.reference)
        return [
            entry
            for entry in self.entries
            if entry.days_left(self.today) > 0 and entry.covers(case, names, self.device)
        ]

    def _tolerating(self, case: VerifyCase, backend: BackendMeta) -> Sequence[KnownFailure]:
        return [e for e in self._holding(case, backend) if e.treatment == "tolerated"]
