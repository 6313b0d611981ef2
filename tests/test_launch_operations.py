"""How many operations a launch asks of torch: with many requests hardly more than with few.

On a GPU each costs its 5 to 10 µs on the host, whatever its size, and a gate launches 128 requests at once.
"""

import importlib
from dataclasses import replace

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from treeproof.contract.case import AttentionShape, KVLayout, Request, VerifyCase
from treeproof.contract.failure import ATTENTION
from treeproof.contract.registry import load
from treeproof.contract.tree import CandidateTree
from treeproof.engine.check import CheckOptions, check_case
from treeproof.generate.cases import pages_of
from treeproof.generate.orders import row_of_node
from treeproof.generate.topologies import TOKEN_LAWS, grow, tokens_of

BATCHED = ("cascade", "direct-mask", "page-table", "swa-window", "topology")


class Counted(TorchDispatchMode):
    operations = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operations += 1
        return function(*args, **(kwargs or {}))


def batch(requests):
    """Trees of 4 to 9 rows behind prefixes of 3 and of 20 keys."""
    chosen = []
    for i in range(requests):
        parents = grow("random", 4 + i % 6, 3, i)
        tree = CandidateTree(tokens_of(parents, TOKEN_LAWS[0], i), parents)
        row_of = row_of_node(tree, "breadth-first", i + 1)
        chosen.append(Request(tree=tree, row_of_node=row_of, prefix_len=(3, 20)[i % 2]))
    pages = pages_of([r.prefix_len + len(r.tree) for r in chosen], 4, 0, 0)
    return VerifyCase(
        requests=tuple(chosen),
        shape=AttentionShape(
            num_q_heads=4, num_kv_heads=2, head_dim=16, v_head_dim=16, dtype="float32"
        ),
        layout=KVLayout(page_size=4, num_slots=4 * pages, order="shuffled"),
        seed=1,
    )


def most_operations(name, requests):
    backend, counts = load(name), []

    def make():
        instance = backend.make()
        attend = instance.attend

        def counted(*given):
            with Counted() as mode:
                result = attend(*given)
            counts.append(mode.operations)
            return result

        instance.attend = counted
        return instance

    options = CheckOptions(probes=ATTENTION)
    result = check_case(batch(requests), replace(backend, make=make), options)
    assert not result.failures, result.failures[0].message
    return max(counts)


@pytest.mark.parametrize("name", BATCHED)
def test_a_launch_of_64_requests_asks_torch_for_hardly_more_operations_than_one_of_8(
    name, monkeypatch
):
    module = importlib.import_module(f"treeproof.backends.{name.replace('-', '_')}")
    monkeypatch.setitem(module._GATHERED, "cpu", module._GATHERED["cuda"])
    few, many = most_operations(name, 8), most_operations(name, 64)
    assert 0 < few <= 200
    assert many <= few + 20


@pytest.mark.parametrize("gathered", [1, 1 << 13], ids=["one", "some"])
@pytest.mark.parametrize("name", BATCHED)
def test_a_launch_is_right_however_many_requests_are_computed_together(name, gathered, monkeypatch):
    module = importlib.import_module(f"treeproof.backends.{name.replace('-', '_')}")
    monkeypatch.setitem(module._GATHERED, "cpu", gathered)
    assert not check_case(batch(9), load(name), CheckOptions(probes=ATTENTION)).failures
