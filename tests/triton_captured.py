"""What a captured launch of a Triton backend shows, in a process in which Triton interprets."""

from __future__ import annotations

from triton_scene import reference

from treeproof.contract.case import VerifyCase
from treeproof.contract.registry import load
from treeproof.engine.check import CheckOptions, check_case
from treeproof.faults.captured import frozen


def captured_kinds(name: str, case: VerifyCase, field: str = "") -> set[tuple[str, str]]:
    """Keys of what fails on the case, where its plan keeps a field."""
    backend = load(reference(name))
    assert backend.capabilities.capturable
    if field:
        backend = frozen(field)(backend)
    checked = check_case(case, backend, CheckOptions(probes=frozenset({"captured"})))
    return {failure.key for failure in checked.failures}
