"""The oracle's code holds lists and slices only: nothing in it could be a mask."""

import ast
from pathlib import Path

import pytest

import treeproof.oracles

ARRAYS = {"torch", "numpy", "jax", "cupy"}
ROOM = Path(treeproof.oracles.__path__[0])


def imports_arrays(file: Path) -> bool:
    """Whether a module could hold a mask at all: plain numbers and lists are none."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        if any(name.partition(".")[0] in ARRAYS for name in names):
            return True
    return False


FILES = sorted(file for file in ROOM.glob("*.py") if imports_arrays(file))
FORBIDDEN = {
    *("where", "masked_fill", "masked_fill_", "masked_select", "masked_scatter", "tril", "triu"),
    *(
        "tril_",
        "triu_",
        "tril_indices",
        "triu_indices",
        "inf",
        "finfo",
        "bool",
        "mask",
        "attn_mask",
    ),
    *("lt", "le", "gt", "ge", "eq", "ne", "less", "less_equal", "greater", "greater_equal", "isin"),
    *("logical_and", "logical_or", "logical_not", "nan_to_num", "pad", "pad_sequence", "heaviside"),
}


def masks_in(source: str) -> list[str]:
    """What in a module could make or be a mask: a forbidden name, an infinity spelt as a string, or
    a comparison used as a value. Comparisons are asked for a Python truth only (the test of an if,
    a loop, an assertion or a comprehension), where a tensor of several elements raises."""
    tree = ast.parse(source)
    asked: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
            asked |= _truths(node.test)
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                asked |= _truths(test)
    found = []
    for node in ast.walk(tree):
        name = getattr(node, "id", getattr(node, "attr", getattr(node, "arg", None)))
        spelt = node.value if isinstance(node, ast.Constant) else None
        if isinstance(name, str) and (name in FORBIDDEN or "mask" in name.lower()):
            found.append(name)
        elif isinstance(spelt, str) and spelt.lower().strip("+-") in {"inf", "infinity"}:
            found.append(spelt)
        elif isinstance(node, ast.Compare) and node not in asked:
            found.append(ast.unparse(node))
    return found


def _truths(test: ast.expr) -> set[ast.AST]:
    """The test itself and what its and, or, not are made of."""
    if isinstance(test, ast.BoolOp):
        return {test}.union(*map(_truths, test.values))
    return {test} | (_truths(test.operand) if isinstance(test, ast.UnaryOp) else set())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_oracle_holds_anything_a_mask_is_made_of(file: Path) -> None:
    assert masks_in(file.read_text()) == []


def test_the_files_searched_are_the_oracles() -> None:
    names = {file.name for file in FILES}
    assert {"path.py", "path_naive.py", "rotary.py", "target_steps.py", "sequence.py"} <= names
    assert "traversal.py" not in names  # it walks through lists of numbers


@pytest.mark.parametrize(
    "source",
    [
        "s = torch.where(seen, s, 0)",
        "s = s.masked_fill(a, 0)",
        "s[~seen_mask] = 0",
        "s = s + s.new_ones(4, 4).triu(1)",
        "s = torch.full((2,), float('-inf'))",
        "s = torch.full((2,), -math.inf)",
        "s = s + torch.finfo(s.dtype).min",
        "s = s * (index <= t)",
        "s = s[index > t - w]",
        "seen = index.le(t)",
        "seen = index < t\nif x:\n    s = s * seen",
        "s = x if not (s * (a < b)).sum() else y",
        "p = sdpa(q, k, v, attn_mask=m)",
        "s = torch.zeros(4, dtype=torch.bool)",
    ],
)
def test_the_search_finds_a_mask(source: str) -> None:
    assert masks_in(source)


@pytest.mark.parametrize(
    "source",
    [
        "if low < high and not a == b:\n    pass",
        "x = [u for u in nodes if u > 0]",
        "keys = keys[-window:]",
        "while n < 4:\n    n += 1",
    ],
)
def test_the_search_leaves_python_truths_and_slices_alone(source: str) -> None:
    assert masks_in(source) == []
