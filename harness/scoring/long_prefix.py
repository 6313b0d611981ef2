"""Faults behind a long prefix, where one key among thousands moves an output by next to nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import torch

from treeproof.backends import reference
from treeproof.contract.case import Request, VerifyCase
from treeproof.contract.registry import Backend, load
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.prepared import prepare
from treeproof.engine.simplify import with_request, with_shape
from treeproof.properties.contract import valid_built
from treeproof.properties.probes import random_data
from treeproof.properties.probes.launch import launch
from treeproof.properties.violation import Violation
from treeproof.scoring.kill import catches
from treeproof.scoring.pairs import Pair

LENGTHS = (16, 512, 4096, 32_768, 131_072)
TOLERANCE = 2e-2
"""Absolute and relative, as kernels in bfloat16 are commonly compared."""


@dataclass(frozen=True)
class Noticed:
    """What was noticed of one fault at one prefix length."""

    pair: Pair
    prefix: int
    caught: bool
    """By the check that the fault names."""
    by_tolerance: bool
    """By `allclose` of random data at TOLERANCE, or because the launch raised."""


def notice(pair: Pair, prefix: int) -> Noticed:
    """The smallest case of the fault behind a prefix of this length, in bfloat16."""
    case = stretched(pair.fault.smallest, prefix)
    planted = pair.fault.into(load(pair.backend))
    unfit = planted.capabilities.refusal(case, "cpu")
    if unfit is not None:
        raise ValueError(f"{pair.fault.name} in {pair.backend} behind {prefix} keys: {unfit}")
    caught = catches(pair.fault, check_case(case, planted, CheckOptions())) is not None
    return Noticed(pair, prefix, caught, not within_tolerance(case, planted))


def stretched(case: VerifyCase, prefix: int) -> VerifyCase:
    """The case with every prefix longer by so many keys, in bfloat16, with heads people serve.

    A window grows by half of them, so that it still cuts, among thousands of keys.
    """
    shape = {
        "dtype": "bfloat16",
        "head_dim": max(64, case.shape.head_dim),
        "v_head_dim": max(64, case.shape.v_head_dim),
    }
    longer = with_shape(case, **shape)
    for b, request in enumerate(case.requests):
        longer = with_request(longer, b, _longer(request, prefix))
    window = case.shape.window
    if window is not None:
        width = msgspec.structs.replace(case.shape.visibility, width=window + prefix // 2)
        longer = with_shape(longer, visibility=width)
    return longer


def _longer(request: Request, by: int) -> Request:
    length = request.prefix_len + by
    return msgspec.structs.replace(request, prefix_len=length, prefix_tokens=())


def within_tolerance(case: VerifyCase, backend: Backend) -> bool:
    """What a test of random data against a reference says: all outputs within TOLERANCE.

    Only `attend` is run, after the backend's own build where it has one.
    """
    prepared = prepare(case, "cpu", 1)
    scene, instance = prepared.scene, backend.make()
    x = reference.build(copied(prepared.candidates))
    if "build" in backend.stages:
        built = instance.build(copied(prepared.candidates))
        x = replace(x, **valid_built(built, scene))
    x = replace(x, **vars(scene.layer))
    laid = random_data.contents(scene, x, prepared.data, random_data.QUIET)
    try:
        out = launch(instance.attend, scene, x, laid, "random").attended.out.double()
    except (Violation, RuntimeError, ValueError, IndexError):
        return False
    return torch.allclose(out[scene.node_rows], prepared.truth.out, rtol=TOLERANCE, atol=TOLERANCE)
