"""Output: row v equals the oracle's path(root -> v) within the derived bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from treeproof.contract.capabilities import Capabilities, Numerics
from treeproof.contract.failure import Failure
from treeproof.oracles.path import PathResult
from treeproof.properties.bound import Bound, error_bound, natural
from treeproof.properties.naming import row_name
from treeproof.properties.scene import Scene


@dataclass(frozen=True)
class Margin:
    """Largest err / bound, and the same with the output's own rounding taken out of both."""

    total: float
    rest: float


def bounds(
    scene: Scene, truth: Sequence[PathResult], numerics: Numerics, capabilities: Capabilities
) -> list[Bound]:
    shape = scene.case.shape
    return [
        error_bound(**vars(t), shape=shape, numerics=numerics, capabilities=capabilities)
        for t in truth
    ]


def judge(
    scene: Scene,
    truth: Sequence[PathResult],
    limits: Sequence[Bound],
    out: Tensor,
    lse: Tensor | None,
    capabilities: Capabilities,
) -> tuple[list[Failure], Margin]:
    """Compare `out` (T, Hq, Dv) and `lse` (T, Hq) with the oracle's results (node order).

    `lse` is in the base, and with or without the sink, as `capabilities` say.
    """
    failures: list[Failure] = []
    worst, worst_rest = 0.0, 0.0
    got, got_lse = out.double().cpu(), None if lse is None else natural(lse, capabilities).cpu()
    for b, request in enumerate(scene.case.requests):
        start = scene.case.qo_indptr[b]
        rows = torch.tensor([start + r for r in request.row_of_node])
        error = (got[rows] - truth[b].out).abs()
        ratio = error / limits[b].total
        rest = (error - limits[b].output_rounding).clamp(min=0) / limits[b].rest
        worst = max(worst, float(ratio.max()))
        worst_rest = max(worst_rest, float(rest.max()))
        per_node = ratio.flatten(1).amax(1)
        for node in (per_node > 1).nonzero().flatten().tolist():
            row = request.row_of_node[node]
            head, lane = divmod(int(ratio[node].argmax()), ratio.shape[2])
            failures.append(
                Failure(
                    identity="output", kind="outside-bound", evidence="measured", stage="attend",
                    request=b, row=row,
                    expected=f"{float(truth[b].out[node, head, lane]):.6g}",
                    actual=f"{float(got[start + row, head, lane]):.6g}",
                    message=f"{row_name(request, row)} is off by {float(error[node, head, lane]):.3g} "
                    f"at head {head}, lane {lane}: {float(per_node[node]):.3g} times the bound",
                )
            )  # fmt: skip
        if got_lse is not None:
            true = truth[b].lse_sink if capabilities.lse_includes_sink else truth[b].lse
            off = (got_lse[rows] - true).abs() / limits[b].lse
            bad = (off.amax(1) > 1) | ~torch.isfinite(got_lse[rows]).all(1)
            for node in bad.nonzero().flatten().tolist():
                row = request.row_of_node[node]
                head = int(off[node].nan_to_num(torch.inf).argmax())
                found, wanted = float(got_lse[start + row, head]), float(true[node, head])
                failures.append(
                    Failure(
                        identity="output", kind="wrong-lse", evidence="measured", stage="attend",
                        request=b, row=row, expected=f"{wanted:.6g}", actual=f"{found:.6g}",
                        message=f"the log-sum-exp of {row_name(request, row)} at head {head} is "
                        f"{found:.6g}, expected {wanted:.6g} (natural log)",
                    )
                )  # fmt: skip
    return failures, Margin(worst, worst_rest)
