"""A pytest test of a backend: `test_mykernel = treeproof.make_tests("mykernel")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from treeproof.commands.asked import require_known
from treeproof.config import did_you_mean, read_value
from treeproof.contract.registry import registered
from treeproof.plugin.made_item import Subject, hold, shares
from treeproof.plugin.run import current_run
from treeproof.testing.subject import reference_of, word_for

OPTIONS = ("identity", "examples", "seed", "profile", "device", "dtype", "reduce")
"""Settings of a run that tests can be given too, by their names in the configuration file."""


def make_tests(backend: object, **options: Any) -> Callable[[str], None]:
    """A test of a backend, one item a shape group and a last one, `rounds`, of scripts; give it a name
    that begins with `test_`.

    `backend` is a name, `module:name` or file, or an attend function, class or object with stage
    methods, registered or not. Options are those of the command line: `examples` (cases in all
    groups together; for every 18 of them there is a script), `seed`, `profile`, `device`, `dtype`, `identity`, `reduce`; what is given to
    pytest as `--treeproof-…` wins over them, and they win over configuration files.

    Each item draws its cases with Hypothesis and raises an exception class named after the failure;
    the smallest case is kept in the run's folder, and the last line of the message replays it. An
    item whose backend cannot run here, or takes none of its cases, is skipped and says why.

    Raises BackendError where there is no such backend, TypeError or ConfigError where an option
    cannot be used.
    """
    import pytest

    if registered(backend) is None and reference_of(backend):
        require_known([reference_of(backend)])
    subject = Subject(backend, word_for(backend), reference_of(backend), _read(options))
    run = current_run()
    groups = shares(subject, run)

    @pytest.mark.parametrize("group", list(groups))
    def test_tree_attention(group: str) -> None:
        __tracebackhide__ = True
        hold(subject, groups[group], run)

    test_tree_attention.__doc__ = f"{subject.word} is held to the identities of tree attention."
    return pytest.mark.treeproof(test_tree_attention) if run.marks else test_tree_attention


def _read(options: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `RunSettings`. Raises TypeError for a name, ConfigError for a value."""
    fields: dict[str, Any] = {}
    for name, value in options.items():
        if name not in OPTIONS:
            raise TypeError(
                f"make_tests() takes no {name}; accepted are {', '.join(OPTIONS)}"
                f"{did_you_mean(name, OPTIONS)}"
            )
        fields |= read_value(name, value, f"make_tests: {name}")
    return fields
