"""The list of backends: stages, limits in words, and the ones that cannot run."""

from __future__ import annotations

from dataclasses import replace

from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.registry import Backend, BackendError, BackendUnavailable
from treeproof.reports.backends_table import backend_lines, entries, in_words


def backend(name: str) -> Backend:
    return Backend(
        name=name,
        stages=frozenset({"attend", "build"}),
        consumes=frozenset(),
        capabilities=Capabilities(max_rows=64, windows=False),
        numerics=Numerics(),
        requires=(),
        make=object,
        source="",
        kernels=frozenset({"masked_attention"}),
    )


def test_no_limit_and_every_limit_in_words() -> None:
    everything = {"softcap": True, "sinks": True, "alibi": True}
    caches = frozenset({None, "int8", "float8_e4m3fn"})
    assert in_words(Capabilities(kv_dtypes=caches, **everything)) == "every case, on cpu and cuda"
    assert in_words(Capabilities(kv_dtypes=frozenset({None, "int8"}), **everything)) == (
        "caches in the dtype of the case int8, on cpu and cuda"
    )
    said_nothing = "no softcap, no sinks, no ALiBi, no quantised cache, on cpu and cuda"
    assert in_words(Capabilities()) == said_nothing
    limited = Capabilities(
        max_topk=1,
        max_rows=64,
        row_order="breadth-first",
        same_tree=True,
        ragged=False,
        pad_rows=False,
        empty_prefix=False,
        windows=False,
        gqa=False,
        rotary=False,
        custom_scale=False,
        kv_dtypes=frozenset({"int8"}),
        dtypes=frozenset({"float32"}),
        devices=frozenset({"cpu"}),
        head_dims=frozenset({64, 128}),
        page_sizes=frozenset({16, 1}),
        mask_modes=frozenset({"FULL_MASK"}),
        unfilled_prefix_mask=False,
        pad_slots=frozenset({0}),
    )
    assert in_words(limited) == (
        "no sliding windows, no grouped query heads, no rotary embedding, no softcap, no sinks, "
        "no ALiBi, no score scale of its own, caches in int8, no ragged batches, no padded rows, no empty prefixes, one tree a batch, breadth-first rows, "
        "at most 64 rows, at most 1 children of a node, head dims 64 128, page sizes 1 16, "
        "masks FULL_MASK, pad slot 0, no unfilled prefix cells of a mask, only float32, on cpu"
    )


def test_pairs_of_head_dims_are_listed_or_told_by_their_ends() -> None:
    few = Capabilities(head_dim_pairs={(64, 64), (128, 128), (192, 128)})
    assert "head dims 64 128 and 1 pairs of different ones" in in_words(few)
    many = Capabilities(head_dim_pairs={(8 * n, 8 * n) for n in range(1, 33)})
    assert "head dims 8 16 … 256, on" in in_words(many)
    every = Capabilities(head_dims=frozenset(range(16, 257)))
    assert "head dims 16 17 … 256, on" in in_words(every)


def test_the_note_of_a_backend_is_printed() -> None:
    noted = replace(backend("mine"), note="untested on hardware")

    assert backend_lines(entries({"mine": "m"}, lambda name: noted))[-1] == (
        "  note    untested on hardware"
    )


def test_what_cannot_be_loaded_is_said_and_hinders_no_other() -> None:
    def load(name: str) -> Backend:
        if name == "missing":
            raise BackendUnavailable("package sglang is not installed; pip install sglang")
        if name == "wrong":
            raise BackendError("backend wrong: unknown stage merge")
        if name == "old":
            raise RuntimeError("built for another torch")
        return backend(name)

    known = {"good": "m.good", "missing": "m.missing", "old": "m.old", "wrong": "m.wrong"}
    assert backend_lines(entries(known, load)) == [
        "good  (m.good)",
        "  stages  build attend",
        "  runs    masked_attention",
        "  takes   no sliding windows, no softcap, no sinks, no ALiBi, no quantised cache, at most 64",
        "          rows, on cpu and cuda",
        "",
        "missing",
        "  unavailable: package sglang is not installed; pip install sglang",
        "",
        "old",
        "  broken: importing m.old raises RuntimeError: built for another torch",
        "",
        "wrong",
        "  broken: backend wrong: unknown stage merge",
    ]
