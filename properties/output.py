"""Output: row v equals the oracle's path(root -> v) within the derived bound."""

from __future__ import annotations

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
    scene: Scene, truth: PathResult, numerics: Numerics, capabilities: Capabilities
) -> Bound:
    """The bound of every node, in the order of `truth`: requests one after the other."""
    return error_bound(
        **vars(truth), shape=scene.case.shape, numerics=numerics, capabilities=capabilities
    )


def judge(
    scene: Scene,
    truth: PathResult,
    limit: Bound,
    out: Tensor,
    lse: Tensor | None,
    capabilities: Capabilities,
) -> tuple[list[Failure], Margin]:
    """Compare `out` (T, Hq, Dv) and `lse` (T, Hq) with the oracle's results.

    `lse` is in the base, and with or without the sink, as `capabilities` say. All on one device,
    which is asked once where everything is right.
    """
    got = out[scene.node_rows].double()
    error = (got - truth.out).abs()
    ratio = error / limit.total
    rest = (error - limit.output_rounding).clamp(min=0) / limit.rest
    of_node = ratio.flatten(1).amax(1)
    off = torch.zeros_like(of_node)
    got_lse = None if lse is None else natural(lse[scene.node_rows], capabilities)
    true_lse = truth.lse_sink if capabilities.lse_includes_sink else truth.lse
    if got_lse is not None:
        off_by_head = (got_lse - true_lse).abs() / limit.lse
        off = off_by_head.amax(1).nan_to_num(torch.inf, torch.inf)
        off = torch.where(torch.isfinite(got_lse).all(1), off, torch.inf)
    worst, worst_rest, worst_lse = torch.stack([of_node.max(), rest.max(), off.max()]).tolist()
    margin = Margin(worst, worst_rest)
    if worst <= 1 and worst_lse <= 1:
        return [], margin
    failures = [
        _outside(scene, node, got[node].cpu(), truth.out[node].cpu(), ratio[node].cpu())
        for node in (of_node > 1).nonzero().flatten().tolist()
    ]
    if got_lse is not None:
        failures += [
            _wrong_lse(
                scene, node, got_lse[node].cpu(), true_lse[node].cpu(), off_by_head[node].cpu()
            )
            for node in (off > 1).nonzero().flatten().tolist()
        ]
    return sorted(failures, key=lambda failure: failure.request or 0), margin


def _place(scene: Scene, node: int) -> tuple[int, int]:
    """Request and local row of a node, counted through all requests."""
    return scene.rows[int(scene.node_rows[node])]


def _outside(scene: Scene, node: int, got: Tensor, true: Tensor, ratio: Tensor) -> Failure:
    """All (Hq, Dv)."""
    b, row = _place(scene, node)
    head, lane = divmod(int(ratio.argmax()), ratio.shape[1])
    found, wanted = float(got[head, lane]), float(true[head, lane])
    return Failure(
        identity="output", kind="outside-bound", evidence="measured", stage="attend",
        request=b, row=row, expected=f"{wanted:.6g}", actual=f"{found:.6g}",
        message=f"{row_name(scene.case.requests[b], row)} is off by {abs(found - wanted):.3g} "
        f"at head {head}, lane {lane}: {float(ratio.max()):.3g} times the bound",
    )  # fmt: skip


def _wrong_lse(scene: Scene, node: int, got: Tensor, true: Tensor, off: Tensor) -> Failure:
    """All (Hq,)."""
    b, row = _place(scene, node)
    head = int(off.nan_to_num(torch.inf).argmax())
    found, wanted = float(got[head]), float(true[head])
    return Failure(
        identity="output", kind="wrong-lse", evidence="measured", stage="attend",
        request=b, row=row, expected=f"{wanted:.6g}", actual=f"{found:.6g}",
        message=f"the log-sum-exp of {row_name(scene.case.requests[b], row)} at head {head} is "
        f"{found:.6g}, expected {wanted:.6g} (natural log)",
    )  # fmt: skip
