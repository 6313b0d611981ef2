"""One launch of a backend's attend on chosen contents of the KV cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from treeproof.contract.inputs import Attended, VerifyInput
from treeproof.generate.layer import neutral
from treeproof.properties.contract import (
    Finite,
    largest,
    no_numbers,
    not_finite,
    valid_attended,
)
from treeproof.properties.probes.quantised import codes, decoded
from treeproof.properties.probes.storage import Caches
from treeproof.properties.scene import Scene

AttendCall = Callable[[VerifyInput, Tensor, Tensor, Tensor, Tensor, Tensor], Any]


@dataclass(frozen=True)
class Contents:
    """What every slot holds once the verify rows are written, and what the rows ask.

    `q` (T, Hq, D); `k` (num_slots, Hkv, D); `v` (num_slots, Hkv, Dv). `stale_k`, `stale_v` (one
    slot's worth, broadcast) lie in the tree's own slots before the launch writes them, and are the
    K and V of padded rows: whoever reads either shows it. All in the case's dtype; a quantised cache
    gets the nearest codes.

    Unless `own_layer`, the launch has no sink that counts, no slope, and codes that are the values
    themselves, so that chosen numbers mean what they were chosen for. A softcap stays.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    stale_k: Tensor
    stale_v: Tensor
    own_layer: bool = False


@dataclass(frozen=True)
class Launched:
    """What a launch gave, and its arguments afterwards.

    `k_given`, `v_given` (T, ...): the rows' K and V as they were handed over. `k_stored`, `v_stored`
    (T, ...): what their slots must hold then. `*_before`: the caches as they were.
    """

    attended: Attended
    q: Tensor
    k: Tensor
    v: Tensor
    k_given: Tensor
    v_given: Tensor
    k_stored: Tensor
    v_stored: Tensor
    k_before: Tensor
    v_before: Tensor
    k_cache: Tensor
    v_cache: Tensor
    strayed: tuple[int, ...] = ()
    """Slots at which the memory of another layer was written."""


def launch(
    attend: AttendCall, scene: Scene, x: VerifyInput, contents: Contents, probe: str
) -> Launched:
    """Fill fresh caches, call attend once, check shapes and that real rows are finite."""
    done, finite = launched(attend, scene, x, contents, probe)
    finite.require()
    return done


def launched(
    attend: AttendCall, scene: Scene, x: VerifyInput, contents: Contents, probe: str
) -> tuple[Launched, Finite]:
    """`launch`, but that real rows are finite is still to be required."""
    x, k, v = _prepared(scene, x, contents)
    given = _given(scene, x, contents, k, v)
    q, k_rows, v_rows, caches = given.q, given.k, given.v, given.caches
    attended = valid_attended(attend(x, q, k_rows, v_rows, caches.k, caches.v), scene)
    finite = Finite(not_finite(attended.out, scene), scene, probe)
    # A kernel may write every launch into one buffer of its own (a captured graph does).
    lse = None if attended.lse is None else attended.lse.clone()
    attended = replace(attended, out=attended.out.clone(), lse=lse)
    done = Launched(
        attended, q, k_rows, v_rows, k.given, v.given, k.stored, v.stored,
        k.before, v.before, *caches.by_slot(), caches.strayed(),
    )  # fmt: skip
    return done, finite


@dataclass(frozen=True)
class Arguments:
    """What a launch is handed: its input, rows `q` (T, Hq, D), `k` and `v` (T, Hkv, lanes), and caches."""

    x: VerifyInput
    q: Tensor
    k: Tensor
    v: Tensor
    caches: Caches

    @classmethod
    def of(cls, scene: Scene, x: VerifyInput, contents: Contents) -> Arguments:
        x, k, v = _prepared(scene, x, contents)
        return _given(scene, x, contents, k, v)


class Outputs:
    """The output (T, Hq, Dv) of one launch of each contents, good until the next one.

    What a launch does to its arguments is not looked at. Whether all outputs were finite, `finite` says
    after the last.
    """

    finite: Finite

    def __init__(
        self,
        attend: AttendCall,
        scene: Scene,
        x: VerifyInput,
        each: Iterable[Contents],
        probe: str,
    ) -> None:
        self._attend, self._scene, self._x = attend, scene, x
        self._each, self._probe = each, probe

    def __iter__(self) -> Iterator[Tensor]:
        scene = self._scene
        sizes: list[Tensor] = []
        for contents in self._each:
            told, k, v = _prepared(scene, self._x, contents)
            rows = contents.q.clone(), k.given.clone(), v.given.clone()
            caches = _held(scene, k, v, k.before, v.before)
            result = self._attend(told, *rows, caches.k, caches.v)
            out = valid_attended(result, scene).out
            sizes.append(largest(out))
            yield out
        self.finite = Finite(no_numbers(torch.stack(sizes).amax(0), scene), scene, self._probe)


def _prepared(scene: Scene, x: VerifyInput, contents: Contents) -> tuple[VerifyInput, _Laid, _Laid]:
    """What a launch is told of its layer, and its K and V."""
    layer = scene.layer
    if not contents.own_layer:
        layer = neutral(layer)
        neutrals = {name: given for name, given in vars(layer).items() if given is not None}
        x = replace(x, **neutrals) if neutrals else x
    k = _laid(scene, contents.k, contents.stale_k, layer.k_scale)
    return x, k, _laid(scene, contents.v, contents.stale_v, layer.v_scale)


def _given(scene: Scene, x: VerifyInput, contents: Contents, k: _Laid, v: _Laid) -> Arguments:
    caches = _held(scene, k, v, k.before.clone(), v.before.clone())
    return Arguments(x, contents.q.clone(), k.given.clone(), v.given.clone(), caches)


@dataclass(frozen=True)
class _Laid:
    """`before` (num_slots, Hkv, lanes): the cache before the launch. `given`, `stored` (T, Hkv,
    lanes): the rows' own numbers, and what they are to be stored as. `stale` (Hkv, lanes), as it is
    stored."""

    before: Tensor
    given: Tensor
    stored: Tensor
    stale: Tensor


def _held(scene: Scene, k: _Laid, v: _Laid, k_cache: Tensor, v_cache: Tensor) -> Caches:
    """The caches as the backend gets them; what is stale lies in the layers beside them, too."""
    return Caches.laid(scene.case.layout, k_cache, v_cache, k.stale, v.stale)


def _laid(scene: Scene, held: Tensor, stale: Tensor, scale: Tensor | None) -> _Laid:
    """`held` (num_slots, Hkv, lanes). Under a quantised cache the rows get the numbers of their codes,
    in the case's dtype, so that there is one nearest code for each however it is looked for.
    """
    stored, stale = held, stale.to(held.dtype)
    if scale is not None:
        stored, stale = (
            codes(held, scale, scene.stored_dtype),
            codes(stale, scale, scene.stored_dtype),
        )
    rows = stored.index_select(0, scene.home)
    if len(scene.real) < scene.num_rows:
        _fill_(rows, scene.padded_index, stale)
    before = stored.clone()
    _fill_(before, scene.tree_slots, stale)
    given = rows if scale is None else decoded(rows, scale).to(held.dtype)
    return _Laid(before, given, rows, stale)


def _fill_(held: Tensor, index: Tensor, stale: Tensor) -> None:
    """Rows `index` (n,) of `held` (..., Hkv, lanes) become `stale` (Hkv, lanes)."""
    if held.element_size() == 1:  # not all devices copy rows of float8
        held, stale = held.view(torch.int8), stale.view(torch.int8)
    held.index_copy_(0, index, stale.expand(len(index), *stale.shape))


def zeros(scene: Scene, width: int) -> Tensor:
    """(num_slots, Hkv, width) of zeros in the case's dtype."""
    return torch.zeros(
        scene.case.layout.num_slots,
        scene.case.shape.num_kv_heads,
        width,
        dtype=scene.dtype,
        device=scene.device,
    )
