"""Settings: one list, one precedence, refused by name."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from treeproof.commands.options import settings_from
from treeproof.config import SETTINGS, ConfigError, read_folder, read_value, run_settings
from treeproof.engine.settings import RunSettings


def write(folder: Path, text: str, name: str = "pyproject.toml") -> Path:
    (folder / name).write_text(text, "utf-8")
    return folder


def test_without_a_file_every_setting_has_the_default_of_run_settings(tmp_path: Path) -> None:
    settings = run_settings(read_folder(tmp_path), default_backends=("cascade",))
    assert settings == RunSettings(backends=("cascade",))


def test_every_setting_fills_a_field_of_run_settings() -> None:
    known = {field.name for field in fields(RunSettings)}
    assert {setting.field for setting in SETTINGS} <= known
    assert len({setting.key for setting in SETTINGS}) == len(SETTINGS)


def test_the_table_of_pyproject_is_read(tmp_path: Path) -> None:
    text = """
    [tool.other]
    seed = 1
    [tool.treeproof]
    backend = ["cascade", "my_kernel.py"]
    identity = "visibility"
    trees = ["shapes.json"]
    prefix = [0, 4096]
    seed = 7
    time = "1.5h"
    launch-timeout = 5
    reduce = false
    """
    assert run_settings(read_folder(write(tmp_path, text))) == RunSettings(
        backends=("cascade", "my_kernel.py"),
        identities=("visibility",),
        trees=(Path("shapes.json"),),
        prefixes=(0, 4096),
        seed=7,
        time_limit=5400.0,
        launch_timeout=5.0,
        reduce=False,
    )


def test_treeproof_toml_holds_the_same_keys_at_its_top(tmp_path: Path) -> None:
    write(tmp_path, "[tool.other]\n")
    assert read_folder(write(tmp_path, "seed = 7\n", "treeproof.toml")) == {"seed": 7}


def test_two_files_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "[tool.treeproof]\nseed = 1\n")
    write(tmp_path, "seed = 2\n", "treeproof.toml")
    with pytest.raises(ConfigError, match=r"treeproof\.toml is there too: keep one"):
        read_folder(tmp_path)


def test_an_option_wins_over_the_file_and_the_file_over_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '[tool.treeproof]\nseed = 7\nprofile = "ci"\nbackend = ["cascade"]\n'
    monkeypatch.chdir(write(tmp_path, text))
    from_file = settings_from({}, default_backends=("topology",))
    assert (from_file.seed, from_file.profile, from_file.backends) == (7, "ci", ("cascade",))
    mixed = settings_from({"seed": "9"}, ("swa-window",), ("topology",))
    assert (mixed.seed, mixed.profile, mixed.backends) == (9, "ci", ("swa-window",))


def test_no_file_no_option_leaves_the_default_backends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert settings_from({}, default_backends=("topology",)).backends == ("topology",)


def test_an_unknown_key_is_refused_with_the_accepted_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_folder(write(tmp_path, "[tool.treeproof]\nsede = 7\n"))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'pyproject.toml'}: unknown key 'sede'; accepted are ")
    assert message.endswith("; did you mean seed?")
    assert all(setting.key in message for setting in SETTINGS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.treeproof]\nseed = -1", "seed is -1: accepted are 0 to 9223372036854775807"),
        ("[tool.treeproof]\nseed = true", "seed is True: accepted are whole numbers"),
        ("[tool.treeproof]\nseed = nan", "seed is nan: accepted are whole numbers"),
        ("[tool.treeproof]\nseed = 1.0", "seed is 1.0: accepted are whole numbers"),
        (
            '[tool.treeproof]\nprofile = "quik"',
            "quick, ci, gpu, nightly, soak; did you mean quick?",
        ),
        ('[tool.treeproof]\nidentity = ["kv", "visible"]', "did you mean visibility?"),
        ('[tool.treeproof]\ntime = "soon"', "time is 'soon': accepted are times above 0"),
        ("[tool.treeproof]\ntime = 0", "time is 0: accepted are times above 0"),
        ('[tool.treeproof]\ndevice = "tpu"', "device is 'tpu': accepted are cpu, cuda"),
        ("[tool.treeproof]\nreduce = 1", "reduce is 1: accepted are true and false"),
        ("[tool.treeproof]\nbackend = [3]", "backend is [3]: accepted is a name or path"),
        ("[tool]\ntreeproof = 3", "tool.treeproof is 3: a table is expected"),
        ("[tool.treeproof]\nseed = 1\nseed = 2", "Cannot overwrite a value"),
        ("[tool.treeproof", "pyproject.toml: Expected ']'"),
    ],
)
def test_a_wrong_value_names_the_file_the_key_and_what_is_accepted(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_folder(write(tmp_path, text))
    assert str(tmp_path / "pyproject.toml") in str(caught.value)
    assert said in str(caught.value)


def test_a_file_that_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"pyproject\.toml: 'utf-8' codec"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("30m", 1800.0), ("1.5h", 5400.0)]
)
def test_times_have_units(text: str, seconds: float) -> None:
    assert read_value("time", text, "--time") == {"time_limit": seconds}


def test_in_process_and_workers_exclude_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert settings_from({"in_process": True}, ("cascade",)).workers == 0
    with pytest.raises(ConfigError, match="--in-process and --workers 3"):
        settings_from({"in_process": True, "workers": "3"})
