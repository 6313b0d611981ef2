"""The pytest plug-in: options, one seed a session, and one report however many processes there are.

Importing it imports neither torch nor Hypothesis; `-p no:treeproof` switches it off.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Literal

import pytest

from treeproof.config import SETTINGS, ConfigError, Setting, read_folder, read_value
from treeproof.contract.backend import BackendError
from treeproof.contract.wire import FileError
from treeproof.engine.settings import SettingsError
from treeproof.plugin.own_gpu import take_gpu
from treeproof.plugin.report import ATTRIBUTE, VIOLATED, Reporter
from treeproof.plugin.run import PytestRun, current

KEYS = (
    "seed", "profile", "examples", "device", "dtype", "identity", "ledger", "run-dir", "reduce"
)  # fmt: skip
"""Settings of a run that a pytest session can be given, as `--treeproof-KEY` and in the ini file."""

MARKER = "treeproof"
RUN = pytest.StashKey[PytestRun]()
_VIOLATION = "treeproof.testing.violated.TreeAttentionError"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("treeproof", "treeproof: is tree attention right?")
    for setting in (setting for setting in SETTINGS if setting.key in KEYS):
        name = _name(setting)
        text = f"{setting.help} (ini: {name})"
        if setting.key == "reduce":
            group.addoption(
                "--treeproof-no-reduce", dest=name, action="store_false", default=None,
                help=f"keep failing cases as they were drawn (ini: {name} = false)",
            )  # fmt: skip
            parser.addini(name, setting.help, type="bool", default=None)
            continue
        group.addoption(
            _option(setting), dest=name, metavar=setting.metavar, default=None,
            action="append" if setting.many else "store", help=text,
        )  # fmt: skip
        kind: Literal["args", "string"] = "args" if setting.many else "string"
        parser.addini(name, setting.help, type=kind, default=None)


def _name(setting: Setting) -> str:
    """In the ini file, and among pytest's options."""
    return f"treeproof_{setting.key.replace('-', '_')}"


def _option(setting: Setting) -> str:
    return f"--treeproof-{setting.key}"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARKER}: holds tree attention to its identities; a session in which all tests so marked "
        "are skipped fails",
    )
    worker = getattr(config, "workerinput", {})
    try:
        run = PytestRun(
            config.rootpath,
            below={
                **read_folder(config.rootpath),
                **_given(config.getini, lambda setting: f"ini option {_name(setting)}"),
            },
            above=_given(config.getoption, _option),
            writer=worker.get("workerid", "main"),
            **worker.get(MARKER, {}),
        )
        if not worker and run.folder.meta_path.exists():
            raise SettingsError(f"run folder {run.folder.path} already holds a run: name another")
        run.read_ledger()
        device = run.settings().device
        if worker and device.startswith("cuda"):
            shared = take_gpu(device, worker["workerid"])
            run.above = {**run.above, "device": "cuda"}  # of those that it sees, which is one
            if shared:
                config.issue_config_time_warning(pytest.PytestConfigWarning(shared), 2)
    except (ConfigError, SettingsError, FileError, BackendError) as error:
        raise pytest.UsageError(f"treeproof: {error}") from None
    config.stash[RUN] = run
    token = current.set(run)
    config.add_cleanup(lambda: current.reset(token))
    if not worker:
        config.pluginmanager.register(Reporter(run), "treeproof-report")


def _given(get: Callable[[str], Any], shown: Callable[[Setting], str]) -> dict[str, Any]:
    """Fields of `RunSettings` that the command line, or the ini file, sets. Raises ConfigError."""
    fields: dict[str, Any] = {}
    for setting in (setting for setting in SETTINGS if setting.key in KEYS):
        value = get(_name(setting))
        if value is not None:
            fields |= read_value(setting.key, value, shown(setting))
    return fields


def pytest_report_header(config: pytest.Config) -> str:
    settings = config.stash[RUN].settings()
    return f"treeproof: seed {settings.seed}, profile {settings.profile}"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist: what all processes of a session have in common."""
    run: PytestRun = node.config.stash[RUN]
    node.workerinput[MARKER] = {"name": run.name, "new_seed": run.new_seed}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of pytest-xdist writes down how far it got with the ledger; the reporter does, too,
    before it reads what all of them have written."""
    run = session.config.stash[RUN]
    if run.writer != "main":
        run.record(*run.ledger.counts())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The reports of our items name the backends that they loaded; pytest-xdist takes them along."""
    report = yield
    if item.get_closest_marker(MARKER) is not None:
        noted = item.config.stash[RUN].noted
        setattr(report, ATTRIBUTE, list(noted))
        noted.clear()
        if call.excinfo is not None and report.failed and _is_made(item):
            # The message says all there is to say; no line of ours explains a backend's failure.
            report.longrepr = call.excinfo.getrepr(style="value")
    if call.excinfo is not None and not _is_made(item):
        setattr(report, VIOLATED, _is_violation(call.excinfo.type))
    return report


def _is_violation(raised: type[BaseException]) -> bool:
    """A TreeAttentionError, by name: a session that never raises one need not load its module."""
    return any(f"{c.__module__}.{c.__name__}" == _VIOLATION for c in raised.__mro__)


def _is_made(item: pytest.Item) -> bool:
    return getattr(getattr(item, "obj", None), "__module__", "") == "treeproof.plugin.made_tests"
