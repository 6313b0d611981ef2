"""Outside its limits a backend says no, and has changed nothing; or, but for trees, it is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from treeproof.contract.backend import Backend, describe
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import VerifyCase
from treeproof.contract.failure import PROBES, Failure
from treeproof.contract.inputs import Attended, Candidates, VerifyInput
from treeproof.contract.registry import load
from treeproof.engine.check import check_case
from treeproof.engine.checks.options import CheckOptions
from treeproof.faults.catalog import exactly
from treeproof.faults.plant import wrapped
from treeproof.faults.smallest import case, request
from treeproof.generate.beyond import beyond

CHAINS = case(request((-1, 0, 1), prefix=3), spare_pages=2)
ONLY_GUARD = CheckOptions(probes=frozenset({"guard"}))
RIGHT = load("direct-mask")


def limited(backend: Backend = RIGHT, **limits: Any) -> Backend:
    return replace(backend, capabilities=Capabilities(**limits))


def seen(
    backend: Backend, of: VerifyCase = CHAINS, options: CheckOptions = ONLY_GUARD
) -> tuple[Failure, ...]:
    return check_case(of, backend, options).failures


def refusing(
    stage: str, is_beyond: Callable[[Any], bool], backend: Backend, then: Any = None
) -> Backend:
    """The stage raises where its input is beyond; `then` is done before."""

    def around(right: Callable[..., Any], x: Any, *rest: Any) -> Any:
        if is_beyond(x):
            if then is not None:
                then(x, *rest)
            raise ValueError("this is outside what can be done")
        return right(x, *rest)

    return wrapped(backend, stage, around)


def branches(x: VerifyInput) -> bool:
    return bool((x.retrieve_next_sibling >= 0).any())


def forks(c: Candidates) -> bool:
    return c.topk > 1


CHAIN_ONLY = limited(
    replace(RIGHT, consumes=RIGHT.consumes | {"retrieve_next_sibling"}), max_topk=1
)


@pytest.mark.parametrize(
    "backend", [refusing("attend", branches, CHAIN_ONLY), refusing("build", forks, CHAIN_ONLY)]
)
def test_a_backend_for_chains_that_refuses_a_tree_has_nothing_to_be_told(backend: Backend) -> None:
    checked = check_case(CHAINS, backend, CheckOptions())
    assert checked.failures == ()
    assert ("contract", "pass") in {(cell.identity, cell.status) for cell in checked.cells}


def test_a_backend_for_chains_that_takes_a_tree_fails_even_where_it_is_right() -> None:
    (failure,) = seen(CHAIN_ONLY)
    assert (failure.identity, failure.kind, failure.stage) == ("contract", "not-refused", "attend")
    assert failure.message == "outside its capabilities is topk 2, and attend does not refuse it"


def test_only_the_guard_sees_causal_attention_of_a_backend_for_chains() -> None:
    planted = exactly("chains-not-guarded.causal").into(RIGHT)
    assert {f.key for f in seen(planted)} == {("contract", "not-refused")}
    every_other = CheckOptions(probes=frozenset(PROBES) - {"guard"})
    assert seen(planted, options=every_other) == ()


@pytest.mark.parametrize("what", ["k", "k_cache", "v_cache", "its input"])
def test_a_refusal_that_comes_too_late_says_what_is_changed(what: str) -> None:
    def spoil(x: VerifyInput, q: Tensor, k: Tensor, v: Tensor, kc: Tensor, vc: Tensor) -> None:
        {"k": k, "k_cache": kc, "v_cache": vc, "its input": x.seq_lens}[what].add_(1)

    (failure,) = seen(refusing("attend", branches, CHAIN_ONLY, spoil))
    assert (failure.kind, failure.stage) == ("refused-late", "attend")
    assert failure.message == f"attend refuses topk 2, and has changed {what}"


def test_a_build_that_refuses_a_tree_may_have_cleared_its_mask_and_nothing_else() -> None:
    def clear(c: Candidates) -> None:
        c.mask_buffer.zero_()

    def forget(c: Candidates) -> None:
        c.seq_lens.zero_()

    assert seen(refusing("build", forks, CHAIN_ONLY, clear)) == ()
    (failure,) = seen(refusing("build", forks, CHAIN_ONLY, forget))
    assert failure.message == "build refuses topk 2, and has changed candidates"


class Walks:
    """An acceptance alone."""

    def accept(self, x: VerifyInput, predicted: Tensor) -> Any:
        return load("topology").make().accept(x, predicted)


class WalksChains(Walks):
    def accept(self, x: VerifyInput, predicted: Tensor) -> Any:
        if branches(x):
            raise ValueError("a row has a sibling")
        return super().accept(x, predicted)


def test_an_acceptance_of_chains_is_asked_by_itself() -> None:
    walks, chains = (
        describe(made, "mine", capabilities=Capabilities(max_topk=1))
        for made in (Walks, WalksChains)
    )
    (failure,) = seen(walks)
    assert (failure.kind, failure.stage) == ("not-refused", "accept")
    assert seen(chains) == ()


def test_more_rows_than_declared_may_be_refused_or_right_and_not_wrong() -> None:
    limit = limited(max_rows=4)
    assert seen(limit) == ()
    assert seen(refusing("attend", lambda x: len(x.draft_token) > 4, limit)) == ()

    def four_rows(right: Callable[..., Attended], x: VerifyInput, *tensors: Tensor) -> Attended:
        done = right(x, *tensors)
        done.out[4:] = 0
        return done

    (failure,) = seen(wrapped(limit, "attend", four_rows))
    assert failure.kind == "not-refused"
    assert failure.message.startswith(
        "outside its capabilities is 5 rows in a request, and attend does not refuse it: "
    )


def test_pages_of_another_size_may_be_refused_or_right_and_not_wrong() -> None:
    limit = limited(page_sizes={1, 2})
    assert seen(limit) == ()
    assert seen(refusing("attend", lambda x: x.kv.page_size > 2, limit)) == ()

    def first_slots(right: Callable[..., Attended], x: VerifyInput, *tensors: Tensor) -> Attended:
        if x.kv.page_size > 2:
            x = replace(x, req_to_token=x.req_to_token // x.kv.page_size * x.kv.page_size)
        return right(x, *tensors)

    (failure,) = seen(wrapped(limit, "attend", first_slots))
    assert failure.message.startswith("outside its capabilities is page size 4, and attend does")


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({}, []),
        ({"max_topk": 1}, [("max_topk", "topk 2")]),
        ({"max_topk": 1, "max_rows": 2}, [("max_rows", "3 rows in a request")]),
        (
            {"max_topk": 3, "page_sizes": {1}},
            [("max_topk", "topk 4"), ("page_sizes", "page size 2")],
        ),
        ({"max_rows": 128}, []),
        ({"page_sizes": {1, 2, 4, 8, 16, 32, 64, 128}}, []),
    ],
)
def test_a_case_is_outside_one_limit_and_inside_all_others(
    limits: dict[str, Any], found: list[tuple[str, str]]
) -> None:
    able = Capabilities(**limits)
    made = list(beyond(CHAINS, able, "cpu"))
    assert [(one.limit, one.says) for one in made] == found
    assert all(able.refusal(one.case, "cpu") for one in made)
    assert all(one.lifted.refusal(one.case, "cpu") is None for one in made)


def test_a_device_that_breaks_down_has_not_refused() -> None:
    def broken(x: VerifyInput, *tensors: Tensor) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    found = check_case(CHAINS, refusing("attend", branches, CHAIN_ONLY, broken), ONLY_GUARD)
    assert {f.key for f in found.failures} == {("contract", "raises")}
