"""Captured launches on a GPU: right backends replay rightly, and what one keeps of its capture is named.

    python ci/gpu_replay.py [BACKEND...] [--out FOLDER] [--device cuda] [--at-once 4]

Each backend is captured in a CUDA graph on one batch and replayed on others, on cases by hand: prefixes of
0 to 1,000 keys, padded rows, fewer requests, other trees. Then, one after another, each field that its
launch reads is kept as it was at capture, padded rows keep theirs, and the launch asks the device for a
number; every one of these must be found, under its own name, and the right backend must pass after it. Takes
less than a minute, most of it compiling. Writes `replay.json` into the folder.

Exits 1 where a right backend fails, a fault is not found or goes by another name, and 3 where a backend
that was named did not run to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from treeproof.contract.backend import Backend, BackendUnavailable
from treeproof.contract.case import VerifyCase
from treeproof.contract.registry import load

OURS = tuple(
    f"triton-{name}" for name in ("direct-mask", "cascade", "page-table", "swa-window", "topology")
)
BACKENDS = (*OURS, "fa3-page-table", "page-table", "sdpa-direct-mask")
SECONDS = 55.0
"""For one backend, importing and compiling included."""

READ = {
    "triton-direct-mask": (
        "seq_lens", "req_to_token", "custom_mask", "mask_indptr", "positions", "out_cache_loc",
    ),
    "triton-topology": ("seq_lens", "req_to_token", "retrieve_parent_token", "out_cache_loc"),
    "triton-cascade": (
        "page_table", "cache_seqlens", "kv_indptr", "kv_indices", "kv_start", "out_cache_loc",
    ),
    "triton-page-table": (
        "page_table", "cache_seqlens", "kv_indptr", "kv_indices", "kv_start", "out_cache_loc",
    ),
    "triton-swa-window": ("kv_indptr", "kv_indices", "kv_start", "out_cache_loc"),
    "fa3-page-table": (
        "custom_mask", "mask_indptr", "kv_indptr", "kv_indices", "positions", "out_cache_loc",
    ),
    "page-table": ("page_table", "cache_seqlens", "out_cache_loc"),
    "sdpa-direct-mask": (
        "custom_mask", "mask_indptr", "kv_indptr", "kv_indices", "positions", "out_cache_loc",
    ),
}  # fmt: skip
"""Fields whose values a launch of the backend depends on."""

NAMED = {
    "seq_lens": "captured-lengths", "cache_seqlens": "captured-lengths",
    "custom_mask": "captured-mask", "mask_indptr": "captured-mask",
    "positions": "captured-positions", "out_cache_loc": "captured-slots",
    "retrieve_parent_token": "captured-links", "req_to_token": "captured-tables",
    "page_table": "captured-tables", "kv_indptr": "captured-tables",
    "kv_indices": "captured-tables", "kv_start": "captured-tables",
    "padding": "captured-slots", "asks": "not-capturable",
}  # fmt: skip
"""The kind that each must be found as."""

OF_WINDOWS = ("positions", "kv_start")


def cases(device: str) -> dict[str, VerifyCase]:
    """All of one head width, page size and dtype, so that each kernel is compiled once."""
    from treeproof.faults.smallest import CHAIN, FORK, case, request

    twigs = (-1, 0, 0, 1, 1, 2, 4)
    like: dict[str, Any] = {
        "heads": (8, 2), "head_dims": (64, 64), "page_size": 16,
        # Triton's interpreter knows no bfloat16.
        "dtype": "bfloat16" if device == "cuda" else "float32",
        "layout": {"order": "shuffled"}, "spare_pages": 3,
    }  # fmt: skip
    child_first = request((-1, 0, 1, 2, 0), prefix=20, rows=(0, 3, 2, 1, 4))
    return {
        "two trees": case(request(twigs, prefix=37, pad_rows=2), request(FORK, prefix=5), **like),
        "no prefix": case(request(CHAIN), request(twigs), **like),
        "a long prefix": case(request(twigs, prefix=1000), **like),
        "one node": case(request(prefix=16), **like),
        "a window": case(child_first, request(twigs, prefix=3), window=3, **like),
    }


def faults(backend: Backend) -> Iterator[tuple[str, Backend]]:
    from treeproof.faults.captured import FAULTS, frozen

    for field in READ[backend.name]:
        yield field, frozen(field)(backend)
    planted = {fault.name: fault for fault in FAULTS}
    yield "padding", planted["baked-at-capture.padding"].plant(backend)
    yield "asks", planted["host-decides"].plant(backend)


def tried(name: str, device: str) -> dict[str, Any]:
    """What one backend shows, right and with each fault."""
    from treeproof.engine.check import CheckOptions, check_case

    start = time.perf_counter()
    try:
        backend = load(name)
    except BackendUnavailable as error:
        return {"backend": name, "state": f"unavailable: {error}"}
    options = CheckOptions(device=device, probes=frozenset({"captured"}))
    tried_on = cases(device)

    def kinds(planted: Backend, case: VerifyCase) -> list[str]:
        checked = check_case(case, planted, options)
        refused = [cell.reason for cell in checked.cells if cell.status == "unsupported"]
        return refused[:1] or [f"{f.kind}: {f.message}" for f in checked.failures]

    right = {label: kinds(backend, case) for label, case in tried_on.items()}
    compiled = time.perf_counter() - start
    found = {}
    for label, planted in faults(backend):
        case = tried_on["a window" if label in OF_WINDOWS else "two trees"]
        found[label] = kinds(planted, case)
    after = kinds(backend, tried_on["two trees"])
    return {
        "backend": name,
        "state": "tried",
        "seconds": round(time.perf_counter() - start, 1),
        "until_compiled": round(compiled, 1),
        "right": right,
        "after_the_faults": after,
        "faults": found,
    }


def wrong(one: dict[str, Any]) -> list[str]:
    """What is not as it must be."""
    if one["state"] != "tried":
        return []
    said = [f"right on {label}: {text}" for label, (text, *_) in _some(one["right"])]
    said += [f"right after the faults: {text}" for text in one["after_the_faults"]]
    for label, texts in one["faults"].items():
        kinds = {text.partition(":")[0] for text in texts}
        if kinds != {NAMED[label]}:
            said.append(f"{label} kept: {', '.join(texts) or 'not found'}; expected {NAMED[label]}")
    return said


def _some(of: dict[str, list[str]]) -> Iterator[tuple[str, list[str]]]:
    return ((label, texts) for label, texts in of.items() if texts)


def in_its_own_process(name: str, device: str) -> dict[str, Any]:
    """A fault of memory ends the process of one backend, and not the others'."""
    command = [sys.executable, __file__, "--one", name, "--device", device]
    environment = dict(os.environ)
    if device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return {"backend": name, "state": f"did not end in {SECONDS:g} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"backend": name, "state": f"exit code {done.returncode}: {done.stderr[-1500:]}"}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def shown(one: dict[str, Any]) -> str:
    if one["state"] != "tried":
        return f"{one['backend']}: {one['state']}"
    right = sum(not texts for texts in one["right"].values())
    named = sum(bool(texts) for texts in one["faults"].values())
    text = (
        f"{one['backend']}: right on {right} of {len(one['right'])} cases, "
        f"{named} of {len(one['faults'])} faults found, {one['seconds']} s"
    )
    return "\n    ".join([text, *wrong(one)])


def main() -> int:
    parser = argparse.ArgumentParser(description="See the module's text.")
    parser.add_argument("backends", nargs="*", metavar="BACKEND", help=", ".join(BACKENDS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    unknown = sorted(set(given.backends) - set(BACKENDS))
    if unknown:
        parser.error(f"unknown {', '.join(unknown)}: accepted are {', '.join(BACKENDS)}")
    if given.one:
        print(json.dumps(tried(given.one, given.device)))
        return 0
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU; --device cpu shows what can be seen without one")
    with ThreadPoolExecutor(given.at_once) as threads:
        runs = [
            threads.submit(in_its_own_process, name, given.device)
            for name in given.backends or BACKENDS
        ]
        results = [run.result() for run in runs]
    for one in results:
        print(shown(one))
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "replay.json").write_text(json.dumps(results, indent=1) + "\n")
    if any(wrong(one) for one in results):
        return 1
    # Not every machine has other people's kernels; ours run on all of them.
    ended = [one["state"].startswith(("tried", "unavailable")) for one in results]
    return 0 if all(ended) and any(one["state"] == "tried" for one in results) else 3


if __name__ == "__main__":
    raise SystemExit(main())
