"""Everything a backend does on one case, stage by stage, as evidence for a diagnosis.

A check lets what a build got wrong run on into the stages behind it. Here every stage is given what
a right build would have given it, so that evidence shows the stage at fault and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treeproof.backends import reference
from treeproof.contract.backend import BackendUnavailable
from treeproof.contract.capabilities import Capabilities
from treeproof.contract.case import MaskMode, VerifyCase
from treeproof.contract.failure import Failure
from treeproof.contract.inputs import VerifyInput
from treeproof.contract.registry import Backend
from treeproof.diagnosis.contract import REFUSALS
from treeproof.diagnosis.diagnose import wrong_groups
from treeproof.diagnosis.evidence import (
    KEPT,
    PADDED,
    STRANGE,
    Again,
    Attended,
    Commit,
    Group,
    KernelReads,
    Merged,
    Observation,
    TableReads,
    Walk,
    Writes,
    partly,
)
from treeproof.engine.checks.copies import copied
from treeproof.engine.checks.options import CheckOptions
from treeproof.engine.checks.outputs import unwritten_shows
from treeproof.engine.checks.prepared import prepare
from treeproof.engine.checks.related import first_taken, staged
from treeproof.engine.checks.stages import attend_call, build
from treeproof.engine.checks.stale import one_round
from treeproof.engine.checks.trial import Trial
from treeproof.engine.garble import garble
from treeproof.engine.mend import mended
from treeproof.generate.related import larger, twin
from treeproof.properties import contract
from treeproof.properties.bound import natural
from treeproof.properties.contract import same_rows
from treeproof.properties.declared import declarations
from treeproof.properties.merging import kept_dtype, parts
from treeproof.properties.probes import random_data
from treeproof.properties.probes.codes import sign_codes
from treeproof.properties.probes.launch import Launched, launch
from treeproof.properties.reading import Measured, measure
from treeproof.properties.scene import Scene
from treeproof.properties.violation import Violation, contract_failure

_ALL_KEYS = 512
"""Prefix keys of a case up to which every one of them is read by itself."""

_LINKS = (
    "retrieve_index", "retrieve_next_token", "retrieve_next_sibling", "retrieve_parent_token",
)  # fmt: skip


def observe(
    case: VerifyCase, backend: Backend, options: CheckOptions, *, again: bool = False
) -> Observation | None:
    """What `backend` does on `case`; None where the case is outside its capabilities, or the
    backend cannot run here. `again`: and what it does after other cases on the same object."""
    if backend.capabilities.refusal(case, options.device) is not None:
        return None
    trial = Trial(backend, options, prepare(case, options.device, options.leaves))
    found: dict[Group, Any] = {}
    try:
        _stages(trial, found, again=again)
    except BackendUnavailable:
        return None
    if options.in_flight is not None:
        options.in_flight("oracle")  # what follows is no stage of the backend's
    found["contract"] = _broken(trial)
    return Observation(case, found, backend.numerics, backend.capabilities, options.leaves)


def _broken(trial: Trial) -> frozenset[tuple[str, str, str]]:
    return frozenset(
        (failure.kind, failure.stage, _detail(failure))
        for failure in trial.failures
        if failure.identity == "contract"
    )


def _detail(failure: Failure) -> str:
    """Of an exception, whether it says no on purpose."""
    if failure.kind != "raises":
        return ""
    _, _, text = failure.message.partition(" raised ")
    return "refusal" if text.partition(":")[0] in REFUSALS else "error"


def _stages(trial: Trial, found: dict[Group, Any], *, again: bool) -> None:
    try:
        trial.instance = trial.call("plan", trial.backend.make)
    except Violation as violation:
        trial.broke(violation)
        return
    _of_object(trial, found)
    if again:
        try:
            _again(trial, found)
        except Violation as violation:
            trial.broke(violation)
    close = getattr(trial.instance, "close", None)
    if callable(close):
        try:
            trial.call("close", close)
        except Violation as violation:
            trial.broke(violation)


def _of_object(trial: Trial, found: dict[Group, Any]) -> None:
    """Every stage of the object at hand; one that breaks its contract ends no other."""
    try:
        x = _build(trial, found)
    except Violation as violation:
        trial.broke(violation)
        return
    groups: tuple[Callable[[], None], ...] = (
        lambda: _attend(trial, x, found),
        lambda: _merge(trial, found),
        lambda: _accept(trial, x, found),
        lambda: _commit(trial, x, found),
    )
    for group in groups:
        try:
            group()
        except Violation as violation:
            trial.broke(violation)


# --- build ---------------------------------------------------------------------------------------


def _build(trial: Trial, found: dict[Group, Any]) -> VerifyInput:
    """The backend's own fields as evidence, and the input with right ones in their place."""
    made = trial.prepared.candidates
    built = build(trial, trial.instance, trial.scene, made)
    if not built.produced:
        return built.x
    trial.produced = dict(built.produced)
    _fields(trial, found)
    read = trial.backend.consumes if trial.has("attend") else frozenset(built.produced)
    tables = {name: table for name, table in built.produced.items() if name in read}
    declared = _tables(trial, tables, built.x.mask_mode, "build")
    if declared:
        found["tables"] = tuple(declared)
    return mended(trial.scene, built.x, reference.build(copied(made)), built.produced)


def _fields(trial: Trial, found: dict[Group, Any]) -> None:
    produced, scene = trial.produced, trial.scene
    if "draft_token" in produced:
        tokens = produced["draft_token"].tolist()
        found["tokens"] = tuple(tokens[flat] for flat in scene.real)
    if "positions" in produced:
        found["positions"] = tuple(produced["positions"].tolist())
    if "out_cache_loc" in produced:
        free = {-1, scene.case.layout.pad_slot}
        found["slots"] = tuple(
            -1 if padded and slot in free else slot
            for slot, padded in zip(
                produced["out_cache_loc"].tolist(), scene.padding.tolist(), strict=True
            )
        )
    if "seq_lens" in produced:
        found["lengths"] = tuple(produced["seq_lens"].tolist())
    links = {
        name: tuple(map(tuple, produced[name].tolist())) for name in _LINKS if name in produced
    }
    if links:
        found["links"] = links


def _tables(trial: Trial, tables: Any, mode: MaskMode | None, stage: str) -> list[TableReads]:
    """Masks and lists; links are evidence of their own."""
    try:
        declared = declarations(trial.scene, tables, mode or trial.case.mask.mode)
    except (ValueError, IndexError, KeyError, TypeError) as error:
        message = f"tables of {stage} cannot be decoded: {type(error).__name__}: {error}"
        trial.broke(Violation(contract_failure("malformed-table", stage, message)))
        return []
    return [
        TableReads(
            f"{stage}: {declaration.form}",
            reading.request,
            reading.slots,
            reading.low,
            declaration.window_free,
            closed=declaration.form != "mask",
        )
        for declaration in declared
        if declaration.form not in ("links", "parent pointers")
        for reading in declaration.readings
    ]


# --- attend --------------------------------------------------------------------------------------


def _attend(trial: Trial, x: VerifyInput, found: dict[Group, Any]) -> None:
    if not trial.has("attend"):
        return
    found["attend"] = _launched(trial, trial.instance, x)


def _launched(trial: Trial, instance: Any, x: VerifyInput) -> Attended:
    attend, scene = attend_call(trial, instance, x), trial.scene
    seen = garble(x, trial.backend.consumes, trial.case.seed)
    with unwritten_shows():
        laid = random_data.contents(scene, x, trial.prepared.data, random_data.QUIET)
        done = launch(attend, scene, seen, laid, "random")
    complete = sum(r.prefix_len for r in scene.case.requests) <= _ALL_KEYS
    measured = measure(attend, scene, seen, complete=complete)
    return _attended(scene, done, measured, trial.backend.capabilities)


def _attended(
    scene: Scene, done: Launched, measured: Measured, capabilities: Capabilities
) -> Attended:
    real, lse = scene.real_index, done.attended.lse
    return Attended(
        reads=tuple(
            KernelReads(reading.request, reading.slots, reading.low, reading.high)
            for reading in measured.readings
        ),
        unowned=frozenset(measured.unowned),
        out=done.attended.out[real].double().cpu(),
        lse=None if lse is None else natural(lse[real], capabilities).cpu(),
        writes=_writes(scene, done),
    )


def _writes(scene: Scene, done: Launched) -> Writes:
    """Slots whose K or V changed, and the rows that they now hold."""
    k_rows, v_rows = _rows_by_bits(done.k_stored), _rows_by_bits(done.v_stored)
    padding = scene.padding.tolist()
    k_cache, v_cache = done.k_cache.cpu(), done.v_cache.cpu()
    k_before, v_before = done.k_before.cpu(), done.v_before.cpu()
    k_stored, v_stored = done.k_stored.cpu(), done.v_stored.cpu()
    k_kept, v_kept = same_rows(k_cache, k_before), same_rows(v_cache, v_before)

    def holder(
        kept: Tensor,
        cache: Tensor,
        before: Tensor,
        stored: Tensor,
        rows: dict[bytes, int],
        slot: int,
    ) -> int:
        if bool(kept[slot]):
            return KEPT
        row = rows.get(_bits(cache[slot]), STRANGE)
        if row == STRANGE:
            return _in_part(cache[slot], before[slot], stored)
        return PADDED if padding[row] else row

    changed = (~(k_kept & v_kept)).nonzero().flatten().tolist()
    return {
        slot: (
            holder(k_kept, k_cache, k_before, k_stored, k_rows, slot),
            holder(v_kept, v_cache, v_before, v_stored, v_rows, slot),
        )
        for slot in changed
        if slot != scene.case.layout.pad_slot
    }


def _slot_codes(slots: int, heads: int, width: int, salt: int, device: torch.device) -> Tensor:
    """(slots, heads, width): every slot's own, in each half of the lanes too where these are enough.

    Eight values a lane, which every type that a cache may have holds exactly.
    """
    half = width // 2
    if 8**half < slots:
        return sign_codes(slots, heads, width, salt, device)
    number = torch.arange(slots, device=device)[:, None, None]
    lane = torch.arange(width, device=device)
    head = torch.arange(heads, device=device)[:, None]
    digit = (number // 8 ** (lane % half).clamp(max=12) + head + salt) % 8
    return torch.where(digit < 4, 2.0**digit, -(2.0 ** (digit - 4)))


def _in_part(now: Tensor, before: Tensor, sources: Tensor) -> int:
    """`partly` of the source (n, heads, lanes) that some of the lanes or heads are from, where the
    others are as before; `STRANGE` where there is none."""
    for part in _parts(*now.shape):
        if not bool(part.all()) and _bits(now[~part]) == _bits(before[~part]):
            for i, source in enumerate(sources):
                if _bits(source[part]) == _bits(now[part]):
                    return partly(i)
    return STRANGE


def _parts(heads: int, lanes: int) -> Iterator[Tensor]:
    """(heads, lanes) bool: what is moved where a stride or a loop is cut short."""
    head, lane = torch.arange(heads)[:, None], torch.arange(lanes)[None]
    for part in (lane < lanes // 2, lane >= lanes // 2, head < 1, head >= 1, head < heads // 2):
        part = part.expand(heads, lanes)
        if bool(part.any()):
            yield part


def _rows_by_bits(rows: Tensor) -> dict[bytes, int]:
    return {_bits(row): flat for flat, row in enumerate(rows.cpu())}


def _bits(t: Tensor) -> bytes:
    """Of a tensor on the CPU."""
    return t.contiguous().view(torch.uint8).numpy().tobytes()


def _merge(trial: Trial, found: dict[Group, Any]) -> None:
    if not trial.has("merge"):
        return
    backend = trial.backend
    given = parts(trial.case, backend.numerics, backend.capabilities, trial.options.device)
    merge = trial.instance.merge
    result = trial.call("merge", merge, given.out_a, given.lse_a, given.out_b, given.lse_b)
    kept = {kept_dtype(trial.case, backend.numerics), trial.case.shape.dtype}
    out, lse = contract.valid_merged(result, given.out_a, kept)
    found["merge"] = Merged(out.double().cpu(), natural(lse, backend.capabilities).cpu())


def _again(trial: Trial, found: dict[Group, Any]) -> None:
    """After a larger batch, and after one of the same sizes, each on an object of its own."""
    seen = []
    for ways in (larger(trial.case), twin(trial.case)):
        earlier = first_taken(trial, ways)
        if earlier is None:
            continue
        after = Trial(trial.backend, trial.options, trial.prepared)
        now: dict[Group, Any] = {}
        after.instance = after.call("plan", trial.backend.make)
        one_round(after, after.instance, *staged(earlier, trial.options.device))
        _of_object(after, now)
        now["contract"] = _broken(after)
        seen.append(Again(earlier, now))
    if seen:
        wrong = frozenset(group for one in seen for group in _wrong(trial, one.found))
        found["again"] = tuple(replace(one, wrong=wrong) for one in seen)


def _wrong(trial: Trial, found: Mapping[Group, Any]) -> tuple[Group, ...]:
    able = trial.backend.capabilities
    return wrong_groups(
        Observation(trial.case, found, trial.backend.numerics, able, trial.options.leaves)
    )


# --- rounds --------------------------------------------------------------------------------------


def _accept(trial: Trial, x: VerifyInput, found: dict[Group, Any]) -> None:
    if not trial.has("accept"):
        return
    seen, rounds = garble(x, trial.backend.consumes, trial.case.seed), []
    for prediction in trial.prepared.rounds:
        target = torch.tensor(prediction.tokens, device=trial.scene.device)
        given = copied(seen), copied(target)
        result = trial.call("accept", trial.instance.accept, *given)
        for before, after in zip((seen, target), given, strict=True):
            trial.unchanged("accept", before, after)
        done = contract.valid_accepted(result, trial.scene, trial.prepared.candidates.spec_steps)
        rounds.append(
            tuple(
                Walk(_local(index, trial.case.qo_indptr[b]), length, _trimmed(tokens))
                for b, (index, length, tokens) in enumerate(
                    zip(
                        done.accept_index.tolist(),
                        done.accept_len.tolist(),
                        done.tokens.tolist(),
                        strict=True,
                    )
                )
            )
        )
    if not trial.borrows("accept"):
        found["accept"] = tuple(rounds)


def _local(index: list[int], first: int) -> tuple[int, ...]:
    return tuple(row if row == -1 else row - first for row in _trimmed(index))


def _trimmed(values: list[int]) -> tuple[int, ...]:
    """Without the -1 at its end."""
    end = len(values)
    while end and values[end - 1] == -1:
        end -= 1
    return tuple(values[:end])


def _commit(trial: Trial, x: VerifyInput, found: dict[Group, Any]) -> None:
    if not trial.has("commit"):
        return
    shape, slots, scene = trial.case.shape, trial.case.layout.num_slots, trial.scene
    before = tuple(
        _slot_codes(slots, shape.num_kv_heads, width, salt, scene.device).to(scene.stored_dtype)
        for width, salt in ((shape.head_dim, 3), (shape.v_head_dim, 4))
    )
    slot_of = [_rows_by_bits(cache) for cache in before]
    seen, rounds = garble(x, trial.backend.consumes, trial.case.seed), []
    for accepted in trial.prepared.accepted:
        after = tuple(cache.clone() for cache in before)
        given = copied(seen), copied(accepted)
        result = trial.call("commit", trial.instance.commit, *given, *after)
        trial.unchanged("commit", seen, given[0])
        trial.unchanged("commit", accepted, given[1])
        done = contract.valid_committed(result, scene)
        k, v = (
            np.array(
                [
                    names[_bits(row)] if _bits(row) in names else _in_part(row, was, first)
                    for row, was in zip(cache.cpu(), first, strict=True)
                ],
                dtype=np.int64,
            )
            for names, cache, first in zip(
                slot_of, after, (cache.cpu() for cache in before), strict=True
            )
        )
        rounds.append(Commit(k, v, tuple(done.seq_lens.tolist()), tuple(done.next_root.tolist())))
    if not trial.borrows("commit"):
        found["commit"] = tuple(rounds)
