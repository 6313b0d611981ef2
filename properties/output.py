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
    """`Compared` at once."""
    return Compared(scene, truth, limit, out, lse, capabilities).judge()


class Compared:
    """`out` (T, Hq, Dv) and `lse` (T, Hq) against the oracle's results, all on one device.

    `lse` is in the base, and with or without the sink, as `capabilities` say. The device is asked once
    where everything is right, and may be asked later.
    """

    def __init__(
        self,
        scene: Scene,
        truth: PathResult,
        limit: Bound,
        out: Tensor,
        lse: Tensor | None,
        capabilities: Capabilities,
    ) -> None:
        self._scene, self._truth = scene, truth
        self._got = out[scene.node_rows].double()
        error = (self._got - truth.out).abs()
        self._ratio = error / limit.total
        rest = (error - limit.output_rounding).clamp(min=0) / limit.rest
        self._of_node = self._ratio.flatten(1).amax(1)
        self._off = torch.zeros_like(self._of_node)
        self._got_lse = None if lse is None else natural(lse[scene.node_rows], capabilities)
        self._true_lse = truth.lse_sink if capabilities.lse_includes_sink else truth.lse
        if self._got_lse is not None:
            self._off_by_head = (self._got_lse - self._true_lse).abs() / limit.lse
            off = self._off_by_head.amax(1).nan_to_num(torch.inf, torch.inf)
            self._off = torch.where(torch.isfinite(self._got_lse).all(1), off, torch.inf)
        worst = torch.stack([self._of_node.max(), rest.max(), self._off.max()])
        self._worst = scene.answers.ask(worst)

    def judge(self) -> tuple[list[Failure], Margin]:
        worst, worst_rest, worst_lse = self._worst.numbers
        margin = Margin(worst, worst_rest)
        if worst <= 1 and worst_lse <= 1:
            return [], margin
        failures = [
            self._outside(node) for node in (self._of_node > 1).nonzero().flatten().tolist()
        ]
        if self._got_lse is not None:
            failures += [
                _wrong_lse(
                    self._scene, node, self._got_lse[node].cpu(), self._true_lse[node].cpu(),
                    self._off_by_head[node].cpu(),
                )
                for node in (self._off > 1).nonzero().flatten().tolist()
            ]  # fmt: skip
        return sorted(failures, key=lambda failure: failure.request or 0), margin

    def _outside(self, node: int) -> Failure:
        each = (self._got, self._truth.out, self._ratio)
        return _outside(self._scene, node, *(of_nodes[node].cpu() for of_nodes in each))


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
