"""PowerSGD: low-rank gradient compression with error feedback.

Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization", 2019. The gradient of a matrix is sent as a product of two narrow matrices. Each
training step does one step of subspace iteration, starting where the last one ended. Vectors,
complex parameters and matrices that would not become smaller are sent as they are. One thread makes
all exchanges of a bucket in order, as gloo needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class PowerSGD:
    """Low-rank averaging of a bucket's gradients over the group: `rank` columns for each matrix."""

    def __init__(self, group: dist.ProcessGroup | None, rank: int) -> None:
        self.group, self.rank = group, rank
        self.residuals: dict[str, Tensor] = {}
        self.bases: dict[str, Tensor] = {}

    def _columns(self, gradient: Tensor) -> int:
        """Return the rank to compress a gradient to; 0 if it is to be sent as it is."""
        if gradient.ndim < 2 or gradient.is_complex():
            return 0
        rows, columns = gradient.shape[0], gradient.shape[1:].numel()
        rank = min(self.rank, rows, columns)
        return rank if rank * (rows + columns) < rows * columns else 0

    def _average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the means over the group, from one all-reduce; the tensors have one dtype."""
        if not any(tensor.numel() for tensor in tensors):
            return list(tensors)
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).div_(
            dist.get_world_size(self.group)
        )
        dist.all_reduce(flat, group=self.group)
        return [
            part.view_as(tensor)
            for part, tensor in zip(flat.split([t.numel() for t in tensors]), tensors, strict=True)
        ]

    def average_(self, gradients: Sequence[Tensor], names: Sequence[str]) -> None:
        """Replace each gradient by the low-rank form of its mean.

        The residual, which that form loses, is added the next time.
        """
        plain: list[Tensor] = []
        # (name, gradient, matrix to send of shape [rows, columns])
        narrow: list[tuple[str, Tensor, Tensor]] = []
        wide = torch.promote_types(gradients[0].dtype, torch.float32)  # a bucket has one dtype
        for name, gradient in zip(names, gradients, strict=True):
            columns = self._columns(gradient)
            if not columns:
                plain.append(gradient)
                continue
            matrix = gradient.reshape(gradient.shape[0], -1)
            wanted = matrix.to(wide) + self.residuals.get(name, 0.0)
            if name not in self.bases:
                seed = torch.Generator().manual_seed(len(self.bases))  # the same on every rank
                self.bases[name] = torch.randn(matrix.shape[1], columns, generator=seed).to(wanted)
            narrow.append((name, gradient, wanted))
        lefts = self._average(
            [
                *(wanted @ self.bases[name] for name, _, wanted in narrow),
                *(g.to(wide) for g in plain),
            ]
        )
        for gradient, mean in zip(plain, lefts[len(narrow) :], strict=True):
            gradient.copy_(mean)
        lefts = [torch.linalg.qr(left).Q for left in lefts[: len(narrow)]]
        rights = self._average(
            [wanted.T @ left for (_, _, wanted), left in zip(narrow, lefts, strict=True)]
        )
        for (name, gradient, wanted), left, right in zip(narrow, lefts, rights, strict=True):
            mean = left @ right.T
            # An overflow, whose step is going to be skipped, would otherwise stay in the residual
            # for good.
            usable = mean.isfinite().all()
            before = self.residuals.get(name, torch.zeros_like(wanted))
            self.residuals[name] = torch.where(usable, wanted - mean, before)
            self.bases[name] = torch.where(usable, right, self.bases[name])
            gradient.copy_(mean.view_as(gradient))

    def state_dict(self) -> dict[str, Any]:
        """Return residuals of this rank, and the bases, which all ranks share."""
        return {"residuals": dict(self.residuals), "bases": dict(self.bases)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned."""
        self.residuals, self.bases = dict(state["residuals"]), dict(state["bases"])
