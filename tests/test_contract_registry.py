"""Backends by name: what may be registered, how it is found, and what is said where it is not."""

import importlib
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from treeproof.contract import registry
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.inputs import TENSOR_FIELDS
from treeproof.contract.registry import (
    BackendError,
    BackendUnavailable,
    describe,
    entry_points,
    load,
    register,
    registered,
)

STAGES = "draft, select, build, attend, merge, process, accept, sample, finish, commit, extend"


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers or loads is forgotten afterwards."""
    monkeypatch.setattr(registry, "_by_file", {})
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("_treeproof_backend_", "written_")):
            del sys.modules[name]
    for name, backend in list(registry._by_name.items()):
        if backend.source.startswith((f"{__name__}:", "written_")):
            del registry._by_name[name]


def attend(*tensors: Any) -> str:
    return "attended"


class Staged:
    def build(self, c: Any) -> str:
        return "built"

    def attend(self, *tensors: Any) -> str:
        return "attended"

    def help(self) -> None: ...


def test_a_function_is_a_backend_of_one_stage() -> None:
    assert register("mine")(attend) is attend
    mine = load("mine")
    assert (mine.name, mine.stages, mine.requires) == ("mine", {"attend"}, ())
    assert mine.consumes == set(TENSOR_FIELDS)
    assert (mine.capabilities, mine.numerics) == (Capabilities(), Numerics())
    assert mine.make().attend(1, 2) == "attended"
    assert mine.make() is not mine.make()


def test_a_function_may_be_another_stage_and_say_more() -> None:
    register(
        "mine",
        stages=["build"],
        consumes={"positions"},
        capabilities=Capabilities(max_rows=3),
        numerics=Numerics(p="bfloat16"),
        requires=["json"],
    )(attend)
    mine = load("mine")
    assert (mine.stages, mine.consumes, mine.requires) == ({"build"}, {"positions"}, ("json",))
    assert mine.capabilities.max_rows == 3
    assert mine.numerics.p == "bfloat16"
    assert mine.make().build() == "attended"


def test_a_class_is_a_backend_of_the_stages_it_has_methods_for() -> None:
    register("mine")(Staged)
    assert load("mine").stages == {"build", "attend"}
    assert isinstance(load("mine").make(), Staged)
    register("mine", stages={"build"})(Staged)
    assert load("mine").stages == {"build"}


def test_an_object_is_a_backend_of_its_methods_and_is_not_closed() -> None:
    class Kernel:
        def __init__(self, says: str) -> None:
            self.says = says

        def plan(self, x: Any) -> str:
            return f"plan of {self.says}"

        def attend(self, *tensors: Any) -> str:
            return self.says

        def close(self) -> None:
            raise AssertionError

    described = describe(Kernel("mine"), "mine")
    assert described.stages == {"attend"}
    made = described.make()
    assert (made.attend(), made.plan(1)) == ("mine", "plan of mine")
    assert not hasattr(made, "close")


NO_NAME = "accepted are names that match [a-z0-9][a-z0-9._-]{0,63}"


@pytest.mark.parametrize(
    ("implementation", "name", "fields", "message"),
    [
        (attend, "Mine", {}, f"backend name 'Mine': {NO_NAME}"),
        (attend, "", {}, f"backend name '': {NO_NAME}"),
        (attend, "-mine", {}, f"backend name '-mine': {NO_NAME}"),
        (attend, "mine\n", {}, f"backend name 'mine\\n': {NO_NAME}"),
        (attend, "../mine", {}, f"backend name '../mine': {NO_NAME}"),
        (attend, "m" * 65, {}, f"backend name '{'m' * 65}': {NO_NAME}"),
        (attend, None, {}, f"backend name None: {NO_NAME}"),
        (
            attend,
            "mine",
            {"stages": {"blend", "attend"}},
            f"backend mine: unknown stages blend; accepted are {STAGES}",
        ),
        (
            attend,
            "mine",
            {"consumes": {"mask", "positions", "links"}},
            "backend mine: unknown consumes links, mask; accepted are draft_token, positions, seq_lens",
        ),
        (
            attend,
            "mine",
            {"stages": "attend"},
            "backend mine: stages is 'attend': a set of names is expected",
        ),
        (
            attend,
            "mine",
            {"consumes": "positions"},
            "backend mine: consumes is 'positions': a set of names is expected",
        ),
        (
            attend,
            "mine",
            {"requires": "triton"},
            "backend mine: requires is 'triton': a set of names is expected",
        ),
        (
            attend,
            "mine",
            {"requires": [""]},
            "backend mine: requires is ['']: a set of names is expected",
        ),
        (
            attend,
            "mine",
            {"stages": {"build", "attend"}},
            "backend mine: a function is one stage, got ['attend', 'build']",
        ),
        (attend, "mine", {"stages": ()}, f"backend mine: no stage; accepted are {STAGES}"),
        (int, "mine", {}, f"backend mine: no stage; accepted are {STAGES}"),
        (
            Staged,
            "mine",
            {"stages": {"build", "commit", "accept"}},
            "backend mine: no method for stage accept, commit",
        ),
        (
            7,
            "mine",
            {},
            "backend mine is int: accepted are a function, a class and an object with some of the "
            f"methods {STAGES}",
        ),
        (
            attend,
            "mine",
            {"capabilities": {"max_rows": 3}},
            "backend mine: capabilities is dict: treeproof.Capabilities is expected",
        ),
        (
            attend,
            "mine",
            {"numerics": "bfloat16"},
            "backend mine: numerics is str: treeproof.Numerics is expected",
        ),
    ],
)
def test_a_wrong_registration_says_what_is_accepted(
    implementation: Any, name: Any, fields: dict[str, Any], message: str
) -> None:
    for attempt in (
        lambda: register(name, **fields)(implementation),
        lambda: describe(implementation, name, **fields),
    ):
        with pytest.raises(BackendError) as refusal:
            attempt()
        assert str(refusal.value).startswith(message)
    assert "mine" not in registry._by_name


def test_the_longest_name_is_accepted() -> None:
    register("0" + "a._-" * 15 + "abc")(attend)


def test_what_is_registered_is_found_by_name_function_and_class() -> None:
    register("mine")(attend)
    register("yours")(Staged)
    assert registered("mine") is registered(attend) is load("mine")
    assert registered(Staged) is load("yours")
    assert registered(print) is None
    assert registered("theirs") is None


def test_described_is_not_registered() -> None:
    described = describe(attend, "mine")
    assert described.source == ""
    assert registered("mine") is None


# --- names -----------------------------------------------------------------------------------


def test_an_installed_name_is_nobody_elses_whether_imported_or_not(tmp_path: Path) -> None:
    with pytest.raises(BackendError) as refusal:
        register("cascade")(attend)
    assert str(refusal.value) == (
        "backend name 'cascade' is taken by the installed treeproof.backends.cascade: "
        "choose another"
    )
    file = write(tmp_path / "mine.py", backend_text("cascade"))
    with pytest.raises(BackendError, match="'cascade' is taken by the installed treeproof"):
        load(str(file))
    assert load("cascade").source == "treeproof.backends.cascade:cascade"


def test_a_module_of_the_package_that_is_installed_under_a_name_may_register_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda: {"mine": f"{__name__}.elsewhere"})
    register("mine")(attend)
    assert load("mine").source == f"{__name__}:mine"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def backend_text(name: str = "mine", says: str = "first") -> str:
    return (
        "import treeproof\n"
        f"@treeproof.register({name!r})\n"
        "def attend(*tensors):\n"
        f"    return {says!r}\n"
    )


def importable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()


def test_another_module_may_not_take_a_registered_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importable(tmp_path, monkeypatch)
    write(tmp_path / "written_a.py", backend_text(says="a"))
    write(tmp_path / "written_b.py", backend_text(says="b"))
    assert load("written_a:mine").make().attend() == "a"
    with pytest.raises(BackendError) as refusal:
        load("written_b:mine")
    assert str(refusal.value) == (
        "backend name 'mine' is taken by module written_a: choose another"
    )
    assert load("mine").make().attend() == "a"


def test_a_module_that_is_reloaded_replaces_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importable(tmp_path, monkeypatch)
    write(tmp_path / "written_c.py", backend_text(says="before"))
    assert load("written_c:mine").make().attend() == "before"
    write(tmp_path / "written_c.py", backend_text(says="and after"))
    importlib.reload(sys.modules["written_c"])
    assert load("written_c:mine").make().attend() == "and after"


def test_two_files_may_hold_the_same_name_and_neither_replaces_the_other(tmp_path: Path) -> None:
    a = write(tmp_path / "a.py", backend_text(says="a"))
    b = write(tmp_path / "b.py", backend_text(says="b"))
    assert [load(str(f)).make().attend() for f in (a, b, a)] == ["a", "b", "a"]
    assert load(str(a)).source == f"{a}:mine"
    with pytest.raises(BackendError, match=r"^no backend named 'mine'; known are cascade, "):
        load("mine")


def test_one_file_may_not_register_a_name_twice(tmp_path: Path) -> None:
    file = write(tmp_path / "a.py", backend_text(says="1") + backend_text(says="2"))
    with pytest.raises(BackendError) as refusal:
        load(str(file))
    assert str(refusal.value) == f"backend name 'mine' is registered twice in {file}"


# --- finding ---------------------------------------------------------------------------------


def test_an_entry_point_is_loaded_by_its_name() -> None:
    direct = load("direct-mask")
    assert direct.name == "direct-mask"
    assert direct.source == "treeproof.backends.direct_mask:direct-mask"
    assert load(direct.source) is direct


def test_entry_points_are_listed_without_importing_them() -> None:
    script = (
        "import sys\n"
        "from treeproof.contract.registry import entry_points\n"
        "known = entry_points()\n"
        "assert known['cascade'] == 'treeproof.backends.cascade', known\n"
        "assert not {*known.values(), 'treeproof.backends', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_no_installed_package_replaces_a_backend_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    group = registry.ENTRY_POINTS
    points = [
        importlib.metadata.EntryPoint("b", "treeproof.backends.b", group),
        importlib.metadata.EntryPoint("b", "zzz.b:attribute", group),
        importlib.metadata.EntryPoint("a", "zzz.a:attribute", group),
    ]
    for order in (points, points[::-1]):
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group, o=order: o)
        assert list(entry_points().items()) == [("a", "zzz.a"), ("b", "treeproof.backends.b")]


def test_an_unknown_name_lists_the_known() -> None:
    register("mine")(attend)
    with pytest.raises(BackendError) as refusal:
        load("cascde")
    message = str(refusal.value)
    assert message.startswith("no backend named 'cascde'; known are cascade, direct-mask, ")
    assert ", mine, " in message
    assert message.endswith("A file (path/to/backend.py) or module:name may be given too")


def test_a_module_may_register_what_another_of_its_package_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importable(tmp_path, monkeypatch)
    (tmp_path / "written_package").mkdir()
    write(tmp_path / "written_package" / "__init__.py", "import written_package.kernel\n")
    write(tmp_path / "written_package" / "kernel.py", backend_text())
    assert load("written_package:mine").source == "written_package.kernel:mine"
    write(tmp_path / "written_wrong.py", "import written_package\n")
    with pytest.raises(BackendError) as refusal:
        load("written_wrong:mine")
    assert str(refusal.value) == "written_wrong registers no backend 'mine'; it registers none"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("written_nowhere:mine", "backend written_nowhere:mine: no module named written_nowhere"),
        ("written_nowhere.a:mine", "backend written_nowhere.a:mine: no module named written_nowhere"),
        ("treeproof.nowhere:mine", "backend treeproof.nowhere:mine: no module named treeproof.nowhere"),
        ("json:mine", "json registers no backend 'mine'; it registers none"),
        ("json:", "json: names no backend: module:name is expected"),
        (":mine", "backend :mine fails on import: ValueError: Empty module name"),
        ("./json:mine", "backend ./json:mine fails on import: TypeError: "),
        ("nowhere.py", "backend file nowhere.py: no such file"),
        ("nowhere.py:mine", "backend file nowhere.py: no such file"),
        ("", "no backend named ''; known are "),
        ("a\0.py", "backend file a\0.py: no such file"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_a_backend_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BackendError) as refusal:
        load(reference)
    assert str(refusal.value).startswith(message)


@pytest.mark.parametrize("name", ["mine.py", "mine.python.py", "a b.py", "a:b.py", "x.pyc.py"])
def test_a_file_is_loaded_by_path_and_by_path_and_name(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name, backend_text())
    found = load(str(file))
    assert found.name == "mine"
    assert load(f"{file}:mine") is found
    assert load(found.source) is found
    assert registered(sys.modules[found.make.attend.__module__].attend) is found  # type: ignore[attr-defined]


def test_a_file_is_run_as_python_would_run_it(tmp_path: Path) -> None:
    file = write(
        tmp_path / "mine.py",
        "import treeproof\n\n@treeproof.register('mine')\n"
        "def attend(x: int) -> object:\n    return (attend.__annotations__, __file__, __name__)\n",
    )
    annotations, path, name = load(str(file)).make().attend(1)
    assert annotations == {"x": int, "return": object}
    assert path == str(file)
    assert sys.modules[name].__spec__.origin == str(file)  # type: ignore[union-attr]


def test_a_file_in_a_folder_named_like_a_file(tmp_path: Path) -> None:
    (tmp_path / "tree.py").mkdir()
    file = write(tmp_path / "tree.py" / "mine.py", backend_text())
    assert load(str(file)).name == "mine"
    with pytest.raises(BackendError, match=r"no such file$"):
        load(str(tmp_path / "tree.py"))


def test_of_several_backends_in_a_file_one_is_named(tmp_path: Path) -> None:
    text = backend_text("one", "1") + backend_text("two", "2")
    file = write(tmp_path / "both.py", text)
    assert load(f"{file}:one").make().attend() == "1"
    assert load(f"{file}:two").make().attend() == "2"
    with pytest.raises(BackendError) as refusal:
        load(str(file))
    assert str(refusal.value) == f"{file} registers 2 backends (one, two): name one as {file}:name"
    with pytest.raises(BackendError) as refusal:
        load(f"{file}:three")
    assert str(refusal.value) == f"{file} registers no backend 'three'; it registers one, two"


def test_a_file_that_registers_nothing_says_so(tmp_path: Path) -> None:
    file = write(tmp_path / "none.py", "def attend(*tensors): ...\n")
    with pytest.raises(BackendError) as refusal:
        load(str(file))
    assert str(refusal.value) == (
        f"{file} registers no backend: @treeproof.register(name) is missing"
    )


def test_a_file_may_register_what_it_imports_and_import_other_backends(tmp_path: Path) -> None:
    file = write(
        tmp_path / "shim.py",
        "import json\nimport treeproof\nimport treeproof.backends.cascade\n"
        "treeproof.register('mine')(json.dumps)\n",
    )
    assert load(str(file)).make().attend([1]) == "[1]"
    assert load("cascade").name == "cascade"


def test_a_file_is_run_once_for_each_of_its_contents(tmp_path: Path) -> None:
    count = tmp_path / "count"
    counted = f"open({str(count)!r}, 'a').write('x')\n"
    file = write(tmp_path / "mine.py", counted + backend_text(says="wrong"))
    first = load(str(file))
    assert load(str(file)) is first
    assert count.read_text() == "x"
    # Mended at once and to the same length, as a cache of bytecode would not notice.
    write(file, counted + backend_text(says="right"))
    assert load(str(file)).make().attend() == "right"
    assert first.make().attend() == "wrong"
    assert count.read_text() == "xx"
    assert not (tmp_path / "__pycache__").exists()
    copied = write(tmp_path / "copy.py", file.read_text())
    assert load(str(copied)).source == f"{copied}:mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n\nraise ValueError('at once')\n", "ValueError: at once ({}, line 3)"),
        ("def f():\n    return y\nf()\n", "NameError: name 'y' is not defined ({}, line 2)"),
        ("def f(:\n", "SyntaxError: "),
        ("raise SystemExit(3)\n", "SystemExit: 3 ({}, line 1)"),
        (
            "import treeproof\ntreeproof.Capabilities(dtypes={'fp8'})\n",
            "ValueError: dtypes is {{'fp8'}}: accepted are sets of float32, bfloat16, float16 ",
        ),
        ("from json import nothing\n", "ImportError: cannot import name 'nothing' from 'json' "),
        ("import pytest\npytest.skip('no', allow_module_level=True)\n", "Skipped: no "),
    ],
)
def test_a_file_that_fails_on_import_says_what_and_where(
    tmp_path: Path, text: str, message: str
) -> None:
    file = write(tmp_path / "mine.py", text)
    before = set(sys.modules)
    for _ in range(2):  # the second time it is run again
        with pytest.raises(BackendError) as refusal:
            load(str(file))
        said = f"backend {file} fails on import: {message.format(file)}"
        assert str(refusal.value).startswith(said)
    assert not {m for m in set(sys.modules) - before if m.startswith("_treeproof_backend_")}
    write(file, backend_text())
    assert load(str(file)).name == "mine"


def test_a_file_that_cannot_be_read_is_a_backend_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "mine.py", backend_text())

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(BackendError) as refusal:
        load(str(file))
    assert str(refusal.value) == f"backend file {file}: Permission denied"


def test_ctrl_c_while_a_file_is_loaded_is_not_swallowed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        load(str(write(tmp_path / "mine.py", "raise KeyboardInterrupt\n")))


def test_a_module_that_fails_half_way_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importable(tmp_path, monkeypatch)
    write(tmp_path / "written_half.py", backend_text() + "raise ValueError('then')\n")
    for _ in range(2):
        with pytest.raises(BackendError, match=r"fails on import: ValueError: then \(.*line 5\)$"):
            load("written_half:mine")
        assert registered("mine") is None


# --- packages --------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["no_such_kernels", "no_such_kernels.ops"])
def test_a_missing_package_makes_a_module_unavailable_and_is_an_error_of_a_file_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    importable(tmp_path, monkeypatch)
    file = write(tmp_path / "written_needs.py", f"import {what}\n" + backend_text())
    said = "No module named 'no_such_kernels'"
    with pytest.raises(BackendUnavailable) as unavailable:
        load("written_needs:mine")
    assert str(unavailable.value) == f"written_needs:mine: {said}; pip install no_such_kernels"
    with pytest.raises(BackendError) as refusal:
        load(str(file))
    assert str(refusal.value) == (
        f"backend {file} fails on import: ModuleNotFoundError: {said} ({file}, line 1); "
        "pip install no_such_kernels, or mend its name"
    )


@pytest.mark.parametrize(
    ("requires", "said"),
    [
        (["json", "no_such"], "package no_such is not installed; pip install no_such"),
        (["no_such.ops"], "package no_such.ops is not installed; pip install no_such"),
        (
            ["no_such=pip install --no-deps such==1"],
            "package no_such is not installed; pip install --no-deps such==1",
        ),
    ],
)
def test_what_a_backend_requires_is_looked_for_when_it_is_loaded(
    requires: list[str], said: str
) -> None:
    register("mine", requires=requires)(attend)
    with pytest.raises(BackendUnavailable) as refusal:
        load("mine")
    assert str(refusal.value) == said
    register("mine", requires=["json", "importlib.metadata=never shown"])(attend)
    assert load("mine").name == "mine"


def test_a_backend_that_says_why_it_cannot_run_is_not_loaded() -> None:
    register("mine", unavailable="built without pages; pip install other", note="new")(attend)
    with pytest.raises(BackendUnavailable, match=r"^built without pages; pip install other$"):
        load("mine")
    register("mine", note="new")(attend)
    assert load("mine").note == "new"


# --- files that name backends ------------------------------------------------------------------


def test_a_case_file_never_makes_anything_be_imported(tmp_path: Path) -> None:
    """In a fresh process a reproducer is read that names a file and a module, both of them traps."""
    trap = write(tmp_path / "written_trap.py", f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    case = {
        "requests": [
            {"tree": {"tokens": [1], "parents": [-1]}, "row_of_node": [0], "prefix_len": 0}
        ],
        "shape": {"num_q_heads": 1, "num_kv_heads": 1, "head_dim": 8, "v_head_dim": 8},
        "layout": {"page_size": 1, "num_slots": 4},
    }
    for i, backend in enumerate((str(trap), "written_trap:mine", "cascade")):
        document = {
            "schema": "treeproof.reproducer",
            "version": 1,
            "case": case,
            "backend": backend,
            "failure": {"identity": "kv", "kind": "written_trap"},
        }
        write(tmp_path / f"{i}.json", json.dumps(document))
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from treeproof.contract.wire import read_case_file\n"
        "before = set(sys.modules)\n"
        "read = [read_case_file(Path(f'{i}.json')).backend for i in range(3)]\n"
        "assert read[1:] == ['written_trap:mine', 'cascade'], read\n"
        "assert not {m for m in set(sys.modules) - before if 'treeproof' in m or 'trap' in m}\n"
        "import written_trap  # it would have been found\n"
    )
    environment = {"PYTHONPATH": str(tmp_path), "PATH": ""}
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, env=environment)
    assert (tmp_path / "sprung").exists()


def test_the_trap_of_that_test_springs_where_it_is_loaded(tmp_path: Path) -> None:
    trap = write(tmp_path / "trap.py", f"open({str(tmp_path / 'sprung')!r}, 'w')\n")
    with pytest.raises(BackendError):
        load(str(trap))
    assert (tmp_path / "sprung").exists()


def test_the_registered_functions_are_called_by_nobody_while_they_are_registered() -> None:
    called: list[int] = []

    def attend(*tensors: Any) -> None:
        called.append(1)

    make: Callable[[], Any] = describe(attend, "mine").make
    register("mine")(attend)
    load("mine")
    assert called == []
    make().attend()
    assert called == [1]
