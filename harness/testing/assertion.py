"""One tree, one backend, every probe: `assert_tree_attention`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from treeproof.contract.backend import Backend, BackendError, BackendUnavailable, describe
from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.case import (
    AttentionShape,
    Full,
    KVLayout,
    MaskLayout,
    Request,
    VerifyCase,
    Window,
)
from treeproof.contract.failure import OTHER_CASES, PROBES
from treeproof.engine.check import CheckOptions, check_case
from treeproof.engine.worker import device_name
from treeproof.testing.arguments import Lengths, Parents, mask_mode_of, page_size_of, requests_of
from treeproof.testing.subject import backend_of, word_for
from treeproof.testing.violated import violation

SPARE_PAGES = 4
"""Free pages beside those that the requests hold, so that reading a free slot shows."""


def assert_tree_attention(
    backend: object,
    parents: Parents = (-1, 0, 0),
    prefix: Lengths = 7,
    *,
    dtype: str = "float32",
    num_q_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 64,
    v_head_dim: int | None = None,
    window: int | None = None,
    rotary: float | None = None,
    page_size: int = 1,
    mask_mode: str = "FULL_MASK",
    device: str = "cpu",
    seed: int = 0,
    consumes: Iterable[str] | None = None,
    capabilities: Capabilities | None = None,
    numerics: Numerics | None = None,
) -> None:
    """Raise unless tree attention on this tree is right: all identities, this process.

    All probes look at it but those that launch other trees: a function may be right for this one.

    `backend` is an attend function `(x, q, k, v, k_cache, v_cache) -> Attended or out`, a class or
    object with stage methods, or the name or file of a registered backend. `parents[i]` is the
    parent of node i, -1 the root's; a list of such lists is a batch of one request each. `prefix`
    is the number of keys before the tree, for all requests or one each. Rows are in node order.
    `window` counts keys, the query's own included; `rotary` is the base of a rotary embedding.
    `consumes`, `capabilities` and `numerics` are as in `treeproof.register`, and win over what a
    registered backend says.

    Raises TreeAttentionError, of a class named after the failure, with the failure block as its
    message and `.failures` and `.case`; ValueError where an argument cannot be used or the case is
    outside the backend's capabilities; BackendUnavailable where it cannot run here.
    """
    given = {name: value for name, value in locals().items() if name not in _NOT_REPEATED}
    __tracebackhide__ = True  # pytest shows the caller's line
    known = _as_backend(backend, consumes, capabilities, numerics)
    shape = AttentionShape(
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim if v_head_dim is None else v_head_dim,
        dtype=dtype,
        rotary=rotary,
        visibility=Full() if window is None else Window(width=window),
    )
    case = _case(
        requests_of(parents, prefix, prefix_name="prefix"), shape, page_size, mask_mode, seed
    )
    _require_device(device)
    checked = check_case(case, known, CheckOptions(device=device, probes=_PROBES))
    refusals = {cell.reason for cell in checked.cells if cell.status == "unsupported"}
    if refusals:
        raise ValueError(
            f"this case is outside what {known.name} says it can do: {', '.join(sorted(refusals))}"
        )
    absent = {cell.reason for cell in checked.cells if cell.status == "unavailable"}
    if absent:
        raise BackendUnavailable(f"{known.name} cannot run here: {', '.join(sorted(absent))}")
    if checked.failures:
        raise violation(case, checked, replay=_call(backend, given))
    if not any(cell.status == "pass" and cell.identity != "contract" for cell in checked.cells):
        raise ValueError(f"{known.name} gives no evidence of any identity: nothing was checked")


_PROBES = frozenset(PROBES) - OTHER_CASES
_NOT_REPEATED = ("backend", "consumes", "capabilities", "numerics")


def _call(backend: object, given: dict[str, Any]) -> str:
    """The call that shows the failure again, defaults left out."""
    name = repr(str(backend)) if isinstance(backend, str | Path) else word_for(backend)
    defaults = inspect.signature(assert_tree_attention).parameters
    words = [f"parents={_plain(given.pop('parents'))}", f"prefix={_plain(given.pop('prefix'))}"]
    words += [f"{n}={value!r}" for n, value in given.items() if value != defaults[n].default]
    return f"treeproof.assert_tree_attention({name}, {', '.join(words)})"


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(map(_plain, value)) if isinstance(value, list | tuple | range) else value


def _as_backend(
    given: object,
    consumes: Iterable[str] | None,
    capabilities: Capabilities | None,
    numerics: Numerics | None,
) -> Backend:
    """The backend that was meant, with what the call says of it. Raises ValueError."""
    said = {"consumes": consumes, "capabilities": capabilities, "numerics": numerics}
    said = {name: value for name, value in said.items() if value is not None}
    try:
        known = backend_of(given)
        stated = describe(lambda: None, known.name, **said)  # type: ignore[arg-type]
    except BackendError as error:
        raise ValueError(f"backend: {error}") from None
    return replace(known, **{name: getattr(stated, name) for name in said})


def _case(
    requests: tuple[Request, ...], shape: AttentionShape, page_size: int, mask_mode: str, seed: int
) -> VerifyCase:
    held = sum(-(-(r.prefix_len + r.num_nodes) // page_size_of(page_size)) for r in requests)
    pages = 1 + held + SPARE_PAGES  # one for padding
    return VerifyCase(
        requests=requests,
        shape=shape,
        layout=KVLayout(page_size=page_size, num_slots=pages * page_size, order="shuffled"),
        mask=MaskLayout(mode=mask_mode_of(mask_mode)),
        seed=seed,
    )


def _require_device(device: str) -> None:
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}: accepted are cpu, cuda and cuda:0, cuda:1 …")
    if kind == "cuda":
        try:
            device_name(device)
        except BackendError as error:
            raise ValueError(str(error)) from None
