"""Five backends, nothing in common: no shared helper, and one rows x keys tensor at most among them."""

import ast
import importlib
import inspect
from dataclasses import replace

import pytest
import torch
from backend_scene import BACKENDS, SITUATIONS, Scene
from torch.utils._python_dispatch import TorchDispatchMode

from treeproof.contract.registry import load

ALLOWED = (
    "__future__",
    "array",
    "collections",
    "itertools",
    "torch",
    "typing",
    "treeproof.contract",
)
STORE = "treeproof.backends.reference.store"
OWN = {"topology": ("sampled_walk", "linked_logits", "served_run")}
"""Further files of a backend, that no other has a part in."""


def module_of(name):
    return importlib.import_module(f"treeproof.backends.{name.replace('-', '_')}")


def imported(name):
    for node in ast.walk(ast.parse(inspect.getsource(module_of(name)))):
        if isinstance(node, ast.ImportFrom):
            yield node.module, [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_shares_nothing_but_torch_and_the_store(name):
    for module, names in imported(name):
        if module == STORE:
            assert names == ["store_kv"]
        elif module.removeprefix("treeproof.backends.") in OWN.get(name, ()):
            continue
        else:
            assert any(module == a or module.startswith(a + ".") for a in ALLOWED), module


def test_no_two_backends_hold_the_same_function_body():
    owners = {}
    for name in BACKENDS:
        for node in ast.walk(ast.parse(inspect.getsource(module_of(name)))):
            if isinstance(node, ast.FunctionDef) and len(node.body) > 2:
                body = "".join(ast.unparse(line) for line in node.body[1:])
                assert body not in owners, (node.name, name, owners.get(body))
                owners[body] = name


class Shapes(TorchDispatchMode):
    """Shapes of all tensors that torch makes."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor):
                self.seen.add(tuple(tensor.shape))
        return made


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("name", BACKENDS)
def test_only_direct_mask_holds_a_rows_by_keys_tensor(name, window):
    situation = replace(SITUATIONS["one-deep-tree"], prefixes=(26,), window=window)
    scene, backend = Scene(situation), load(name).make()
    x = backend.build(scene.candidates())
    rows, tree_keys, keys = 12, 12, 26 + 12
    if window is not None:
        keys = window - 1 + 12  # the root's window is the first to begin
    with Shapes() as shapes:
        scene.attend(backend, x)
    holds = any(rows in shape and keys in shape for shape in shapes.seen)
    square = any(shape[-2:] == (rows, tree_keys) for shape in shapes.seen)
    assert (holds, square) == ((True, True) if name == "direct-mask" else (False, False))


@pytest.mark.parametrize("name", BACKENDS)
def test_what_a_backend_declares_of_itself_is_what_it_does(name):
    info = load(name)
    merges = {"merge"} if name == "cascade" else set()
    samples = {"process", "sample", "finish"} if name == "topology" else set()
    assert info.stages == {"build", "attend", "accept", "commit"} | merges | samples
    assert (info.numerics.p, info.numerics.mul, info.numerics.v) == ("float32",) * 3
    assert info.numerics.merges == (1 if name == "cascade" else 0)
    assert "positions" not in info.consumes
    assert "retrieve_parent_token" not in info.consumes


@pytest.mark.parametrize("label", ["ragged-batch", "bit-packed", "full-mask", "evicted-pages"])
@pytest.mark.parametrize("name", [*BACKENDS, "reference"])
def test_no_stage_leaves_the_device_of_its_inputs(name, label):
    """A tensor made without naming a device would be a meta tensor here, and could not be mixed."""
    scene, backend = Scene(SITUATIONS[label]), load(name).make()
    c, predicted = scene.candidates(), torch.arange(scene.case.num_rows)
    caches = scene.k_cache.clone(), scene.v_cache.clone()
    with torch.device("meta"):
        x = backend.build(c)
        made = [t for t in vars(x).values() if isinstance(t, torch.Tensor)]
        if name != "reference":
            attended = backend.attend(x, scene.rows_q, scene.rows_k, scene.rows_v, *caches)
            made += [attended.out, attended.lse]
        accepted = backend.accept(x, predicted)
        made += [accepted.accept_index, accepted.accept_len, accepted.tokens]
        made += vars(backend.commit(x, accepted, *caches)).values()
    assert {tensor.device.type for tensor in made} == {"cpu"}


@pytest.mark.parametrize("name", BACKENDS)
def test_the_same_launch_twice_gives_the_same_bits_and_leaves_its_inputs_alone(name):
    scene, backend = Scene(SITUATIONS["padded-rows"]), load(name).make()
    x = backend.build(scene.candidates())
    before = {f: t.clone() for f, t in vars(x).items() if isinstance(t, torch.Tensor)}
    q, k, v = scene.rows_q.clone(), scene.rows_k.clone(), scene.rows_v.clone()
    first, second = (
        backend.attend(x, q, k, v, scene.k_cache.clone(), scene.v_cache.clone()) for _ in range(2)
    )
    assert torch.equal(first.out, second.out)
    assert torch.equal(first.lse, second.lse)
    assert torch.equal(q, scene.rows_q)
    assert torch.equal(k, scene.rows_k)
    assert torch.equal(v, scene.rows_v)
    assert all(torch.equal(tensor, getattr(x, field)) for field, tensor in before.items())
